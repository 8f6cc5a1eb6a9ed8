"""How the memory of each service grows in a long run, the monitor with a page open included.

    .venv/bin/python benchmarks/memory.py cartpole --minutes 30 --out docs/curves

Trains without a limit of steps or of return for the time given and asks the operating system every five seconds what
each process has resident, and how much of that is anonymous: its own data, without the libraries that it has mapped.
(The memory that a process shares with nobody is no measure beside other programs: a library's pages are counted to it
as soon as the last other program that maps them ends.) Growth is from the median of the two minutes after the warm-up
(a sixth of the run, five minutes at most) to the median of the last two. Prints one JSON object for each service; with
--out FOLDER it writes memory_of_services.csv and .png there.
"""

import argparse
import contextlib
import csv
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

EVERY_S = 5.0
WINDOW_S = 120.0
WARM_UP_S = 300.0  # a sixth of the run, if that is less
RUN = "memory"

Curve = list[tuple[float, float, float]]  # seconds, bytes resident, of these anonymous


def main() -> None:
    """Watch a run, print each service's memory growth as JSON, and write the curves where --out says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="?", default="cartpole")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, help="folder for memory_of_services.csv and .png")
    arguments = parser.parse_args()
    seconds = 60 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="seedbed-memory-") as folder:
        curves, status = watch(arguments.experiment, Path(folder), seconds)
    for name, curve in sorted(curves.items()):
        if curve[-1][0] > warm_up(seconds):  # else there is nothing to compare: the run failed before
            print(json.dumps({"service": name} | growth(curve, seconds)), flush=True)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        write(curves, arguments.out)
    if status:
        sys.exit(f"the run that was watched ended with exit status {status}")


def watch(experiment: str, folder: Path, seconds: float) -> tuple[dict[str, Curve], int]:
    """Run an experiment for `seconds`; return each service's memory curve by name, and the launcher's exit status."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    train = ["train", experiment, "--run-dir", str(folder / RUN), "--seconds", str(seconds)]
    curves: dict[str, Curve] = defaultdict(list)
    began = time.monotonic()
    with (
        started("monitor", "--runs", str(folder), "--port", str(port)) as monitor,
        started(*train, "run.steps=0", "run.until_return=1e9") as launcher,
    ):
        while launcher.poll() is None:
            time.sleep(EVERY_S)
            look_at_the_page(port)
            now = time.monotonic() - began
            for name, process in services_of(launcher.pid):
                with contextlib.suppress(psutil.Error):
                    if (memory := resident(process))[0]:  # none is left of one that is just ending
                        curves[name].append((now, *memory))
            with contextlib.suppress(psutil.Error):
                curves["monitor"].append((now, *resident(psutil.Process(monitor.pid))))
    return curves, launcher.returncode


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start `seedbed ARGUMENTS` and yield its process; terminate it at exit."""
    command = [str(Path(sys.executable).with_name("seedbed")), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def services_of(launcher: int) -> Iterator[tuple[str, psutil.Process]]:
    """Yield (name, process) of the launcher and of each service that it started."""
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(launcher)
        yield "launcher", parent
        for child in parent.children():
            with contextlib.suppress(psutil.Error):
                names = [word for word in child.cmdline() if word.startswith("runtime.name=")]
                if names:
                    yield names[0].removeprefix("runtime.name=").strip('"'), child


def look_at_the_page(port: int) -> None:
    """Request from the monitor what an open page requests; errors are ignored, as before the run exists."""
    for path in ("/api/runs", f"/api/runs/{RUN}", f"/api/runs/{RUN}/curves"):
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5.0) as page,
        ):
            page.read()


def resident(process: psutil.Process) -> tuple[float, float]:
    """Return a process's resident memory and the anonymous part of it, bytes."""
    memory = process.memory_info()
    return float(memory.rss), float(memory.rss - memory.shared)


def warm_up(seconds: float) -> float:
    """Return how much of a run's beginning is left out of the growth, seconds."""
    return min(WARM_UP_S, seconds / 6)


def growth(curve: Curve, seconds: float) -> dict[str, float]:
    """Return the memory after the warm-up and at the end, megabytes, and the growth between them, percent."""
    warm = warm_up(seconds)
    last = curve[-1][0]
    began = [sample for sample in curve if warm <= sample[0] <= max(warm + WINDOW_S, curve[0][0] + warm)]
    ended = [sample for sample in curve if sample[0] >= last - WINDOW_S]
    figures: dict[str, float] = {}
    for column, kind in ((1, "resident"), (2, "anonymous")):
        before, after = (statistics.median(sample[column] for sample in part) for part in (began, ended))
        figures |= {
            f"{kind}_mb_after_warm_up": round(before / 1e6, 1),
            f"{kind}_mb_at_the_end": round(after / 1e6, 1),
            f"{kind}_growth_percent": round(100 * (after / before - 1), 2),
        }
    return figures


def write(curves: Mapping[str, Curve], folder: Path) -> None:
    """Write the samples as CSV and a plot of them as PNG into a folder."""
    with (folder / "memory_of_services.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["service", "seconds", "resident_mb", "anonymous_mb"])
        table.writerows(
            [name, round(at, 1), round(whole / 1e6, 2), round(own / 1e6, 2)]
            for name, curve in sorted(curves.items())
            for at, whole, own in curve
        )
    plot(curves, folder / "memory_of_services.png")


def plot(curves: Mapping[str, Curve], path: Path) -> None:
    """Draw resident memory over time as a PNG, one line for each service."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for name, curve in sorted(curves.items()):
        columns: Sequence[tuple[float, ...]] = tuple(zip(*curve, strict=True))
        axes.plot([at / 60 for at in columns[0]], [value / 1e6 for value in columns[1]], label=name)
    axes.set(xlabel="minutes", ylabel="resident memory, MB", ylim=(0, None))
    figure.legend(loc="outside right upper")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
