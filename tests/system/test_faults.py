"""Every process, killed, stopped or cut off: the others go on, and training comes back without a person.

The resident actor has 12 lanes, in groups of 6; visitors that a test brings have 6.
"""

import signal

from seedbed.learner_svc.run.checkpoint import Checkpoint
from seedbed.services.tools.cli.scrape import read_status
from seedbed.shared.protocol.segment import FOLDER
from tests.support.deployment import (
    BATCH,
    UNROLL_LENGTH,
    Deployment,
    ServiceProcess,
    applied_lanes,
    known,
    stopped,
    wait_until,
)
from tests.support.relay import Relay

RESIDENT, VISITOR = 12, 6
MAX_UNACKED = 2 * BATCH + 2 * BATCH + VISITOR  # the window, two batches in the learner's hands, one overshoot
LEASE_S = 15.0  # a lease of 2.5 s or a detachment of 3 s, judged on a busy machine


def visit(deployment: Deployment, name: str, upstream: str = "") -> ServiceProcess:
    """A visitor that is in."""
    visitor = deployment.add_actor(name, "actor.groups=1", upstream=upstream).start()
    deployment.wait_lanes(RESIDENT + VISITOR)
    return visitor


def test_an_actor_that_is_killed_frees_its_slots(deployment):
    """Its lanes go after the lease, the others train on, and its next life is a new incarnation."""
    restarts = deployment.inference.metric("actor_restarts_total")
    visitor = visit(deployment, "killed")
    first = visitor.incarnation
    visitor.kill()
    deployment.wait_lanes(RESIDENT, LEASE_S)
    deployment.wait_trained(200)
    visitor.start().wait_ready()
    assert visitor.incarnation != first
    deployment.wait_lanes(RESIDENT + VISITOR)
    wait_until(lambda: deployment.inference.metric("actor_restarts_total") == restarts + 1, "the restart is counted")


def test_an_actor_that_stands_still_loses_its_slots_and_comes_back(deployment):
    """Stopped for longer than its lease it is let go; awake again it says HELLO and goes on where it was."""
    visitor = visit(deployment, "stopped")
    with stopped(visitor):
        deployment.wait_lanes(RESIDENT, LEASE_S)
        deployment.wait_trained(200)
    deployment.wait_lanes(RESIDENT + VISITOR)
    steps = visitor.metric("actor_steps_total")
    wait_until(lambda: visitor.metric("actor_steps_total") > steps + 200, "its environments go on")
    assert visitor.metric("actor_aborted_total") == 0
    assert visitor.metric("actor_sessions_total") == 2


def test_an_actor_that_is_cut_off_loses_its_slots_and_comes_back(deployment):
    """Nothing passes although the connections stand: both ends notice, and find each other when the network is back."""
    with Relay(deployment.inference_address) as relay:
        visitor = visit(deployment, "partitioned", upstream=relay.address)
        relay.cut()
        deployment.wait_lanes(RESIDENT, LEASE_S)
        deployment.wait_trained(200)
        relay.heal()
        deployment.wait_lanes(RESIDENT + VISITOR)
        steps = visitor.metric("actor_steps_total")
        wait_until(lambda: visitor.metric("actor_steps_total") > steps + 200, "its environments go on")
        assert visitor.metric("actor_aborted_total") == 0
        visitor.kill()


def test_environments_go_on_when_inference_is_killed(deployment):
    """Its next life under the same address is found; no episode is cut short and the learner counts a restart."""
    resident = deployment.actors[0]
    before, aborted = resident.page(), deployment.learner.metric("learner_aborted_episodes_total")
    deployment.inference.kill()
    deployment.inference.start().wait_ready()
    deployment.wait_lanes(RESIDENT)
    deployment.wait_trained(500)
    after = resident.page()
    assert after["actor_sessions_total"] == before["actor_sessions_total"] + 2
    assert after["actor_aborted_total"] == before["actor_aborted_total"]
    assert after["actor_steps_total"] > before["actor_steps_total"]
    assert deployment.learner.metric("learner_aborted_episodes_total") == aborted
    wait_until(lambda: float(deployment.rows()[-1]["inference_restarts"]) >= 1, "the restart is counted")


def test_environments_and_learner_wait_for_an_inference_that_stands_still(deployment):
    """Both ends notice, hold still, and go on when it is awake again; no episode is cut short."""
    resident = deployment.actors[0]
    epoch = deployment.learner.metric("learner_policy_epoch")
    with stopped(deployment.inference):
        wait_until(lambda: resident.metric("actor_waiting_groups") == 2, "both groups wait")
        wait_until(lambda: float(deployment.rows()[-1]["inference_services"]) == 0, "the learner misses it", LEASE_S)
        assert len({resident.metric("actor_steps_total") for _ in range(10)}) == 1, "it goes on"
    deployment.wait_lanes(RESIDENT)
    deployment.wait_trained(500)
    assert deployment.learner.metric("learner_policy_epoch") == epoch
    assert resident.metric("actor_aborted_total") == 0


def test_a_killed_learner_goes_on_from_its_checkpoint_and_applies_nothing_twice(deployment):
    """A higher epoch, counters that go on, and as many lanes trained on as its account of unrolls says were used."""
    epoch = int(deployment.learner.metric("learner_policy_epoch"))
    wait_until(lambda: deployment.checkpoint(), "a checkpoint is there")
    deployment.learner.kill()
    saved = deployment.checkpoint()
    assert saved is not None
    wait_until(lambda: deployment.inference.metric("learner_connected") == 0, "inference notices")
    deployment.learner.start().wait_ready()
    deployment.wait_trained(1000)
    wait_until(lambda: deployment.inference.metric("policy_epoch") == epoch + 1, "inference acts with new weights")
    assert deployment.trained_steps() > counters(saved)["trained_steps"]
    assert deployment.actors[0].metric("actor_aborted_total") == 0
    deployment.learner.signal(signal.SIGTERM)
    assert deployment.learner.wait_ended() == 0
    final = deployment.checkpoint()
    assert final is not None
    assert final.step > saved.step
    last = deployment.rows()[-1]
    updates = counters(final)["updates"] - counters(saved)["updates"]
    used = applied_lanes(final, 6) - applied_lanes(saved, 6) - 6 * int(float(last["lost_unrolls"]))
    unused = used - BATCH * updates  # batches of nothing but steps of the lost epoch
    assert unused >= 0, f"{-unused} lane-unrolls were applied twice"
    assert unused % BATCH == 0
    assert unused * UNROLL_LENGTH <= 1.5 * counters(final)["lost_epoch_steps"]
    summary = deployment.summary()
    assert not summary["finished"]
    assert summary["trained_steps"] == counters(final)["trained_steps"]
    deployment.learner.start().wait_ready()
    steps = wait_until(lambda: known(deployment.trained_steps()), "it answers")
    assert steps >= summary["trained_steps"]


def test_another_runs_learner_trains_on_nothing_of_the_former(tmp_path):
    """Environments that were held for credit come back and begin anew."""
    with Deployment(tmp_path) as deployment:
        deployment.add_actor("resident")
        deployment.start()
        deployment.wait_trained()
        learner, resident = deployment.learner, deployment.actors[0]
        learner.kill()
        wait_until(lambda: resident.metric("actor_waiting_groups") == 2, "both groups wait")
        learner.words.append(f"run.dir={tmp_path / 'other'}")
        learner.start().wait_ready()
        deployment.wait_trained()
        assert deployment.inference.by_label("groups_ended_total") == {"another_run": 2.0}
        assert learner.metric("learner_lost_epoch_steps_total") == 0
        deployment.wait_lanes(RESIDENT)


def counters(checkpoint: Checkpoint) -> dict[str, int]:
    """The run's, in a checkpoint."""
    return dict(checkpoint.meta["run"]["counters"])


def test_environments_wait_for_a_learner_that_stands_still(deployment):
    """No credit, no steps: what inference holds is bounded; when the learner wakes up everything goes on."""
    inference, resident = deployment.inference, deployment.actors[0]
    epoch = deployment.learner.metric("learner_policy_epoch")
    with stopped(deployment.learner):
        wait_until(lambda: inference.metric("learner_connected") == 0, "inference misses the learner")
        wait_until(lambda: resident.metric("actor_waiting_groups") == 2, "both groups wait")
        held = [(resident.metric("actor_steps_total"), inference.metric("unacked_lanes")) for _ in range(10)]
        assert len(set(held)) == 1, "it goes on"
        assert held[0][1] <= MAX_UNACKED
    deployment.wait_trained(500)
    assert deployment.learner.metric("learner_policy_epoch") == epoch
    assert resident.metric("actor_aborted_total") == 0


def test_a_cut_between_inference_and_learner_heals(deployment):
    """A second inference, behind a relay, is cut off from the learner and comes back without granting itself more."""
    with Relay(deployment.learner_address) as relay:
        other = deployment.add_inference("other", relay.address).start().wait_ready()
        try:
            endpoint = wait_until(lambda: other.page() and address_of(other), "it has an address")
            visitor = deployment.add_actor("far", "actor.groups=1", upstream=endpoint).start()
            wait_until(lambda: other.metric("unrolls_acked_total") > 20, "its unrolls are used")
            relay.cut()
            wait_until(lambda: other.metric("learner_connected") == 0, "it misses the learner")
            deployment.wait_trained(200)
            relay.heal()
            acked = other.metric("unrolls_acked_total")
            wait_until(lambda: other.metric("unrolls_acked_total") > acked + 20, "its unrolls are used again")
            assert other.metric("unacked_lanes") <= MAX_UNACKED
            assert visitor.metric("actor_aborted_total") == 0
        finally:
            other.close()


def address_of(service: ServiceProcess) -> str:
    """Where it listens."""
    return str(read_status(service.status_file)["endpoint"])


def test_everything_killed_and_started_in_the_other_order_trains_on(deployment):
    """Actor first, then inference, the learner last: the run goes on from its checkpoint."""
    wait_until(lambda: deployment.checkpoint(), "a checkpoint is there")
    for service in deployment.services:
        service.kill()
    saved = deployment.checkpoint()
    assert saved is not None
    for service in reversed(deployment.services):
        service.start().wait_ready()
    deployment.wait_lanes(RESIDENT)
    assert deployment.wait_trained(500) > counters(saved)["trained_steps"]


def test_no_kill_leaves_shared_memory_behind(deployment):
    """Unrolls go through it again after each; a file in use has no name, so the kernel frees it with its last user."""
    for service in (deployment.inference, deployment.learner):
        deployment.wait_trained(200)
        shared = deployment.inference.metric("unrolls_shared_total")
        assert shared > 0
        service.kill()
        left = segments()
        service.start().wait_ready()
        before = 0 if service is deployment.inference else shared
        wait_until(lambda n=before: deployment.inference.metric("unrolls_shared_total") > n, "unrolls are shared again")
        wait_until(lambda names=left: not names & segments(), "files of the killed process are gone")


def segments() -> set[str]:
    """Names of segments; those of other runs on this machine are there for a moment only."""
    return {path.name for path in FOLDER.glob("seedbed-*")}
