"""Replicas of inference behind one name: spread, scaled, restarted in turn, moved; with keys on every link.

Each actor has two groups of 6 lanes.
"""

import os
import signal
import time

import pytest

from seedbed.learner_svc.run.checkpoint import load_latest
from seedbed.services.tools.cli.plan import usable_cores
from tests.support.deployment import BATCH, PATIENCE, applied_lanes, living, wait_until
from tests.support.replicas import (
    ACTOR_LANES,
    GROUP_LANES,
    HOST_A,
    HOST_B,
    HOST_C,
    INFERENCE,
    LEARNER,
    PATIENCE_S,
    NamedDeployment,
    NamedService,
)
from tests.system.conftest import unruly

MAX_GAP_S = 3.0
pytestmark = pytest.mark.timeout(400)


class StepGaps:
    """The steps of all environments over time, and the longest time without one."""

    def __init__(self, deployment: NamedDeployment) -> None:
        self._deployment = deployment
        self._steps: dict[str, float] = {}  # of each actor
        self._at = time.monotonic()
        self.longest_gap_s = 0.0

    def judge(self) -> None:
        """No gap over three seconds; more where others use the processor, for then every process stands still."""
        share = max(1.0, os.getloadavg()[0] / (2 * usable_cores()))
        assert self.longest_gap_s < MAX_GAP_S * PATIENCE * share

    def look(self) -> bool:
        """Take one more sample; True, so that a condition may begin with it."""
        seen = {actor.name: actor.metric("actor_steps_total") for actor in self._deployment.of("actor")}
        now = time.monotonic()
        if any(steps > self._steps.get(name, 0.0) for name, steps in seen.items()):
            if now - self._at > self.longest_gap_s:
                self.longest_gap_s = now - self._at
                print(f"a gap of {self.longest_gap_s:.1f} s up to {time.strftime('%H:%M:%S', time.gmtime())}")
            self._at = now
            self._steps |= seen
        return True

    def wait(self, condition, what: str):
        """Until it holds, watching."""
        return wait_until(lambda: self.look() and condition(), what, PATIENCE_S)


@pytest.fixture(scope="module")
def shared_replicas(tmp_path_factory):
    """Learner, two replicas of inference and two actors; no process is left behind."""
    folder = tmp_path_factory.mktemp("replicas")
    with NamedDeployment(folder, env=unruly(folder)) as deployment:
        deployment.add_learner(HOST_A)
        deployment.add_inference(HOST_A, "inference-a")
        deployment.add_inference(HOST_B, "inference-b")
        for name in ("one", "two"):
            deployment.add_actor(name)
        yield deployment
    assert living(folder) == []


@pytest.fixture
def replicas(shared_replicas):
    """The shared one, training, with whatever an earlier test had changed as it was."""
    shared_replicas.name_hosts(learner=[HOST_A], inference=[HOST_A, HOST_B])
    shared_replicas.settle("learner", "inference-a", "inference-b", "one", "two")
    return shared_replicas


def drain(flow: StepGaps, service: NamedService) -> int:
    """Stop a replica as a deployment does; its incarnation. Nothing that was complete is lost."""
    incarnation = service.incarnation
    service.signal(signal.SIGTERM)
    asked = time.monotonic()
    flow.wait(lambda: not service.is_running, f"{service.name} leaves")
    assert service.wait_ended() == 0
    assert time.monotonic() - asked < 10.0
    left = service.events("inference_left")[-1]
    assert left["lost_lanes"] == 0
    return incarnation


def account(deployment: NamedDeployment) -> None:
    """End the learner: every lane-unroll that it ever took was used in exactly one update."""
    learner = deployment.of(LEARNER)[0]
    learner.signal(signal.SIGTERM)
    assert learner.wait_ended() == 0
    final = load_latest(deployment.run_dir / "checkpoints", kinds=("latest",))
    assert final is not None
    assert applied_lanes(final, GROUP_LANES) == BATCH * final.meta["run"]["counters"]["updates"]
    for producer in final.meta["producers"]:
        lives = [event for service in deployment.services.values() for event in service.events("inference_left")]
        acked = [event["acked"] for event in lives if event["incarnation"] == producer["incarnation"]]
        assert all(count <= producer["next_seq"] for count in acked)


@pytest.mark.slow
def test_a_rolling_restart_of_all_replicas_loses_nothing(replicas):
    """No gap over three seconds in the environments' steps, no unroll lost or used twice, no episode cut short."""
    actors = replicas.of("actor")
    before = [actor.page() for actor in actors]
    flow = StepGaps(replicas)
    for service in replicas.of(INFERENCE):
        former = drain(flow, service)
        flow.wait(lambda: sorted(item.metric("lanes") for item in replicas.of(INFERENCE)) == [24], "all are at one")
        service.start()
        flow.wait(lambda service=service: service.metric("lanes") == ACTOR_LANES, "its share comes back")
        assert service.incarnation != former
    flow.judge()

    def moves() -> float:
        now = sum(actor.metric("actor_sessions_total") for actor in actors)
        return now - sum(page["actor_sessions_total"] for page in before)

    # Two groups leave each replica and come back; whose they are depends on how they were spread at first.
    wait_until(lambda: moves() == 8, "eight moves")  # an actor knows of it a moment after inference does
    for actor, page in zip(actors, before, strict=True):
        assert actor.metric("actor_aborted_total") == page["actor_aborted_total"]
    account(replicas)


@pytest.mark.slow
def test_a_replica_that_is_killed_is_replaced_under_another_address(replicas):
    """Its groups go to the other one; the new address is found, and gets its share."""
    flow = StepGaps(replicas)
    first = replicas.services["inference-a"]
    first.kill()
    replicas.name_hosts(inference=[HOST_B])
    flow.wait(lambda: replicas.services["inference-b"].metric("lanes") == 24, "the other one has all")
    third = replicas.add_inference(HOST_C, "inference-c").start()
    replicas.name_hosts(inference=[HOST_B, HOST_C])
    flow.wait(lambda: third.metric("lanes") == ACTOR_LANES, "the new one has its share")
    for actor in replicas.of("actor"):
        wait_until(lambda actor=actor: actor.events("inference_dropped"), "the old address is dropped")
        assert actor.metric("actor_aborted_total") == 0


def test_a_learner_that_comes_back_under_another_address_is_found(replicas):
    """No other service is restarted; training goes on where it was, and nothing is used twice."""
    others = [*replicas.of(INFERENCE), *replicas.of("actor")]
    lives = [service.incarnation for service in others]
    account(replicas)
    saved = load_latest(replicas.run_dir / "checkpoints")
    assert saved is not None
    replicas.name_hosts(learner=[HOST_B])
    moved = replicas.add_learner(HOST_B, "learner-moved").start()
    replicas.wait_trained(500)
    assert replicas.trained() > saved.meta["run"]["counters"]["trained_steps"]
    epoch = moved.metric("learner_policy_epoch")
    wait_until(lambda: {item.metric("policy_epoch") for item in replicas.of(INFERENCE)} == {epoch}, "weights are new")
    assert [service.incarnation for service in others] == lives
    assert all(service.is_running for service in others)
    account(replicas)


@pytest.mark.slow
def test_services_are_scaled_up_and_down_while_training_goes_on(replicas):
    """Actors 2→4→1, replicas 2→1→2: who stays is not restarted, steps go on, nothing is lost or used twice."""
    flow = StepGaps(replicas)
    staying = [replicas.services[name] for name in ("learner", "inference-b", "one")]
    lives = [service.incarnation for service in staying]
    for name in ("three", "four"):
        replicas.add_actor(name).start()
    flow.wait(lambda: replicas.total(INFERENCE, "lanes") == 4 * ACTOR_LANES, "four actors are in")
    replicas.name_hosts(inference=[HOST_B])
    drain(flow, replicas.services["inference-a"])
    flow.wait(lambda: replicas.total(INFERENCE, "lanes") == 4 * ACTOR_LANES, "they are all at one replica")
    replicas.add_inference(HOST_C, "inference-c").start()
    replicas.name_hosts(inference=[HOST_B, HOST_C])
    flow.wait(lambda: replicas.services["inference-c"].metric("lanes") == 2 * ACTOR_LANES, "the new one has its share")
    for name in ("two", "three", "four"):
        leaving = replicas.services[name]
        leaving.signal(signal.SIGTERM)
        flow.wait(lambda leaving=leaving: not leaving.is_running, f"{name} leaves")
        assert leaving.wait_ended() == 0
    flow.wait(lambda: replicas.total(INFERENCE, "lanes") == ACTOR_LANES, "one actor is left")
    replicas.wait_trained(200)
    assert [service.incarnation for service in staying] == lives
    flow.judge()
    account(replicas)


def test_names_that_do_not_resolve_yet_are_waited_for(tmp_path):
    """Every service starts, says what it waits for, and goes on when the names are there."""
    with NamedDeployment(tmp_path, env=unruly(tmp_path)) as deployment:
        inference = deployment.add_inference(HOST_A, "inference-a").start()
        actor = deployment.add_actor("one").start()
        deployment.add_learner(HOST_A).start()
        for service, event in ((inference, "learner_awaited"), (actor, "inference_awaited")):
            service.wait_ready()
            said = wait_until(lambda service=service, event=event: service.events(event), f"{service.name} says so")
            assert "does not resolve" in said[0]["cause"]
        deployment.name_hosts(learner=[HOST_A], inference=[HOST_A])
        deployment.wait_trained(200)
        assert actor.is_running
        assert inference.is_running
    assert living(tmp_path) == []
