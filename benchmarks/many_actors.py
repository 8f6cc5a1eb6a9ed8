"""What a connection costs inference: 10, 100 and 1,000 actors of one lane send the same number of STEPs a second.

    .venv/bin/python benchmarks/many_actors.py                            # some eight minutes
    .venv/bin/python benchmarks/many_actors.py --connections 1000 --rounds 1

Learner and inference are real processes, and so is each connection: DEALER, HELLO, PING, STEP. A few processes hold all
of them. The environment is CartPole, whose rows never change. Inference has half of the processors and everything else
the other half, so that they do not compete for one; a single processor they share.

Prints one JSON object for each measurement, then one for each number of connections with the medians:

- `cpu_us_per_step`: processor time of the inference process, user and system, for each STEP.
- `kib_per_connection`: growth of its resident memory, from no connection to all, for each connection. Memory that it
  needs anyway (for larger batches, say) is part of it, so that only the figure for many connections means much.
- `served_s`: time from the start of inference after kill -9 until every connection has got an ACT of the new process;
  `ready_s` is the part of it until inference was ready for the first.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, cast

import psutil
import uvloop

from seedbed.actor_svc.envs import make_group
from seedbed.services.tools.cli.bench.transport_peers import Client
from seedbed.services.tools.cli.doctor import machine_label
from seedbed.services.tools.cli.scrape import read_page, read_status
from seedbed.shared.figures.inference import BATCHES, REQUESTS
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.runtime.config import EnvConfig

EXPERIMENT = "compose/experiments/cartpole.toml"
LEARNER_WORDS = (
    "run.steps=0", "run.until_return=1e30", "learner.batch=64", "learner.max_policy_lag=100000",
    "learner.tensorboard=false",
)  # fmt: skip
START_S, SERVED_S, SETTLE_S = 60.0, 60.0, 4.0
REPORT_S = 0.1  # between two reports of a client process


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one number of connections cost."""

    connections: int
    steps_per_s: float
    steps_per_batch: float
    cpu_us_per_step: float
    kib_per_connection: float
    served_s: float
    ready_s: float


class Clients:
    """Processes that hold `connections` connections together. A context manager: ends them."""

    def __init__(self, address: str, connections: int, processes: int, steps_per_s: float) -> None:
        self._served: dict[int, dict[str, int]] = {}  # of each process: server_epoch → connections served by it
        self._children = []
        for number in range(min(processes, connections)):
            share = connections // processes + (number < connections % processes)
            words = [address, str(share), str(connections / steps_per_s)]
            command = [sys.executable, __file__, "--client", *words]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._children.append(child)
            threading.Thread(target=self._listen, args=(number, child), daemon=True).start()

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.kill()
            child.communicate()

    def served_by(self, epoch: int) -> int:
        """Return how many connections got their newest ACT from the process with this `server_epoch`."""
        return sum(served.get(str(epoch), 0) for served in list(self._served.values()))

    def _listen(self, number: int, child: "subprocess.Popen[str]") -> None:
        """Keep the newest report of a process. Runs in a thread for each."""
        with contextlib.suppress(ValueError):  # closed
            for line in cast("IO[str]", child.stdout):
                self._served[number] = json.loads(line)


class Services:
    """The learner and one inference of a run in a folder. A context manager: ends them."""

    def __init__(self, folder: Path, words: Sequence[str], processors: Sequence[int]) -> None:
        self._folder, self._words = folder, words
        self._processors = processors  # of inference
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        run = (f"run.dir={folder}/run", *LEARNER_WORDS)
        self._learner = self._start("learner", EXPERIMENT, "learner.bind=tcp://127.0.0.1:0", *run)
        self._bind = "tcp://127.0.0.1:0"
        self.inference: dict[str, object] = {}  # its status

    def __enter__(self) -> "Services":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    @property
    def address(self) -> str:
        """The address at which inference listens."""
        return str(self.inference["endpoint"])

    @property
    def process(self) -> psutil.Process:
        """The inference process, to read its processor time and memory."""
        return psutil.Process(int(str(self.inference["pid"])))

    def start_inference(self) -> None:
        """Start inference, at the address where it was before if it was, and wait until it is ready."""
        upstream = f'inference.upstream=["{self._learner["endpoint"]}"]'
        self.inference = self._start("inference", EXPERIMENT, f"inference.bind={self._bind}", upstream, *self._words)
        self._bind = self.address

    def kill_inference(self) -> None:
        """End inference as a crash would."""
        self._processes["inference"].send_signal(signal.SIGKILL)
        self._processes["inference"].wait()

    def metric(self, sample: str) -> float:
        """Return a sample of inference's metrics."""
        for _ in range(10):
            if page := read_page(str(self.inference["metrics"])):
                return page[sample]
        raise SystemExit("inference's metrics page does not answer")

    def _start(self, name: str, *words: str) -> dict[str, object]:
        """Start a service, wait until it is ready, and return its status. Exits with its log if it does not start."""
        status = self._folder / f"{name}.json"
        status.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", f"seedbed.{name}_svc", *words, f"runtime.status_file={status}"]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)
        if name == "inference":
            os.sched_setaffinity(self._processes[name].pid, self._processors)
        deadline = time.monotonic() + START_S
        while not (found := read_status(status)):
            if self._processes[name].poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{name} did not start:\n{(self._folder / f'{name}.log').read_text()[-3000:]}")
            time.sleep(0.02)
        return dict(found)


def measure(services: Services, connections: int, chosen: argparse.Namespace) -> Measurement:
    """Start a fresh inference, connect, let it serve for a while, then kill it and wait until all are served again."""
    services.start_inference()
    try:
        time.sleep(SETTLE_S)  # it gets weights when the first environment comes
        with Clients(services.address, 1, 1, 1.0) as first:
            _wait_served(first, services, 1)
            resident = services.process.memory_info().rss
        with Clients(services.address, connections, chosen.processes, chosen.steps_per_s) as clients:
            _wait_served(clients, services, connections)
            time.sleep(SETTLE_S)
            began, used = time.monotonic(), _processor_s(services.process)
            steps, batches = services.metric(REQUESTS.sample), services.metric(BATCHES.sample)
            time.sleep(chosen.seconds)
            steps, batches = services.metric(REQUESTS.sample) - steps, services.metric(BATCHES.sample) - batches
            used, elapsed = _processor_s(services.process) - used, time.monotonic() - began
            grown = services.process.memory_info().rss - resident
            services.kill_inference()
            began = time.monotonic()
            services.start_inference()
            ready_s = time.monotonic() - began
            _wait_served(clients, services, connections)
            served_s = time.monotonic() - began
    finally:
        services.kill_inference()
    return Measurement(
        connections=connections,
        steps_per_s=round(steps / elapsed, 1),
        steps_per_batch=round(steps / batches, 2),
        cpu_us_per_step=round(1e6 * used / steps, 1),
        kib_per_connection=round(grown / 1024 / connections, 1),
        served_s=round(served_s, 2),
        ready_s=round(ready_s, 2),
    )


def _wait_served(clients: Clients, services: Services, connections: int) -> None:
    """Wait until every connection has got an ACT from the present inference process."""
    deadline = time.monotonic() + SERVED_S
    epoch = int(str(services.inference["incarnation"]))
    while (served := clients.served_by(epoch)) < connections:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {served} of {connections} connections were served within {SERVED_S:g} s")
        time.sleep(0.02)


def _processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def hold(address: str, connections: int, period_s: float) -> None:
    """Hold connections of one lane, each with a STEP every `period_s`, and report until standard input ends."""
    group = make_group(EnvConfig(id="CartPole-v1"), 1)
    group.close()
    ended = asyncio.Event()
    with Reactor() as reactor:
        reactor.loop.add_reader(sys.stdin.fileno(), ended.set)
        clients = [
            Client(reactor, address, 1, 1, group.spec, mode="train", period_s=period_s) for _ in range(connections)
        ]
        beats = [asyncio.create_task(client.beat()) for client in clients]
        while not ended.is_set():
            for client in clients:
                client.latencies_s.clear()
            print(json.dumps(Counter(epoch for client in clients for epoch in client.served_by if epoch)), flush=True)
            await asyncio.sleep(REPORT_S)
        for beat in beats:
            beat.cancel()


def main() -> None:
    """Measure every number of connections in turn, in alternating order, and print results and medians as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="section.key=value", help="settings of inference")
    parser.add_argument("--connections", default="10,100,1000", help="numbers of connections, with commas between")
    parser.add_argument("--steps-per-s", type=float, default=2000.0, help="STEPs of all connections together")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each number is measured")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each number")
    parser.add_argument("--processes", type=int, default=4, help="that hold the connections")
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)  # this program as one of these processes
    chosen = parser.parse_intermixed_args()
    if chosen.client:
        address, connections, period_s = chosen.client
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(hold(address, int(connections), float(period_s)))
        return
    results: list[Measurement] = []
    machine, processors = machine_label(), sorted(os.sched_getaffinity(0))
    half = len(processors) // 2
    os.sched_setaffinity(0, processors[half:])  # the processes that it starts inherit this
    with (
        tempfile.TemporaryDirectory(prefix="seedbed-many-") as folder,
        Services(Path(folder), chosen.words, processors[:half] or processors) as services,
    ):
        for connections in _alternating([int(number) for number in chosen.connections.split(",")], chosen.rounds):
            results.append(measure(services, connections, chosen))
            print(json.dumps({"bench": "many_actors", "machine": machine, **asdict(results[-1])}), flush=True)
    for connections in dict.fromkeys(result.connections for result in results):
        mine = [asdict(result) for result in results if result.connections == connections]
        medians = {name: round(statistics.median(result[name] for result in mine), 2) for name in mine[0]}
        print(json.dumps({"bench": "many_actors", "median_of": len(mine), **medians}))


def _alternating(numbers: Sequence[int], rounds: int) -> Iterator[int]:
    """Yield the numbers once for each round, every other round in reverse."""
    for turn in range(rounds):
        yield from numbers if turn % 2 == 0 else reversed(numbers)


if __name__ == "__main__":
    main()
