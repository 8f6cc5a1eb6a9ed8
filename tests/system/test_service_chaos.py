"""Eight environment services, killed, stopped and started again at random while one run trains to its target."""

import json
import os
import random
import signal

import pytest

from tests.support.deployment import Deployment, applied_lanes, living, wait_until

SEED = int(os.environ.get("CHAOS_SEED", "1"))
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "12"))
SERVICES, LANES, EVAL_LANES, BATCH = 8, 8, 4, 32
TARGET = 300.0
DEADLINE_S = 240.0  # for what takes a few seconds on an idle machine
MAX_GROWTH_MB = 40.0
WORDS = (
    f"run.until_return={TARGET}", "learner.unroll_length=16", f"learner.batch={BATCH}", "learner.lease_s=10",
    "inference.lease_s=10", "actor.max_stall_s=10", "algorithm.reward_scale=0.1", "algorithm.learning_rate=2e-3",
    "policy.hidden=[32, 32]", "eval.episodes=20",
)  # fmt: skip


@pytest.mark.chaos
@pytest.mark.timeout(3000)
def test_a_run_survives_its_environment_services(tmp_path, capsys):
    """No lane leaks, nothing is applied twice, and every death is in the metrics by reason and in the summary."""
    rng = random.Random(SEED)
    deaths = {signal.SIGKILL: 0, signal.SIGTERM: 0}
    env = ("env.id=tests.support.gated_env:make", f'env.kwargs={{folder = "{tmp_path}"}}')
    with Deployment(tmp_path, *WORDS, env=env) as deployment:
        inference = deployment.inference
        judge = deployment.add_actor("judge", "actor.mode=eval", "actor.groups=1")
        services = [
            deployment.add_service(
                f"service-{number}", "seedbed.services.classic_control", *env, "actor.groups=1", f"actor.lanes={LANES}"
            )
            for number in range(SERVICES)
        ]
        deployment.start(DEADLINE_S)
        restarts = 0
        wait_lanes(deployment, services, restarts)
        deployment.wait_trained(2000, DEADLINE_S)
        files, memory_mb = inference.process.num_fds(), inference.rss_mb()
        for _ in range(ROUNDS):
            for victim in rng.sample(services, rng.randint(1, 3)):
                number = rng.choice(list(deaths))
                victim.signal(number)
                assert victim.wait_ended(DEADLINE_S) == (-signal.SIGKILL if number == signal.SIGKILL else 0)
                deaths[number] += 1
                if rng.random() < 0.5:
                    victim.start()
                    restarts += 1
            wait_lanes(deployment, services, restarts)
            deployment.wait_trained(500, DEADLINE_S)
            for service in services:
                if not service.is_running:
                    service.start()
                    restarts += 1
            wait_lanes(deployment, services, restarts)
        assert inference.metric("sessions") == SERVICES + 1
        ended = inference.by_label("groups_ended_total")
        assert ended == {"closed": deaths[signal.SIGKILL], "stopped": deaths[signal.SIGTERM]}
        assert inference.metric("actor_restarts_total") == sum(deaths.values())
        wait_until(lambda: inference.process.num_fds() <= files, "the connections of the dead are closed")
        assert inference.rss_mb() < memory_mb + MAX_GROWTH_MB
        (tmp_path / "gate").touch()
        for service in (deployment.learner, inference, judge, *services):
            assert service.wait_ended(600) == 0, service.errors()
        summary, final = deployment.summary(), deployment.checkpoint()
    with capsys.disabled():
        said = {number.name: count for number, count in deaths.items()}
        print("\n" + json.dumps({"seed": SEED, "deaths": said, "eval_return_mean": summary["eval_return_mean"]}))
    assert summary["finished"]
    assert summary["eval_return_mean"] >= TARGET
    assert summary["restarts"] == {"learner": 0, "inference": 0, "actors": sum(deaths.values())}
    assert final is not None
    used, updates = applied_lanes(final, LANES), final.meta["run"]["counters"]["updates"]
    assert updates * BATCH <= used, f"{updates * BATCH - used} lane-unrolls were applied twice"
    assert summary["dropped_unrolls"]["duplicate"] == 0
    assert living(tmp_path) == []


def wait_lanes(deployment, services, restarts):
    """Until each life has its session, and exactly the living services' lanes are in use, beside the evaluation's.

    The lanes alone may be those of a dead one's, whose next life is not there yet.
    """
    alive = sum(service.is_running for service in services)
    metric = deployment.inference.metric
    wait_until(lambda: metric("actor_restarts_total") == restarts, "every life is in", DEADLINE_S)
    deployment.wait_lanes(LANES * alive + EVAL_LANES, DEADLINE_S)
