"""A real cluster, where Kubernetes' programs are; it starts within a minute, and the images are made first."""

import pytest

from tests.support import compose_stack, kubernetes_cluster
from tests.support.kubernetes_cluster import Cluster

IMAGES = ("seedbed-actor", "seedbed-compute")


def pytest_collection_modifyitems(items):
    """All tests of this folder, and only they, need a cluster."""
    for item in items:
        if "tests/kubernetes/" in item.nodeid:
            item.add_marker(pytest.mark.kubernetes)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A control plane and a node that has the images of this tree."""
    if reason := kubernetes_cluster.why_not():
        pytest.skip(f"no cluster: {reason}")
    if reason := compose_stack.why_not():
        pytest.skip(f"no images: {reason}")
    compose_stack.build()
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        for image in IMAGES:
            started.load_image(image)
        yield started
