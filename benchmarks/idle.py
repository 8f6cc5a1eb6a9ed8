"""What services cost while there is nothing to do: processor time of each, in percent of one core.

    .venv/bin/python benchmarks/idle.py --seconds 30

Learner and inference are connected, and no environment comes; the actor's inference is not there; nobody looks at the
monitor's page. Prints one JSON object for each service.
"""

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from seedbed.services.tools.cli.doctor import machine_label
from seedbed.services.tools.cli.scrape import read_status

START_S = 60.0
SETTLE_S = 5.0  # between the start of the last service and the first reading
EXPERIMENT = "compose/experiments/cartpole.toml"


def main() -> None:
    """Start the services, let them settle, and print the share of a core that each uses while idle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    seconds = parser.parse_args().seconds
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="seedbed-idle-")))
        nobody = held.enter_context(socket.socket())
        nobody.bind(("127.0.0.1", 0))  # taken, and nobody listens
        services = Services(held, folder)
        learner = services.start("learner", EXPERIMENT, "learner.bind=tcp://127.0.0.1:0", f"run.dir={folder}/run")
        services.start("inference", EXPERIMENT, "inference.bind=tcp://127.0.0.1:0", f'inference.upstream=["{learner}"]')
        away = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        services.start("actor", EXPERIMENT, f'actor.upstream=["{away}"]')
        services.start("monitor", f"monitor.runs={folder}", "monitor.port=0")
        time.sleep(SETTLE_S)
        before, began = services.processor_s(), time.monotonic()
        time.sleep(seconds)
        after, elapsed = services.processor_s(), time.monotonic() - began
    for name, used in after.items():
        percent = round(100 * (used - before[name]) / elapsed, 2)
        print(json.dumps({"bench": "idle", "machine": machine_label(), "service": name, "percent_of_a_core": percent}))


class Services:
    """The services' processes by name; they are terminated when `held` is closed."""

    def __init__(self, held: contextlib.ExitStack, folder: Path) -> None:
        self._held, self._folder = held, folder
        self._processes: dict[str, psutil.Process] = {}

    def start(self, name: str, *words: str) -> str:
        """Start a service, wait until it is ready, and return its endpoint. Exits with its log if it does not start."""
        status = self._folder / f"{name}.json"
        command = [str(Path(sys.executable).with_name("seedbed")), name, *words, f"runtime.status_file={status}"]
        log = self._held.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(command, stdout=log, stderr=log)
        self._held.callback(process.wait)
        self._held.callback(process.terminate)
        deadline = time.monotonic() + START_S
        while not (found := read_status(status)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{name} did not start:\n{(self._folder / f'{name}.log').read_text()}")
            time.sleep(0.1)
        self._processes[name] = psutil.Process(int(found["pid"]))
        return str(found["endpoint"])

    def processor_s(self) -> dict[str, float]:
        """Return each service's processor time so far, user and system, seconds."""
        times = {name: process.cpu_times() for name, process in self._processes.items()}
        return {name: found.user + found.system for name, found in times.items()}


if __name__ == "__main__":
    main()
