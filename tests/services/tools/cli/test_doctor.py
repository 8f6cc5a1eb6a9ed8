"""What `seedbed doctor` makes of a machine's facts."""

import socket
from dataclasses import replace

import pytest
from rich.console import Console

from seedbed.services.tools.cli import doctor
from seedbed.services.tools.cli.doctor import GIB, Finding, Grade, MachineFacts, TorchFacts, gather, judge
from seedbed.services.tools.cli.report import render_findings
from seedbed.shared.runtime import memory

TORCH = TorchFacts(
    version="2.13.0", threads=8, accelerators=(), is_cuda_build=False, accelerator_bf16=False, bf16_speedup=2.5
)
CUDA_TORCH = replace(TORCH, is_cuda_build=True)
GOOD = MachineFacts(
    python=(3, 12),
    cores=8,
    cores_present=8,
    load=0.2,
    memory_bytes=32 * GIB,
    memory_available_bytes=24 * GIB,
    swap_used_bytes=0,
    disk_free_bytes=100 * GIB,
    can_bind_loopback=True,
    ephemeral_ports=28232,
    taken_ports=frozenset(),
    max_files=65536,
    cpu_flags=frozenset({"amx_bf16", "avx2"}),
    clock_source="tsc",
    clock_resolution_s=4e-8,
    wall_clock=1.8e9,
    has_nvidia_driver=False,
    modules=frozenset({"ale_py", "envpool", "imageio", "imageio_ffmpeg", "pygame"}),
    torch=TORCH,
)


def find(topic: str, **changes) -> Finding:
    """The finding on a topic for a machine that differs from the good one."""
    return next(finding for finding in judge(replace(GOOD, **changes)) if finding.topic == topic)


def test_a_good_machine_gets_no_advice():
    """Nothing to change."""
    assert [finding for finding in judge(GOOD) if finding.grade is not Grade.OK or finding.advice] == []


@pytest.mark.parametrize(
    ("topic", "changes", "grade", "words"),
    [
        ("Python", {"python": (3, 10)}, Grade.PROBLEM, "3.11"),
        ("cores", {"load": 7.5}, Grade.ADVICE, "other programs"),
        ("cores", {"cores": 1, "cores_present": 1}, Grade.ADVICE, "one core"),
        ("cores", {"cores": 2}, Grade.ADVICE, "quota"),
        ("memory", {"memory_available_bytes": GIB}, Grade.PROBLEM, "actor.lanes"),
        ("memory", {"swap_used_bytes": 3 * GIB}, Grade.ADVICE, "swapped"),
        ("disk", {"disk_free_bytes": GIB}, Grade.PROBLEM, "--run-dir"),
        ("ports", {"can_bind_loopback": False}, Grade.PROBLEM, "127.0.0.1"),
        ("ports", {"ephemeral_ports": 100}, Grade.ADVICE, "ip_local_port_range"),
        ("ports", {"taken_ports": frozenset({8080, 5555})}, Grade.ADVICE, "inference.bind, seedbed monitor --port"),
        ("ulimits", {"max_files": 256}, Grade.ADVICE, "ulimit -Hn 4096"),
        ("ulimits", {"max_files": 1087}, Grade.ADVICE, "ulimit -Hn 4348"),  # 64 of them are not for connections
        ("torch", {"torch": None}, Grade.PROBLEM, "seedbed[torch]"),
        ("accelerator", {"has_nvidia_driver": True}, Grade.PROBLEM, "TORCH="),
        ("accelerator", {"has_nvidia_driver": True, "torch": CUDA_TORCH}, Grade.PROBLEM, "nvidia-smi"),
        ("bf16", {"torch": replace(TORCH, bf16_speedup=0.5)}, Grade.ADVICE, "fp32"),
        ("bf16", {"torch": replace(TORCH, accelerators=("GPU",))}, Grade.ADVICE, "fp32"),
        ("clock", {"wall_clock": 0.0}, Grade.PROBLEM, "date"),
        ("clock", {"clock_resolution_s": 1e-5, "clock_source": "hpet"}, Grade.ADVICE, "tsc"),
        ("extras", {"modules": frozenset()}, Grade.ADVICE, "seedbed[atari]"),
        ("extras", {"modules": GOOD.modules - {"imageio_ffmpeg"}}, Grade.ADVICE, "videos"),
        ("extras", {"modules": GOOD.modules - {"pygame"}}, Grade.ADVICE, "pygame"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_graded_with_a_remedy(topic, changes, grade, words):
    """Each rule, with what to change."""
    finding = find(topic, **changes)
    assert finding.grade is grade
    assert words in finding.advice


def test_files_for_as_many_connections_as_inference_wants_are_enough():
    """1024, and the 64 that inference keeps free."""
    assert find("ulimits", max_files=1088).grade is Grade.OK


def test_in_a_container_its_limit_says_what_memory_is_free(tmp_path, monkeypatch):
    """Not what the machine has; a system that does not tell has what psutil finds."""
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    (cgroup / "memory.max").write_text(f"{GIB}\n")
    (cgroup / "memory.current").write_text(f"{GIB - 4096}\n")
    monkeypatch.setattr(memory, "_CGROUP", cgroup)
    facts = gather(tmp_path)
    assert (facts.memory_bytes, facts.memory_available_bytes) == (GIB, 4096)
    assert find("memory", memory_available_bytes=facts.memory_available_bytes).grade is Grade.PROBLEM
    monkeypatch.setattr(doctor, "available_bytes", lambda: None)
    assert gather(tmp_path).memory_available_bytes > 4096


def test_an_accelerator_is_named():
    """With its bf16."""
    torch = replace(TORCH, accelerators=("Some GPU",), accelerator_bf16=True, is_cuda_build=True)
    assert find("accelerator", torch=torch, has_nvidia_driver=True).found == "Some GPU"
    assert find("bf16", torch=torch).grade is Grade.OK


def test_a_port_that_somebody_listens_on_is_taken(tmp_path, monkeypatch):
    """The usual ones are tried; here one that is free is made usual."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setattr(doctor, "USUAL_PORTS", {port: "inference.bind"})
        assert gather(tmp_path).taken_ports == {port}
    assert gather(tmp_path).taken_ports == frozenset()


def test_this_machine_can_be_judged(tmp_path):
    """Gathering works wherever the tests run, and the report has a line for each topic."""
    findings = judge(gather(tmp_path))
    console = Console(width=200, record=True, quiet=False)
    with console.capture() as captured:
        console.print(render_findings(findings))
    text = captured.get()
    assert len(findings) == 11
    assert all(finding.topic in text and finding.found for finding in findings)
