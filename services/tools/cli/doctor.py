"""Whether this machine can train well, and what to change: facts are gathered once, then judged."""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from seedbed.services.tools.cli.machine import has_nvidia_driver, usable_cores
from seedbed.shared.net.file_reserve import MANY_CONNECTIONS, most_connected
from seedbed.shared.runtime.memory import available_bytes, memory_limit
from seedbed.shared.runtime.open_files import how_to_raise, most_files

if TYPE_CHECKING:
    import torch

GIB = 1024**3
USUAL_PORTS = {  # of services that are started one by one, and how to choose another
    5555: "inference.bind",
    5556: "learner.bind",
    8080: "seedbed monitor --port",
}
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"  # PyTorch's own index


class Grade(StrEnum):
    """Whether a finding is fine, could be better, or will not work."""

    OK = "ok"
    ADVICE = "advice"  # works, could be better
    PROBLEM = "problem"  # something will not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report: what was looked at, what was found, what to do."""

    topic: str
    grade: Grade
    found: str
    advice: str = ""


Judgement = tuple[Grade, str, str]  # of one topic: what was found, and what to do


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """What the installed torch can do."""

    version: str
    threads: int
    accelerators: tuple[str, ...]
    is_cuda_build: bool
    accelerator_bf16: bool
    bf16_speedup: float  # of a matrix product over fp32, on the device that would train


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What was found of this machine, before any of it is judged."""

    python: tuple[int, int]
    cores: int
    cores_present: int
    load: float  # one minute's mean
    memory_bytes: int
    memory_available_bytes: int  # in a container no more than its limit leaves
    swap_used_bytes: int
    disk_free_bytes: int
    can_bind_loopback: bool
    ephemeral_ports: int
    taken_ports: frozenset[int]  # of the usual ones
    max_files: int  # that a service may have open: it raises its own limit as far as it may
    cpu_flags: frozenset[str]
    clock_source: str
    clock_resolution_s: float
    wall_clock: float  # seconds since 1970
    has_nvidia_driver: bool
    modules: frozenset[str]  # of the optional ones, those that are installed
    torch: TorchFacts | None


MODULES = ("ale_py", "envpool", "cv2", "pygame", "imageio", "imageio_ffmpeg", "matplotlib", "tensorboard", "uvloop")


def gather(folder: Path) -> MachineFacts:
    """Look at this machine; takes a second or two where torch is installed."""
    memory, swap, available = psutil.virtual_memory(), psutil.swap_memory(), available_bytes()
    return MachineFacts(
        python=sys.version_info[:2],
        cores=usable_cores(),
        cores_present=os.cpu_count() or 1,
        load=os.getloadavg()[0],
        memory_bytes=memory_limit(memory.total),
        memory_available_bytes=memory.available if available is None else available,
        swap_used_bytes=swap.used,
        disk_free_bytes=shutil.disk_usage(folder).free,
        can_bind_loopback=_can_bind_loopback(),
        ephemeral_ports=_ephemeral_ports(),
        taken_ports=frozenset(port for port in USUAL_PORTS if not _can_bind_loopback(port)),
        max_files=most_files(),
        cpu_flags=_cpu_flags(),
        clock_source=_read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        clock_resolution_s=_clock_resolution(),
        wall_clock=time.time(),
        has_nvidia_driver=has_nvidia_driver(),
        modules=frozenset(name for name in MODULES if importlib.util.find_spec(name) is not None),
        torch=_torch_facts(),
    )


def judge(facts: MachineFacts) -> list[Finding]:
    """The report: one finding for each topic, in the order in which they matter."""
    findings = []
    for topic, rule in RULES.items():
        grade, found, advice = rule(facts)
        findings.append(Finding(topic=topic, grade=grade, found=found, advice=advice))
    return findings


def _judge_python(facts: MachineFacts) -> Judgement:
    found = f"{facts.python[0]}.{facts.python[1]}"
    if facts.python < (3, 11):
        return Grade.PROBLEM, found, "install Python 3.11 or newer"
    return Grade.OK, found, ""


def _judge_cores(facts: MachineFacts) -> Judgement:
    found = f"{facts.cores} usable of {facts.cores_present}, load {facts.load:.1f}"
    if facts.load > 0.5 * facts.cores + 0.5:
        return Grade.ADVICE, found, "other programs are busy here: stop them before measuring or training"
    if facts.cores < 2:
        return Grade.ADVICE, found, "actor, inference and learner share one core: expect half the speed or less"
    if facts.cores < facts.cores_present:
        return Grade.ADVICE, found, "affinity or a container's quota hides cores: raise it if they are meant for this"
    return Grade.OK, found, ""


def _judge_memory(facts: MachineFacts) -> Judgement:
    found = f"{facts.memory_available_bytes / GIB:.1f} GiB free of {facts.memory_bytes / GIB:.1f}"
    if facts.memory_available_bytes < 2 * GIB:
        return Grade.PROBLEM, found, "less than 2 GiB is free: close programs, or lower actor.lanes and learner.batch"
    if facts.swap_used_bytes > GIB:
        swapped = f"{facts.swap_used_bytes / GIB:.1f} GiB are swapped out: training stalls when it is needed"
        return Grade.ADVICE, found, swapped
    return Grade.OK, found, ""


def _judge_disk(facts: MachineFacts) -> Judgement:
    found = f"{facts.disk_free_bytes / GIB:.1f} GiB free here"
    if facts.disk_free_bytes < 2 * GIB:
        return (
            Grade.PROBLEM,
            found,
            "run folders hold checkpoints and logs: free some space, or use --run-dir elsewhere",
        )
    return Grade.OK, found, ""


def _judge_ports(facts: MachineFacts) -> Judgement:
    found = f"loopback {'binds' if facts.can_bind_loopback else 'refuses to bind'}, {facts.ephemeral_ports} ephemeral"
    if not facts.can_bind_loopback:
        return Grade.PROBLEM, found, "services talk over 127.0.0.1: allow binding there (sandbox, firewall, no `lo`?)"
    if facts.ephemeral_ports < 1000:
        return Grade.ADVICE, found, "widen it: sysctl -w net.ipv4.ip_local_port_range='32768 60999'"
    if facts.taken_ports:
        taken = sorted(facts.taken_ports)
        found = f"{', '.join(map(str, taken))} taken, {facts.ephemeral_ports} ephemeral"
        others = ", ".join(USUAL_PORTS[port] for port in taken)
        return Grade.ADVICE, found, f"unless that is seedbed itself, choose others: {others}; `train` needs none"
    return Grade.OK, f"{found}, {', '.join(map(str, USUAL_PORTS))} free", ""


def _judge_files(facts: MachineFacts) -> Judgement:
    found = f"{facts.max_files} open files"
    if most_connected(facts.max_files) < MANY_CONNECTIONS:  # as inference judges at its start
        return Grade.ADVICE, found, f"before many actors dial in, {how_to_raise(facts.max_files)}"
    return Grade.OK, found, ""


def _judge_torch(facts: MachineFacts) -> Judgement:
    if facts.torch is None:
        advice = f"inference and learner need it: pip install --extra-index-url {CPU_BUILDS} 'seedbed[torch]'"
        return Grade.PROBLEM, "not installed", f"{advice}; without the option it is CUDA's build"
    return Grade.OK, f"{facts.torch.version}, {facts.torch.threads} threads", ""


def _judge_accelerator(facts: MachineFacts) -> Judgement:
    if facts.torch is not None and facts.torch.accelerators:
        return Grade.OK, ", ".join(facts.torch.accelerators), ""
    if not facts.has_nvidia_driver:
        return Grade.OK, "none: training runs on the processor", ""
    if facts.torch is not None and not facts.torch.is_cuda_build:
        advice = "this torch is a CPU build: make clean, then make install, or with TORCH=cu126 for an older driver"
        return Grade.PROBLEM, "an NVIDIA driver, and no device in torch", advice
    return Grade.PROBLEM, "an NVIDIA driver, and no device in torch", "check nvidia-smi and CUDA_VISIBLE_DEVICES"


def _judge_bf16(facts: MachineFacts) -> Judgement:
    if facts.torch is not None and facts.torch.accelerators:
        if facts.torch.accelerator_bf16:
            return Grade.OK, f"on the accelerator, {facts.torch.bf16_speedup:.2g}x fp32", ""
        return Grade.ADVICE, "not on this accelerator", "fp32 is used; expect less speed from convolutional networks"
    units = [name for name in ("amx_bf16", "avx512_bf16", "bf16") if name in facts.cpu_flags]
    found = ", ".join(units) or "no instructions for it"
    if facts.torch is not None:
        found += f"; matrix products at {facts.torch.bf16_speedup:.2g}x fp32"
        if facts.torch.bf16_speedup < 1.2:
            return Grade.ADVICE, found, "fp32 will be chosen by measurement; convolutional networks train slowly here"
    return Grade.OK, found, ""


def _judge_clock(facts: MachineFacts) -> Judgement:
    found = f"{facts.clock_source or 'unknown source'}, {facts.clock_resolution_s * 1e9:.0f} ns per reading"
    if facts.wall_clock < 1_735_689_600:  # 2025-01-01: before this program was written
        return Grade.PROBLEM, found, "the date is wrong: set it, or certificates and run names will be"
    if facts.clock_resolution_s > 2e-6:
        advice = "slow clock source: boot with clocksource=tsc if the hypervisor allows it"
        return Grade.ADVICE, found, advice
    return Grade.OK, found, ""


def _judge_extras(facts: MachineFacts) -> Judgement:
    found = ", ".join(sorted(facts.modules)) or "none"
    if not {"ale_py", "envpool"} & facts.modules:
        return Grade.ADVICE, found, "Atari needs a back-end: pip install 'seedbed[atari]'"
    if not {"imageio", "imageio_ffmpeg"} <= facts.modules:
        return Grade.ADVICE, found, "videos need imageio and imageio-ffmpeg: pip install 'seedbed[torch]'"
    if "pygame" not in facts.modules:
        return Grade.ADVICE, found, "classic-control environments are drawn by pygame: pip install pygame-ce"
    return Grade.OK, found, ""


RULES: Mapping[str, Callable[[MachineFacts], Judgement]] = {  # by topic, in the order of the report
    "Python": _judge_python,
    "cores": _judge_cores,
    "memory": _judge_memory,
    "disk": _judge_disk,
    "ports": _judge_ports,
    "ulimits": _judge_files,
    "torch": _judge_torch,
    "accelerator": _judge_accelerator,
    "bf16": _judge_bf16,
    "clock": _judge_clock,
    "extras": _judge_extras,
}


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _can_bind_loopback(port: int = 0) -> bool:
    """Whether a service may listen there; port 0: on any."""
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection that was is no listener
            listener.bind(("127.0.0.1", port))
            listener.listen()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return False
    return True


def _ephemeral_ports() -> int:
    bounds = _read("/proc/sys/net/ipv4/ip_local_port_range").split()
    return int(bounds[1]) - int(bounds[0]) + 1 if len(bounds) == 2 else 28232


def _cpu_flags() -> frozenset[str]:
    for line in _read("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _clock_resolution() -> float:
    """Seconds that one reading of the monotonic clock costs: the loops read it for every message."""
    readings = 20_000
    start = time.perf_counter()
    for _ in range(readings):
        time.monotonic()
    return (time.perf_counter() - start) / readings


def _torch_facts() -> TorchFacts | None:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    names = tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    device = torch.device("cuda" if names else "cpu")
    return TorchFacts(
        version=importlib.metadata.version("torch"),
        threads=torch.get_num_threads(),
        accelerators=names,
        is_cuda_build=torch.version.cuda is not None,
        accelerator_bf16=bool(names) and torch.cuda.is_bf16_supported(),
        bf16_speedup=_product_seconds(device, torch.float32) / _product_seconds(device, torch.bfloat16),
    )


def _product_seconds(device: torch.device, dtype: torch.dtype) -> float:
    """The best of some matrix products."""
    import torch

    size = 4096 if device.type == "cuda" else 512
    matrix = torch.ones(size, size, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        float((matrix @ matrix)[0, 0])  # reading a value waits for the device
        best = min(best, time.perf_counter() - start)
    return best


def machine_label() -> str:
    """Processor, cores, accelerator and versions in one line, for benchmarks."""
    model = ""
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{model or platform.machine()}, {usable_cores()} cores, Python {platform.python_version()}"
