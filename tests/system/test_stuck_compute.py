"""A forward pass or an update that never ends: its process ends, saying so, and the next life goes on."""

import pytest

from tests.support.deployment import Deployment, ServiceProcess, living, wait_until


@pytest.fixture(scope="module", params=[0.0, 1000.0], ids=["in the thread", "in the loop"])
def sticky(request, tmp_path_factory):
    """A deployment whose policy gets stuck on demand."""
    folder = tmp_path_factory.mktemp("sticky")
    words = ["policy.network=tests.support.sticky_network:Sticky", f'policy.network_kwargs={{folder = "{folder}"}}']
    limits = ["learner.max_compute_s=2", "inference.max_compute_s=2", f"inference.inline_ms={request.param}"]
    with Deployment(folder, *words, *limits) as deployment:
        deployment.add_actor("resident")
        deployment.start()
        deployment.wait_trained(200)
        yield deployment
    assert living(folder) == []


def end(deployment: Deployment, service: ServiceProcess, order: str) -> None:
    """Have it stuck, see it end by itself and say where it was, and start it again."""
    (deployment.folder / order).touch()
    wait_until(lambda: not service.is_running, f"{service.name} ends")
    assert service.wait_ended() == 1
    assert "sticky_network" in service.errors() or "is stuck" in str(service.events("service_failed"))
    service.start().wait_ready()
    deployment.wait_trained(200)


def test_a_forward_pass_that_never_ends_ends_inference(sticky):
    """Environments are not reset; they meet the next life."""
    aborted = sticky.actors[0].metric("actor_aborted_total")
    end(sticky, sticky.inference, "forward")
    assert sticky.actors[0].metric("actor_aborted_total") == aborted


def test_an_update_that_never_ends_ends_the_learner(sticky):
    """The next life has a higher epoch and goes on from the checkpoint."""
    epoch = sticky.learner.metric("learner_policy_epoch")
    wait_until(sticky.checkpoint, "a checkpoint is there")
    end(sticky, sticky.learner, "update")
    assert sticky.learner.metric("learner_policy_epoch") == epoch + 1
