"""Several learner ranks in a whole run: kills of each, and a checkpoint that another number of ranks goes on with."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from seedbed.learner_svc.run.checkpoint import list_checkpoints, load
from seedbed.learner_svc.run.history import read_metrics
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.health import STATUS_VARIABLE, check_alive, check_ready
from tests.support.deployment import applied_lanes, wait_until
from tests.support.ranks import free_port

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

    def wait(self, condition, what: str) -> None:
        """Until it holds, while the run goes on."""

        def holds() -> bool:
            assert self._process.poll() is None, self._process.communicate()[0]
            return bool(condition())

        wait_until(holds, what)

    def end(self) -> dict:
        """Wait for the end of the run; its summary."""
        said, _ = self._process.communicate(timeout=120)
        assert self._process.returncode == 0, said
        return json.loads((self.folder / "summary.json").read_text())


def test_ranks_that_are_killed_come_back_and_the_run_reaches_its_end(tmp_path):
    """The chief and another rank, in turn; then the run reaches its end."""
    with Training(tmp_path / "run", "launch.learners=2", "--steps", "60000") as run:
        for name in ("learner-1", "learner"):
            former = run.updates()
            run.wait(
                lambda name=name, former=former: run.updates() > former + 3 and run.status(name).get("pid"), "updates"
            )
            victim = run.status(name)["pid"]
            os.kill(victim, signal.SIGKILL)
            run.wait(lambda name=name, victim=victim: run.status(name).get("pid", victim) != victim, f"{name} is back")
        summary = run.end()
    assert (summary["finished"], summary["reason"]) == (True, "steps")
    assert summary["trained_steps"] >= 60000
    assert summary["restarts"]["learner"] >= 1
    assert summary["restarts"]["learner-1"] >= 1
    rows = read_metrics(tmp_path / "run" / "metrics.csv")
    for rank in (0, 1):
        shares = [row[f"rank_batch_wait_share/{rank}"] for row in rows]
        told = [float(share) for share in shares if share]  # the first row of each life has none
        assert told
        assert all(0 <= share <= 1 for share in told)


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


def test_every_checkpoint_has_the_accounts_of_all_ranks(tmp_path):
    """As they were with its counters: during training, and while the run stands still in its last evaluation."""
    words = ("learner.checkpoint_every_s=0.01", "learner.milestone_steps=2000", "eval.episodes=200")
    with Training(tmp_path / "run", "launch.learners=2", "--steps", "20000", *words) as run:
        run.end()
    checkpoints = [load(file.path) for file in list_checkpoints(tmp_path / "run" / "checkpoints")]
    kinds = [checkpoint.kind for checkpoint in checkpoints]
    assert kinds.count("milestone") > 5
    assert kinds.count("latest") > 1
    for checkpoint in checkpoints:
        updates = checkpoint.meta["run"]["counters"]["updates"]
        assert applied_lanes(checkpoint, 8) == updates * 16 * 2, checkpoint.kind


def test_a_learner_that_waits_for_other_ranks_can_be_stopped(tmp_path):
    """At once, not only after it has given them up."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
    environment |= {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = [f"run.dir={tmp_path / 'run'}", "env.id=CartPole-v1", "learner.bind=tcp://127.0.0.1:0"]
    process = subprocess.Popen([sys.executable, "-m", "seedbed.learner_svc", *words], env=environment)
    try:
        wait_until(lambda: can_connect(port), "it waits for rank 1")
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_a_rank_is_ready_while_it_waits_for_the_chief(tmp_path):
    """Or a StatefulSet, which replaces the chief last, would wait for a rank that waits for the new chief."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
    environment |= {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment |= {STATUS_VARIABLE: str(tmp_path / "status.json")}
    words = ["env.id=CartPole-v1", "learner.bind=tcp://127.0.0.1:0"]
    process = subprocess.Popen([sys.executable, "-m", "seedbed.learner_svc", *words], env=environment)
    try:
        wait_until(lambda: not check_ready(environment), "it is ready")
        assert not check_alive(environment)
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


@contextmanager
def two_ranks(folder, *words):
    """Two ranks of a new run, each with a status file and a file for the cause of its end."""
    common = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
    common |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    words = [f"run.dir={folder / 'run'}", "env.id=CartPole-v1", "learner.bind=tcp://127.0.0.1:0", *words]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "seedbed.learner_svc", *words, f"runtime.status_file={folder / f'{rank}.json'}"],
            env=common | {"RANK": str(rank), "SEEDBED_CAUSE_FILE": str(folder / f"cause-{rank}")},
        )
        for rank in (0, 1)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("asked", [0, 1])
def test_all_ranks_leave_when_one_is_asked_to_stop_and_none_says_that_the_run_is_over(tmp_path, asked):
    """In a container a rank that says so is not started again, and the others would wait for it."""
    with two_ranks(tmp_path) as processes:
        wait_until(lambda: all((tmp_path / f"{rank}.json").exists() for rank in (0, 1)), "both ranks are ready")
        processes[asked].terminate()
        assert [process.wait(20) for process in processes] == [0, 0]
        assert not list(tmp_path.glob("cause-*"))


def test_ranks_that_would_be_dialled_at_one_address_end_as_wrongly_configured(tmp_path):
    """Both of them, before they wait for unrolls that would all go to one."""
    with two_ranks(tmp_path, "learner.advertise=tcp://127.0.0.1:5556") as processes:
        assert [process.wait(60) for process in processes] == [ConfigError.exit_code] * 2
    assert "learner.advertise" in (tmp_path / "cause-1").read_text()


def can_connect(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0
