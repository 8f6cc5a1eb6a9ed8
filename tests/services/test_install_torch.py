"""Which of PyTorch's builds an installation gets: the script that Makefile and images share."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def install_torch(builds):
    """What it says, without a network."""
    command = [str(ROOT / "compose" / "install_torch.sh"), sys.executable, builds]
    environment = {**os.environ, "UV_OFFLINE": "1", "PIP_NO_INDEX": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("builds", ["cpuu", "cu999", ""])
def test_builds_that_do_not_exist_end_the_installation(builds):
    """And those that do are named."""
    refused = install_torch(builds)
    assert refused.returncode == 2
    assert f"TORCH={builds} is none of PyTorch's builds" in refused.stderr
    assert "cu130" in refused.stderr


def test_pip_may_be_left_alone():
    """For who has an index of their own: nothing is fetched and nothing said."""
    left = install_torch("pip")
    assert (left.returncode, left.stdout, left.stderr) == (0, "", "")
