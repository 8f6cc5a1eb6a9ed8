"""The batch script for Slurm, as far as it can be checked without Slurm."""

import re
import subprocess

from seedbed.services.tools.cli.settings import list_settings
from tests.support.slurm_cluster import SCRIPT


def test_outside_a_job_the_script_changes_nothing_and_fails(tmp_path):
    """With the status of a wrong configuration."""
    done = subprocess.run(["bash", str(SCRIPT), "cartpole"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, check=False)
    assert done.returncode == 78
    assert not list(tmp_path.iterdir())


def test_settings_that_the_script_gives_to_services_exist():
    """A setting that is renamed must be renamed in the script, too."""
    given = set(re.findall(r'"((?:run|learner|inference|actor|runtime)\.\w+)=', SCRIPT.read_text()))
    assert given
    assert given <= {setting.name for setting in list_settings()}
