"""A host of its own on this machine, for tests of cluster software: namespaces of network, processes, mounts and names.

It ends with all that runs on it, mounts included, when its first process is killed. It sees this machine's files, as
machines of a cluster see a shared file system.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.support.deployment import wait_until

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("ip", "nsenter", "setpriv", "unshare")
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
START_S, COMMAND_S = 60.0, 120.0


@cache
def why_not(*programs: str) -> str:
    """Return why there can be no such host, or none with these programs; empty if there can."""
    if missing := [program for program in (*PROGRAMS, *programs) if shutil.which(program) is None]:
        return f"there is no {', '.join(missing)}"
    if os.geteuid() != 0:
        return "hosts of their own, and the daemons on them, need root"
    made = subprocess.run([*Host.SPACES, "true"], check=False, capture_output=True, text=True)
    return "" if made.returncode == 0 else f"no namespaces can be made here: {made.stderr.strip()}"


def run(words: Sequence[str], *, check: bool = True) -> str:
    """Return what a command prints, both streams. Programs of this Python come first, and this tree's packages."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "SEEDBED_", "KUBE"))}
    path = {"PATH": f"{Path(sys.executable).parent}:{kept['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=COMMAND_S, check=False, stdin=subprocess.DEVNULL,
        env=kept | path,
    )  # fmt: skip
    assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


class Host:
    """One machine, as namespaces of this one."""

    SPACES = ("unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")
    FIRST = "sleep inf & wait"  # a shell as the first process: it reaps whoever has lost its parent

    def __init__(self, name: str) -> None:
        self.name = name
        self._holder: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Give it a first process, its name and a /run of its own."""
        self._holder = subprocess.Popen([*DIE_WITH_PARENT, *self.SPACES, "sh", "-c", self.FIRST])
        wait_until(self.first, f"{self.name} has a first process", START_S)
        self.run("sh", "-c", f"hostname {self.name} && ip link set lo up && mount -t tmpfs none /run")

    def run(self, *words: str, check: bool = True, cwd: Path = ROOT) -> str:
        """Return what a command on this host prints."""
        return run(self.command(*words, cwd=cwd), check=check)

    def command(self, *words: str, cwd: Path = ROOT) -> list[str]:
        """Return the command that runs another on this host."""
        inside = ("--net", "--mount", "--pid", "--uts", f"--wd={cwd}")
        return ["nsenter", f"--target={self.first()}", *inside, *words]

    def processes(self, pattern: str = "") -> dict[int, str]:
        """Return id (this machine's) and command line of each process on it whose command line has the pattern.

        Those in containers on it, which have process namespaces of their own, are not among them.
        """
        found: dict[int, str] = {}
        if self._holder is None:
            return found
        space = os.readlink(f"/proc/{self.first()}/ns/pid")
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if line and os.readlink(entry / "ns" / "pid") == space and re.search(pattern, line):
                        found[int(entry.name)] = line
                except OSError:  # it has ended
                    continue
        return found

    def first(self) -> int:
        """Return this machine's id of the process whose end is the host's; 0 while there is none."""
        assert self._holder is not None
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def kill(self) -> None:
        """End it and everything on it at once, as if its power were cut."""
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()
            self._holder = None


def kill(pid: int) -> None:
    """`kill -9`."""
    os.kill(pid, signal.SIGKILL)
