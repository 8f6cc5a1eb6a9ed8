"""A deployment that trains, shared by those tests of a module that ask for it.

Each finds all of it running, and may break it.
"""

from pathlib import Path

import pytest

from seedbed.actor_svc.envs import make_group
from seedbed.shared.protocol.messages import Hello
from seedbed.shared.runtime.config import EnvConfig
from tests.support.deployment import Deployment, living

STEP_S = 0.001
UNRULY = "tests.support.unruly_env:make"


def unruly(folder: Path, step_s: float = STEP_S) -> tuple[str, ...]:
    """[env] words of environments that take their time and obey orders in the folder."""
    return (f"env.id={UNRULY}", f'env.kwargs={{folder = "{folder}", step_s = {step_s}}}')


def visitors_hello(deployment: Deployment) -> Hello:
    """A HELLO that would be welcome: the resident's environments, one lane."""
    group = make_group(EnvConfig(id=UNRULY, kwargs={"folder": str(deployment.folder), "step_s": STEP_S}), 1)
    group.close()
    return Hello(
        library_version="0", actor="hostile", incarnation=77, group=0, lanes=1, nonce=5, mode="train", spec=group.spec,
        seeding=group.seeding,
    )  # fmt: skip


@pytest.fixture(scope="module")
def shared_deployment(tmp_path_factory):
    """Learner, inference and one actor; no process is left behind."""
    folder = tmp_path_factory.mktemp("deployment")
    with Deployment(folder, env=unruly(folder)) as deployment:
        deployment.add_actor("resident", "actor.hang_s=3")
        yield deployment
    assert living(folder) == []


@pytest.fixture
def deployment(shared_deployment):
    """The shared one, training, with whatever an earlier test had stopped started again."""
    shared_deployment.start()
    shared_deployment.wait_lanes(12)
    shared_deployment.wait_trained(200)
    yield shared_deployment
    for actor in shared_deployment.actors[1:]:
        actor.close()
    del shared_deployment.actors[1:]
