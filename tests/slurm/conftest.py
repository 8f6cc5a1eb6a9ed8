"""A cluster of real Slurm daemons on this machine, where they can be started."""

import pytest

from tests.support.slurm_cluster import Cluster, why_not


def pytest_collection_modifyitems(items):
    """All tests of this folder, and only they, need the daemons."""
    for item in items:
        if "tests/slurm/" in item.nodeid:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture
def cluster(daemons):
    """The cluster, on which nothing runs."""
    yield daemons
    daemons.clear()


@pytest.fixture(scope="session")
def daemons(tmp_path_factory):
    """A controller and four nodes: two for learners, and one each for inference and actors."""
    if reason := why_not():
        pytest.skip(f"no Slurm: {reason}")
    with Cluster(tmp_path_factory.mktemp("slurm"), 4) as cluster:
        yield cluster
