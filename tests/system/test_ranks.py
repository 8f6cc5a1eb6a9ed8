"""Several learner ranks in a whole run: kills of each, and a checkpoint that another number of ranks goes on with."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from seedbed.learner_svc.run.history import read_metrics

pytestmark = pytest.mark.timeout(300)
WORDS = (
    "actor.lanes=8", "learner.unroll_length=8", "learner.batch=16", "learner.max_policy_lag=1000",
    "learner.metrics_every_s=0.2", "learner.tensorboard=false", "learner.precision=fp32", "policy.hidden=[16]",
    "learner.checkpoint_every_s=0.5", "eval.episodes=4", "eval.lanes=4", "eval.every_s=0", "run.until_return=1e30",
    "launch.video=false",
)  # fmt: skip


class Training:
    """A run by `seedbed train`; a context manager that leaves nothing running."""

    def __init__(self, folder, *words: str) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "seedbed.services.tools.cli.app", "train", "cartpole", "--run-dir"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
        self._process = subprocess.Popen(
            [*command, str(folder), *words, *WORDS], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def status(self, name: str) -> dict:
        """What a service's status file says; empty while it is not ready."""
        try:
            return json.loads((self.folder / "services" / f"{name}.json").read_text())
        except FileNotFoundError:
            return {}

    def updates(self) -> int:
        """How many updates the newest row tells."""
        try:
            rows = read_metrics(self.folder / "metrics.csv")
        except (OSError, ValueError):
            return 0
        return int(float(rows[-1]["updates"])) if rows else 0

    def wait(self, condition) -> None:
        """Until it holds, while the run goes on."""
        while not condition():
            assert self._process.poll() is None, self._process.communicate()[0]
            time.sleep(0.05)

    def end(self) -> dict:
        """Wait for the end of the run; its summary."""
        said, _ = self._process.communicate(timeout=120)
        assert self._process.returncode == 0, said
        return json.loads((self.folder / "summary.json").read_text())


def test_ranks_that_are_killed_come_back_and_train_nothing_twice(tmp_path):
    """The chief and another rank, in turn; then the run reaches its end."""
    with Training(tmp_path / "run", "launch.learners=2", "--steps", "60000") as run:
        for name in ("learner-1", "learner"):
            former = run.updates()
            run.wait(lambda name=name, former=former: run.updates() > former + 3 and run.status(name).get("pid"))
            victim = run.status(name)["pid"]
            os.kill(victim, signal.SIGKILL)
            run.wait(lambda name=name, victim=victim: run.status(name).get("pid", victim) != victim)
        summary = run.end()
    assert (summary["finished"], summary["reason"]) == (True, "steps")
    assert 60000 <= summary["trained_steps"] <= summary["env_steps"]
    assert summary["restarts"]["learner"] >= 1
    assert summary["restarts"]["learner-1"] >= 1


def test_another_number_of_ranks_goes_on_with_a_checkpoint(tmp_path):
    """One rank after two, then two again; the counters go on."""
    folder, trained = tmp_path / "run", 0
    for number, steps in ((2, 4000), (1, 8000), (2, 12000)):
        words = ["--resume"] if trained else []
        with Training(folder, *words, f"launch.learners={number}", "--steps", str(steps)) as run:
            summary = run.end()
        assert trained < summary["trained_steps"] >= steps
        assert summary["lost_epoch_steps"] == 0
        trained = summary["trained_steps"]
