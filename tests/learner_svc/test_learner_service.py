"""The learner as a process: trains, is killed, resumes, ends, and says so when started again."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from seedbed.learner_svc.run.checkpoint import list_checkpoints, load, load_latest
from seedbed.learner_svc.run.history import read_metrics
from seedbed.shared.net.keyring import Keyring
from seedbed.shared.net.keys import dial_keys
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.roles import Role
from seedbed.shared.protocol.messages import unpack_version
from seedbed.shared.protocol.rows import EnvSpec
from tests.support.preloaded import ForkedProcess, run_program
from tests.support.scripted_producer import LANES, RETURN, ScriptedProducer, T, a_spec

STEPS = 1536


class LearnerProcess:
    """`python -m seedbed.learner_svc` on a run folder of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.status = folder / "status.json"
        self.status.unlink(missing_ok=True)
        self._output = folder / "output"
        self._output.unlink(missing_ok=True)
        chosen = [
            f"run.dir={folder / 'run'}", f"run.steps={STEPS}", "env.id=CartPole-v1",
            "learner.bind=tcp://127.0.0.1:0", "learner.batch=4", f"learner.unroll_length={T}", "policy.hidden=[8]",
            "learner.checkpoint_every_s=0.2", "learner.metrics_every_s=0.2", "learner.tensorboard=false",
            "runtime.metrics_address=", "runtime.threads=1", f"runtime.status_file={self.status}", *words,
        ]  # fmt: skip
        self.process = ForkedProcess(
            run_program, "seedbed.learner_svc", chosen, environment=os.environ, output=self._output
        )

    async def wait_ready(self) -> str:
        """Its address."""
        async with asyncio.timeout(60):
            while not self.status.exists():
                assert self.process.poll() is None, self.said()
                await asyncio.sleep(0.02)
        return str(json.loads(self.status.read_text())["endpoint"])

    def said(self) -> str:
        """What it has printed."""
        return self._output.read_text()

    async def wait_ended(self) -> int:
        """Its exit code."""
        return await asyncio.to_thread(self.process.wait, 60)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


async def train_until_killed(folder: Path) -> int:
    """A first life that trains, saves and dies; its newest version."""
    learner = LearnerProcess(folder)
    try:
        with Reactor() as reactor:
            producer = ScriptedProducer(reactor, await learner.wait_ready(), a_spec())
            saved = folder / "run" / "checkpoints"
            await producer.play(lambda: producer.trained_steps > 100 and any(saved.glob("0*.json")))
            learner.process.send_signal(signal.SIGKILL)
            await learner.wait_ended()
            producer.dealer.close()
            return producer.versions[-1]
    finally:
        learner.close()


async def train_to_the_end(folder: Path) -> list[int]:
    """A second life that resumes and finishes; the versions it published."""
    learner = LearnerProcess(folder)
    try:
        with Reactor() as reactor:
            producer = ScriptedProducer(reactor, await learner.wait_ready(), a_spec())
            await producer.play(lambda: producer.is_finished)
            producer.leave()
            assert await learner.wait_ended() == 0, learner.said()
            return producer.versions
    finally:
        learner.close()


async def greet_a_finished_run(folder: Path) -> None:
    """Started on it, the learner tells a producer so, and ends once nobody else comes."""
    learner = LearnerProcess(folder, "learner.finished_s=16")
    try:
        with Reactor() as reactor:
            producer = ScriptedProducer(reactor, await learner.wait_ready(), a_spec())
            await producer.play(lambda: producer.is_finished)
            producer.dealer.close()
            assert await learner.wait_ended() == 0
    finally:
        learner.close()


def test_a_run_survives_its_learner_and_ends(tmp_path: Path) -> None:
    """Killed in mid-run it resumes from its checkpoint under a higher epoch, and ends with evaluation and summary."""
    before = asyncio.run(train_until_killed(tmp_path))
    versions = asyncio.run(train_to_the_end(tmp_path))
    assert unpack_version(before)[0] == 1
    assert {unpack_version(version)[0] for version in versions} == {2}
    assert versions == sorted(versions)
    assert unpack_version(versions[0])[1] > 0, "it began from scratch"
    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["finished"]
    assert (summary["reason"], summary["restarts"]["learner"]) == ("steps", 1)
    assert summary["trained_steps"] >= STEPS
    assert summary["eval_return_mean"] == RETURN
    assert summary["eval_version"] == "{}:{}".format(*unpack_version(versions[-1]))
    rows = read_metrics(run / "metrics.csv")
    updates = [int(row["updates"]) for row in rows]
    assert updates == sorted(updates)
    assert (run / "curves.png").exists()
    assert {path.name.split("-")[1] for path in (run / "checkpoints").glob("*.json")} == {"latest", "best"}
    again = LearnerProcess(tmp_path)
    assert again.process.wait(60) == 0
    assert "run_already_finished" in again.said()
    asyncio.run(greet_a_finished_run(tmp_path))


class SlowlyEvaluating(ScriptedProducer):
    """Plays its first evaluation until a hundred updates more were trained."""

    def _push_episodes(self, count: int, mode: str, evaluation: int, steps: int) -> None:
        if mode == "eval" and unpack_version(self.versions[-1])[1] < unpack_version(self._wanted_version)[1] + 100:
            self.loop.call_later(0.05, self._push_episodes, count, mode, evaluation, steps)
        else:
            super()._push_episodes(count, mode, evaluation, steps)


async def kill_after_a_best(folder: Path, words: Sequence[str]) -> Path:
    """A life that is killed as soon as a best checkpoint is there, which is that one."""
    learner = LearnerProcess(folder, *words)
    try:
        with Reactor() as reactor:
            producer = SlowlyEvaluating(reactor, await learner.wait_ready(), a_spec())
            saved = folder / "run" / "checkpoints"
            before = set(saved.glob("[0-9]*-best-*.json"))
            await producer.play(lambda: bool(set(saved.glob("[0-9]*-best-*.json")) - before))
            learner.process.send_signal(signal.SIGKILL)
            await learner.wait_ended()
            producer.dealer.close()
            (best,) = set(saved.glob("[0-9]*-best-*.json")) - before
            return best
    finally:
        learner.close()


def newest_update(folder: Path) -> int:
    """Of the weights in all checkpoints that are no best."""
    return max(file.step for file in list_checkpoints(folder) if file.kind != "best")


@pytest.mark.parametrize("lives", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_kill_right_after_a_best_costs_no_update_that_was_saved(tmp_path: Path, lives: int) -> None:
    """The next life goes on from the newest weights; counters and weights agree in every checkpoint, the best too."""
    saved = tmp_path / "run" / "checkpoints"
    words = ("run.steps=0", "eval.every_s=0.5", "eval.max_share=1", "learner.checkpoint_every_s=0.5")
    for life in range(lives):
        before = newest_update(saved) if life else 0
        # Each evaluation tells the same return: without the former best it is one again.
        best = load(asyncio.run(kill_after_a_best(tmp_path, words)))
        assert best.step > before, "it began from older weights"
        assert unpack_version(best.meta["eval_version"])[1] == best.step
        assert best.meta["eval_return_mean"] == RETURN
        for file in list_checkpoints(saved):
            assert load(file.path).meta["run"]["counters"]["updates"] == file.step
        for path in saved.glob("[0-9]*-best-*"):
            path.unlink()
        resumed = load_latest(saved)
        assert resumed is not None
        assert resumed.step == newest_update(saved)


async def stop_in_mid_run(folder: Path) -> tuple[int, int]:
    learner = LearnerProcess(folder, "run.steps=0")
    try:
        with Reactor() as reactor:
            producer = ScriptedProducer(reactor, await learner.wait_ready(), a_spec())
            await producer.play(lambda: producer.trained_steps > 100)
            learner.process.send_signal(signal.SIGTERM)
            code = await learner.wait_ended()
            producer.dealer.close()
            return code, unpack_version(producer.versions[-1])[1]
    finally:
        learner.close()


def test_a_signal_saves_and_ends(tmp_path: Path) -> None:
    """SIGTERM: the newest weights are in the last checkpoint, and the summary says that the run is not finished."""
    code, step = asyncio.run(stop_in_mid_run(tmp_path))
    assert code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert not summary["finished"]
    newest = max((tmp_path / "run" / "checkpoints").glob("*.json"))
    saved = json.loads(newest.read_text())["step"]
    assert saved == summary["updates"]
    assert saved >= step


def test_a_refused_resume_changes_nothing(tmp_path: Path) -> None:
    """Another network than the checkpoint's is a wrong configuration, and the run keeps its own."""
    asyncio.run(stop_in_mid_run(tmp_path))
    config = (tmp_path / "run" / "config.toml").read_text()
    other = LearnerProcess(tmp_path, "policy.hidden=[9]")
    assert other.process.wait(60) == 78
    assert "policy.hidden is [9] here and [8] there" in other.said()
    assert (tmp_path / "run" / "config.toml").read_text() == config


async def offer_a_policy_that_is_too_large(folder: Path) -> tuple[int, str]:
    learner = LearnerProcess(folder, "learner.max_frame_bytes=4096", "policy.hidden=[64,64]")
    try:
        with Reactor() as reactor:
            producer = ScriptedProducer(reactor, await learner.wait_ready(), a_spec())
            await producer.play(lambda: learner.process.poll() is not None)
            producer.dealer.close()
            return await learner.wait_ended(), learner.said()
    finally:
        learner.close()


def test_weights_that_fit_no_message_are_told_before_any_training(tmp_path: Path) -> None:
    """A wrong configuration, with both sizes, instead of connections that break for ever."""
    code, output = asyncio.run(offer_a_policy_that_is_too_large(tmp_path))
    assert code == 78
    assert re.search(r"learner.max_frame_bytes = 4096: set it to at least \d+", output)


async def offer_another_environment(folder: Path) -> list[str]:
    learner = LearnerProcess(folder)
    try:
        with Reactor() as reactor:
            producer = ScriptedProducer(reactor, await learner.wait_ready(), a_spec("Other-v0"))
            await producer.play(lambda: bool(producer.refusals))
            producer.dealer.close()
            return producer.refusals
    finally:
        learner.close()


@pytest.mark.slow
def test_another_environment_is_refused(tmp_path: Path) -> None:
    """By name, before any policy is built."""
    refusals = asyncio.run(offer_another_environment(tmp_path))
    assert "Other-v0" in refusals[0]


async def train_until_revoked(folder: Path) -> list[str]:
    """An inference with a key trains, is revoked, and its successor with a new key trains on; the refusals heard."""
    ring = Keyring(folder / "keys")
    ring.init()
    learner = LearnerProcess(folder, "run.steps=0", f"runtime.keys={folder / 'keys'}")
    try:
        with Reactor() as reactor:
            address = await learner.wait_ready()
            keys = dial_keys(folder / "keys", Role.INFERENCE, Role.LEARNER)
            producer = ScriptedProducer(reactor, address, a_spec(), keys)
            await producer.play(lambda: producer.trained_steps > 0)
            ring.revoke("main")
            await producer.play(lambda: bool(producer.refusals))
            producer.dealer.close()
            ring.new(Role.INFERENCE, "successor")
            keys = dial_keys(folder / "keys", Role.INFERENCE, Role.LEARNER)
            successor = ScriptedProducer(reactor, address, a_spec(), keys)
            trained = producer.trained_steps
            await successor.play(lambda: successor.trained_steps > trained)
            successor.leave()
            return producer.refusals
    finally:
        learner.close()


def test_a_revoked_inference_is_told_and_another_takes_its_place(tmp_path: Path) -> None:
    """The learner goes on; the key of the same role that replaces it needs no restart."""
    refusals = asyncio.run(train_until_revoked(tmp_path))
    assert refusals == ["revoked"]


class NotingProducer(ScriptedProducer):
    """Notes the update of its newest weights whenever it has credit for an unroll."""

    def __init__(self, reactor: Reactor, address: str, spec: EnvSpec) -> None:
        super().__init__(reactor, address, spec, is_lockstep=True)
        self.noted: list[int] = []

    def _push(self) -> None:
        self.noted.append(unpack_version(self.versions[-1])[1])
        super()._push()


async def train_deterministically(folder: Path) -> list[int]:
    """A run whose batches are of four lanes, and its unrolls of six; what its producer noted."""
    learner = LearnerProcess(folder, "run.deterministic=true", "run.steps=480")
    try:
        with Reactor() as reactor:
            producer = NotingProducer(reactor, await learner.wait_ready(), a_spec())
            await producer.play(lambda: producer.is_finished)
            producer.leave()
            assert await learner.wait_ended() == 0
            return producer.noted
    finally:
        learner.close()


def test_a_deterministic_learner_grants_credit_once_its_updates_are_done(tmp_path: Path) -> None:
    """Every unroll is acted by weights that its number decides: those of all full batches before it."""
    noted = asyncio.run(train_deterministically(tmp_path))
    assert noted == [number * LANES // 4 for number in range(480 // (T * LANES))]
    again = LearnerProcess(tmp_path, "run.deterministic=true", "run.steps=960")
    assert again.process.wait(60) == 78
    assert "had a learner before" in again.said()
