"""How fast the policy answers: real learner and inference processes, and clients that never wait.

The environments are played by programs that send the same rows again and again, in mode "play": nothing is trained, so
what is measured is sockets, sessions, batcher and forward passes. Latency is that of a group's STEP until its ACT.
"""

import asyncio
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop
from rich.console import Console

from seedbed.services.tools.cli.bench.transport_peers import ClientReport, drive
from seedbed.services.tools.cli.board import Board
from seedbed.services.tools.cli.experiment import Experiment, find_experiment, load_experiment
from seedbed.services.tools.cli.launcher import View
from seedbed.services.tools.cli.plan import Process
from seedbed.services.tools.cli.scrape import read_status
from seedbed.services.tools.cli.supervisor import Supervisor
from seedbed.services.tools.cli.training import Stop, render_failure, run_experiment
from seedbed.shared.errors import SeedbedError
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.runtime.load_config import load_settings

LEAST_S = 1.0  # of one measurement
GRACE_S = 60.0  # for a client to start and for the first weights


@dataclass(frozen=True, slots=True)
class InferenceScenario:
    """How many groups of how many lanes ask at once, and for what policy."""

    name: str
    experiment: str  # whose environment and network
    groups: int
    lanes: int  # of each group


SCENARIOS = (
    InferenceScenario("lock-step", "cartpole", groups=1, lanes=1),
    InferenceScenario("two groups", "cartpole", groups=2, lanes=128),
    InferenceScenario("two large groups", "cartpole", groups=2, lanes=512),
    InferenceScenario("lock-step, images", "pong", groups=1, lanes=1),
    InferenceScenario("two groups, images", "pong", groups=2, lanes=32),
)


def measure(seconds: float, words: Sequence[str] = ()) -> Iterator[dict[str, str | int | float]]:
    """Every scenario whose environment is installed, sharing the time."""
    scenarios = [item for item in SCENARIOS if item.experiment != "pong" or importlib.util.find_spec("ale_py")]
    share_s = max(LEAST_S, seconds / len(scenarios))
    for name in dict.fromkeys(item.experiment for item in scenarios):
        mine = [item for item in scenarios if item.experiment == name]
        yield from _measure_policy(name, mine, share_s, words)


def _measure_policy(
    name: str, scenarios: Sequence[InferenceScenario], seconds: float, words: Sequence[str]
) -> Iterator[dict[str, str | int | float]]:
    """One policy, served once, asked in several ways."""
    with tempfile.TemporaryDirectory(prefix="seedbed-bench-") as folder:
        alone = ["launch.actors=0", "launch.eval_actors=0", "launch.inference=1", "run.steps=0", "run.seconds=0"]
        run_dir = Path(folder) / "run"
        experiment = load_experiment(find_experiment(name), [*alone, *words], run_dir=run_dir, resume=False)
        clients: list[Clients] = []

        def make_view(_board: Board, stop: Stop) -> View:
            clients.append(Clients(experiment, scenarios, seconds, stop))
            return clients[0]

        try:
            ended = run_experiment(experiment, make_view)
        finally:
            for client in clients:
                client.close()
        if ended.outcome.service:
            Console(stderr=True).print(render_failure(ended, run_dir))
            raise SeedbedError("bench inference: the services failed")
        if clients[0].failure:
            raise SeedbedError(f"bench inference: {clients[0].failure}")
        for scenario, report in zip(scenarios, clients[0].reports, strict=True):
            yield _result(experiment, scenario, report)


class Clients:
    """A view that runs one client process after another against the launched inference, then stops the run."""

    def __init__(
        self, experiment: Experiment, scenarios: Sequence[InferenceScenario], seconds: float, stop: Stop
    ) -> None:
        self.reports: list[ClientReport] = []
        self.failure = ""
        self._experiment, self._waiting, self._seconds, self._stop = experiment, list(scenarios), seconds, stop
        self._client: subprocess.Popen[str] | None = None
        self._deadline = float("inf")

    def happened(self, text: str) -> None:
        """A restart makes the figures worthless: it is told, not hidden."""
        if not self._stop.is_asked:
            Console(stderr=True).print(text, highlight=False, soft_wrap=True)

    def refresh(self, supervisor: Supervisor, now: float) -> None:
        """Start the next client when the former has reported."""
        if self._client is None:
            self._start_next(now)
        elif self._client.poll() is not None:
            output, errors = self._client.communicate()
            if self._client.returncode:
                self._fail(errors.strip() or f"a client ended with {self._client.returncode}")
            else:
                self.reports.append(ClientReport(**json.loads(output)))
                self._client = None
        elif now > self._deadline:
            self._fail("a client did not end in time")

    def close(self) -> None:
        """End a client that still runs."""
        if self._client is not None and self._client.poll() is None:
            self._client.kill()
            self._client.wait()

    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        self._waiting.clear()
        self.close()
        self._client = None

    def _start_next(self, now: float) -> None:
        if not self._waiting:
            self._stop()
            return
        inference = Process(name="inference-0", role="inference", command=())
        address = read_status(inference.status_file(self._experiment.run_dir)).get("endpoint", "")
        if not address:
            return
        scenario = self._waiting.pop(0)
        file = find_experiment(scenario.experiment)
        words = (str(file), str(address), str(scenario.groups), str(scenario.lanes), str(self._seconds))
        self._client = subprocess.Popen(
            [sys.executable, "-P", "-m", "seedbed.services.tools.cli.bench.inference", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._deadline = now + self._seconds + GRACE_S


def _result(experiment: Experiment, scenario: InferenceScenario, report: ClientReport) -> dict[str, str | int | float]:
    requests_per_s = report.requests / report.seconds
    return {
        "scenario": scenario.name,
        "env_id": experiment.settings.env.id,
        "network": experiment.settings.policy.network,
        "groups": scenario.groups,
        "lanes": scenario.lanes,
        "seconds": round(report.seconds, 1),
        "requests_per_s": round(requests_per_s, 1),
        "env_steps_per_s": round(requests_per_s * scenario.lanes, 1),
        "p50_ms": round(1e3 * report.latency_p50_s, 3),
        "p99_ms": round(1e3 * report.latency_p99_s, 3),
    }


def main(argv: Sequence[str]) -> int:
    """A client: `EXPERIMENT ADDRESS GROUPS LANES SECONDS`; the report goes to standard output as JSON."""
    from pydantic import BaseModel

    from seedbed.actor_svc.envs import make_smallest_group

    class Settings(BaseModel):
        env: EnvConfig

    file, address, groups, lanes, seconds = argv
    group = make_smallest_group(load_settings(Settings, Path(file)).env, threads=1)
    group.close()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(drive(address, int(groups), int(lanes), float(seconds), spec=group.spec, start_s=GRACE_S))
    print(json.dumps(asdict(report)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
