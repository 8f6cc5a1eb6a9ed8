"""Real containers, where an engine is; the images are made first, which takes minutes once."""

import pytest

from tests.support.compose_stack import TRAINING, Stack, build, why_not

ENDLESS = "run.steps=0 run.until_return=10000 eval.every_s=0 actor.lanes=64 learner.batch=64"


def pytest_collection_modifyitems(items):
    """All tests of this folder, and only they, need an engine."""
    for item in items:
        if "tests/compose/" in item.nodeid:
            item.add_marker(pytest.mark.compose)


@pytest.fixture(scope="session", autouse=True)
def images():
    """Those of the main file."""
    if reason := why_not():
        pytest.skip(f"no containers: {reason}")
    build()


@pytest.fixture(scope="session")
def shared_stack(images, tmp_path_factory):
    """A deployment that trains for as long as tests want it."""
    with Stack("seedbedendless", tmp_path_factory.mktemp("endless"), ARGS=ENDLESS) as stack:
        yield stack


@pytest.fixture
def training(shared_stack):
    """The shared one, up and training, one of each."""
    if shared_stack.running() != sorted([*TRAINING, "monitor"]):
        shared_stack.up("--scale", "actor=1", "--scale", "inference=1")
    shared_stack.wait_trained("cartpole", 1)
    return shared_stack
