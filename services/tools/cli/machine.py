"""What this machine offers the processes that are started here: cores, and an environment without our settings."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from seedbed.shared.runtime.config_errors import ENVIRONMENT_PREFIX
from seedbed.shared.runtime.load_config import KNOWN_SECTIONS


def usable_cores() -> int:
    """Cores that this process may use: its affinity, cut by the control group's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, round(cgroup_quota(Path("/sys/fs/cgroup/cpu.max")) or cores)))


def has_nvidia_driver() -> bool:
    """Whether there is an accelerator that PyTorch's CUDA build would use."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def cgroup_quota(file: Path) -> float | None:
    """Cores that a version 2 control group grants; None without a limit."""
    try:
        quota, period = file.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def service_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The launcher's variables without those that configure seedbed: the snapshot holds them already."""
    sections = tuple(f"{ENVIRONMENT_PREFIX}{name.upper()}__" for name in KNOWN_SECTIONS)
    return {name: value for name, value in base.items() if not name.upper().startswith(sections)}


def stolen_s() -> float:
    """Processor time that the machine's host gave to others, since the start, seconds; 0 where nobody tells.

    Of a virtual machine it explains most of what differs between two equal measurements.
    """
    try:
        return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
