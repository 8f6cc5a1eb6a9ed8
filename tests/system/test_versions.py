"""Services of an earlier version, from its wheel, beside today's: a deployment is never exchanged all at once."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.deployment import Deployment, wait_until

ROOT = Path(__file__).resolve().parents[2]
EARLIER = "16970ee2b8d4dc39fda4931e17343d65a41f3f62"  # the last release, once there is one


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """What the wheel of the earlier version installs."""
    folder = tmp_path_factory.mktemp("earlier")
    archive, source, wheels, installed = (folder / name for name in ("source.tar", "source", "wheels", "installed"))
    made = subprocess.run(["git", "archive", "-o", archive, EARLIER], cwd=ROOT, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"this is no clone with the history of commit {EARLIER}")
    with tarfile.open(archive) as tar:
        tar.extractall(source, filter="data")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "-w", wheels, source], check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(installed)
    return installed


@pytest.mark.parametrize("old", ["actor", "inference", pytest.param("both", marks=pytest.mark.slow)])
def test_an_earlier_version_talks_to_todays(old, earlier, tmp_path):
    """It trains, goes on when the learner is killed, and ends with the run."""
    with Deployment(tmp_path, "run.steps=20000", "eval.every_s=0") as deployment:
        deployment.add_actor("actor-0")
        deployment.add_actor("evaluator", "actor.mode=eval")
        if old in ("actor", "both"):
            for actor in deployment.actors:
                actor.source = earlier
        if old in ("inference", "both"):
            deployment.inference.source = earlier
        deployment.start()
        deployment.wait_trained(1000)
        wait_until(deployment.checkpoint, "something is saved")
        deployment.learner.kill()
        deployment.learner.start().wait_ready()
        deployment.wait_trained(1000)
        for service in deployment.services:
            assert service.wait_ended() == 0, service.errors()
        summary = deployment.summary()
        assert (summary["finished"], summary["reason"], summary["eval_episodes"]) == (True, "steps", 4)
