"""`seedbed inference --serve RUN` as a process: a checkpoint for actors in eval and play mode, without a learner."""

import signal
import subprocess
import sys

import pytest

from seedbed.actor_svc.envs import make_group
from seedbed.learner_svc.run.checkpoint import save
from seedbed.learner_svc.run.folder import to_toml
from seedbed.services.tools.cli.launcher import Reservation
from seedbed.shared.net.keyring import Keyring
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import FlatParameters, make_manifest
from seedbed.shared.runtime.config import EnvConfig
from tests.support.deployment import PATIENCE, ServiceProcess, at_least, living, wait_until
from tests.support.experience import RECORDING

RUN_ID = "a-finished-run"


class Serving(ServiceProcess):
    """`seedbed inference --serve`."""

    def program(self) -> list[str]:
        return [self.module, "inference"]


def make_run(folder, env: EnvConfig):
    """A run with a newest checkpoint of step 9 and a best one of step 7."""
    folder.mkdir()
    group = make_group(env, 1)
    group.close()
    policy = Policy(group.spec, PolicyConfig(hidden=[8], lstm=4))
    meta = {"manifest": make_manifest(policy, RECORDING).to_json(), "run_id": RUN_ID}
    arrays = {"policy.flat": FlatParameters(policy).flat.numpy()}
    save(folder / "checkpoints", step=7, arrays=arrays, meta=meta, kind="best")
    save(folder / "checkpoints", step=9, arrays=arrays, meta=meta, kind="latest")
    sections = {"run": {"name": "small"}, "env": env.model_dump(mode="json"), "eval": {"greedy": True}}
    (folder / "config.toml").write_text(to_toml(sections))
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A served run of CartPole, with keys; its address, and what makes actors for it."""
    folder = tmp_path_factory.mktemp("serving")
    run = make_run(folder / "run", EnvConfig(id="CartPole-v1"))
    keys = f"runtime.keys={folder / 'keys'}"
    Keyring(folder / "keys").init()
    reservation = Reservation()
    made = []

    def actor(name: str, *words: str) -> ServiceProcess:
        upstream = f"actor.upstream={reservation.address}"
        made.append(ServiceProcess("seedbed.actor_svc", name, folder, [upstream, keys, *words]).start())
        return made[-1]

    words = ["--serve", str(run), "--sample", "--which", "best", f"inference.bind={reservation.address}", keys]
    service = Serving("seedbed.services.tools.cli.app", "served", folder, words).start()
    try:
        yield service, actor
    finally:
        for process in (*made, service):
            process.close()
        reservation.close()
    assert living(folder) == []


def test_actors_play_with_a_finished_policy(served):
    """In eval and play mode, at once, with the weights that it says it serves."""
    service, actor = served
    service.wait_ready()
    (told,) = wait_until(lambda: service.events("policy_served"), "the policy is loaded")
    assert told["checkpoint"].startswith("best of update 7, ")
    assert told["greedy"] is False
    for mode in ("eval", "play"):
        player = actor(mode, "env.id=CartPole-v1", f"actor.mode={mode}", "eval.lanes=3")
        wait_until(lambda player=player: at_least(player.metric("actor_episodes_total"), 3), f"episodes of {mode}")
        assert player.events("session_welcomed")[0]["run_id"] == RUN_ID
    wait_until(lambda: service.metric("served_episodes_total") >= 6, "it counts them")
    assert 1.0 <= service.metric("served_return_mean") <= 500.0
    wait_until(lambda: service.events("episodes_played"), "it says how they do")
    assert not service.events("learner_awaited")


def test_training_actors_are_sent_away(served):
    """With what to do instead; no restart would help."""
    service, actor = served
    service.wait_ready()
    trainer = actor("trainer", "env.id=CartPole-v1")
    assert trainer.wait_ended() == 78
    assert "serves a finished policy and does not train" in trainer.errors()
    assert "actor.mode=eval" in trainer.errors()


def test_another_environment_is_refused_with_leaf_and_shapes(served):
    """Before its first step."""
    service, actor = served
    service.wait_ready()
    wait_until(lambda: service.events("policy_served"), "the policy is loaded")
    other = actor("other", "env.id=Acrobot-v1", "actor.mode=eval")
    assert other.wait_ended() == 78
    assert "environment id" in other.errors()
    assert "CartPole-v1" in other.errors()


def test_it_leaves_on_sigterm_and_players_wait_for_its_successor(served):
    """With exit code 0; they go on where they were."""
    service, actor = served
    service.wait_ready()
    player = actor("patient", "env.id=CartPole-v1", "actor.mode=play")
    wait_until(lambda: at_least(player.metric("actor_steps_total"), 10), "it plays")
    service.signal(signal.SIGTERM)
    assert service.wait_ended() == 0
    service.start().wait_ready()
    steps = player.metric("actor_steps_total")
    wait_until(lambda: at_least(player.metric("actor_steps_total"), steps + 10), "it goes on")
    assert player.metric("actor_aborted_total") == 0


def test_a_run_without_a_checkpoint_is_told_so(tmp_path):
    """Nothing starts."""
    (tmp_path / "config.toml").write_text('[env]\nid = "CartPole-v1"\n')
    command = [
        sys.executable,
        "-m",
        "seedbed.services.tools.cli.app",
        "inference",
        "--serve",
        str(tmp_path),
        "--which",
        "best",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100 * PATIENCE)
    assert ended.returncode == 78
    assert "no best checkpoint yet" in ended.stderr
