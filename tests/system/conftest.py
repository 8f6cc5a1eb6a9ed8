"""A deployment that trains, shared by those tests of a module that ask for it.

Each finds all of it running, and may break it.
"""

from pathlib import Path

import pytest

from tests.support.deployment import Deployment, living

STEP_S = 0.001


def unruly(folder: Path, step_s: float = STEP_S) -> tuple[str, ...]:
    """[env] words of environments that take their time and obey orders in the folder."""
    return ("env.id=tests.support.unruly_env:make", f'env.kwargs={{folder = "{folder}", step_s = {step_s}}}')


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
