"""How fast the C++ environment service steps through inference with an empty policy.

Processes of services/corridor_cpp step the corridor; each group sends its next STEP when it has its ACT.

    .venv/bin/python benchmarks/cpp_service.py
    .venv/bin/python benchmarks/cpp_service.py --processes 2 --groups 32 --lanes 64 --seconds 5 --repeats 5

The server is `seedbed inference --serve`, with everything that it does for actors: sessions, checks of every row,
batches, actions, statistics of episodes; only its policy is empty (benchmarks/empty_torso.py).

Needs what services/corridor_cpp needs to be built. Prints one JSON object: the median of the repeats and each of them.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from seedbed.services.tools.cli.doctor import machine_label
from seedbed.services.tools.cli.machine import service_environment
from seedbed.services.tools.cli.scrape import read_page, read_status
from seedbed.shared.runtime.service import DIE_WITH_PARENT

SERVICE = Path(__file__).parents[1] / "services" / "corridor_cpp"
SEEDBED = str(Path(sys.executable).with_name("seedbed"))
WARM_UP_S, LOOK_EVERY_S, START_S, STOP_S = 2.0, 0.05, 60.0, 15.0
EMPTY = ("policy.network=benchmarks.empty_torso:EmptyTorso", "run.steps=1", "eval.episodes=1")
CORRIDOR = str(SERVICE / "corridor")


@contextmanager
def running(commands: Sequence[Sequence[str]], variables: Mapping[str, str]) -> Iterator[list[int]]:
    """Start commands with these additional environment variables, yield their process ids, and stop them at exit."""
    environment = {**service_environment(os.environ), **variables, DIE_WITH_PARENT: str(os.getpid())}
    started = [subprocess.Popen(command, env=environment) for command in commands]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(STOP_S)


def processor_s(pids: Sequence[int]) -> float:
    """Return the processor time that these processes have used so far, user and system, seconds."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(item[11]) + int(item[12]) for item in fields) / os.sysconf("SC_CLK_TCK")


class Inference:
    """A running inference service: waits until it is ready, then reads its metrics page."""

    def __init__(self, status_file: Path) -> None:
        until = time.monotonic() + START_S
        while not (status := read_status(status_file)):
            if time.monotonic() > until:
                raise SystemExit(f"inference was not ready within {START_S:g} s")
            time.sleep(LOOK_EVERY_S)
        self.address = str(status["endpoint"])
        self._page, self._incarnation = str(status["metrics"]), int(status["incarnation"])

    def read(self) -> Mapping[str, float]:
        """Return the samples of its metrics page, name → value. Exits if the service is gone."""
        samples = read_page(self._page, self._incarnation)
        if samples is None:
            raise SystemExit("inference is gone")
        return samples

    def wait_groups(self, number: int) -> None:
        """Wait until `number` groups have a session; exits if that takes longer than START_S."""
        until = time.monotonic() + START_S
        while (found := self.read()["seedbed_sessions"]) < number:
            if time.monotonic() > until:
                raise SystemExit(f"only {found:.0f} of {number} groups came")
            time.sleep(LOOK_EVERY_S)


def measure(inference: Inference, server: Sequence[int], actors: Sequence[int], seconds: float) -> dict[str, float]:
    """Return requests per second, mean lanes of a batch, and both ends' processor time for a request, microseconds."""
    names = ("seedbed_requests_total", "seedbed_batches_total", "seedbed_batch_lanes_total")
    at, before, cpu_s = time.perf_counter(), inference.read(), (processor_s(server), processor_s(actors))
    time.sleep(seconds)
    elapsed, after = time.perf_counter() - at, inference.read()
    requests, batches, lanes = (after[name] - before[name] for name in names)
    return {
        "requests_per_s": requests / elapsed,
        "lanes_per_batch": lanes / batches,
        "inference_cpu_us_per_request": 1e6 * (processor_s(server) - cpu_s[0]) / requests,
        "service_cpu_us_per_request": 1e6 * (processor_s(actors) - cpu_s[1]) / requests,
    }


def make_run(run_dir: Path) -> None:
    """Train a run of one update, with one evaluation episode, with the empty policy, so that there is one to serve."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    words = [str(SERVICE / "experiment.toml"), *EMPTY, f"inference.bind={address}", "--run-dir", str(run_dir)]
    actor = [CORRIDOR, f"actor.upstream={address}"]
    with running([actor, [*actor, "actor.mode=eval", "eval.lanes=1"]], {}):
        subprocess.run([SEEDBED, "train", *words], check=True, stdout=subprocess.DEVNULL)


def main(argv: Sequence[str] | None = None) -> None:
    """Build, make a run with the empty policy, serve it, measure, print."""
    parser = argparse.ArgumentParser(description="Speed of the C++ environment service.")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--groups", type=int, default=32, help="of each process, all outstanding at once")
    parser.add_argument("--lanes", type=int, default=64, help="of each group")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args(argv)
    subprocess.run(["make", "-s", "-C", str(SERVICE)], check=True)
    with tempfile.TemporaryDirectory(prefix="seedbed-cpp-") as folder:
        run, status = Path(folder) / "run", Path(folder) / "status.json"
        make_run(run)
        serve = [SEEDBED, "inference", "--serve", str(run), "inference.bind=tcp://127.0.0.1:0"]
        actor = [CORRIDOR, "actor.mode=play", f"actor.groups={given.groups}", f"actor.lanes={given.lanes}"]
        with running([serve], {"SEEDBED_RUNTIME__STATUS_FILE": str(status)}) as server:
            inference = Inference(status)
            with running([[*actor, f"actor.upstream={inference.address}"]] * given.processes, {}) as actors:
                inference.wait_groups(given.processes * given.groups)
                time.sleep(WARM_UP_S)
                runs = [measure(inference, server, actors, given.seconds) for _ in range(given.repeats)]
    medians = {name: round(statistics.median(run[name] for run in runs), 1) for name in runs[0]}
    steps = [round(run["requests_per_s"] * given.lanes) for run in runs]
    result = {
        "bench": "cpp_service", "machine": machine_label(), "processes": given.processes,
        "groups": given.processes * given.groups, "lanes": given.lanes, "seconds": given.seconds,
        "env_steps_per_s": round(statistics.median(steps)), "env_steps_per_s_of_runs": steps, **medians,
    }  # fmt: skip
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
