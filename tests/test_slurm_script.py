"""The batch script for Slurm, as far as it can be checked without Slurm."""

import os
import re
import signal
import subprocess

import pytest

from seedbed.services.tools.cli.settings import list_settings
from tests.support.slurm_cluster import SCRIPT

TIMEOUT_S = 60


def test_outside_a_job_the_script_changes_nothing_and_fails(tmp_path):
    """With the status of a wrong configuration."""
    done = subprocess.run(["bash", str(SCRIPT), "cartpole"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, check=False)
    assert done.returncode == 78
    assert not list(tmp_path.iterdir())


@pytest.fixture(params=[False, True], ids=["", "full disk"])
def job(request, tmp_path):
    """Starts the script with programs in the place of Slurm's; those of inference and actors end at once.

    Called with what srun does for the learners. On the full disk, files can be made, but not written.
    """
    programs = {
        "seedbed": "", "sinfo": "", "scancel": "echo stop 1<>stop_learner",
        "scontrol": 'if [ "$1" = show ]; then echo node1; else echo "$@"; fi',
        "srun": 'case "$*" in *address*) echo tcp://node1:1 ;; *" - learner "*) . ./learner.sh ;; esac',
    }  # fmt: skip
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    os.mkfifo(tmp_path / "stop_learner")
    groups = {f"SLURM_JOB_NODELIST_HET_GROUP_{number}": "node1" for number in range(3)}
    limit = "trap '' XFSZ && ulimit -f 0 &&" if request.param else ""

    def start(learner):
        (tmp_path / "learner.sh").write_text(learner)
        return subprocess.Popen(
            ["bash", "-c", f'{limit} exec bash "$@"', "-", str(SCRIPT), "cartpole"], cwd=tmp_path, text=True,
            env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "SLURM_JOB_ID": "7", **groups}, stdout=subprocess.PIPE,
        )  # fmt: skip

    return start


@pytest.mark.parametrize("status", [0, 74])
def test_a_job_ends_as_its_learners_did(job, status):
    """Slurm calls a job with status 0 completed."""
    with job(f"exit {status}") as process:
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == status


def test_a_job_is_queued_again_at_its_time_limit(job):
    """After the learners have ended."""
    with job("exec 3<>stop_learner; echo the learner trains; read -r _ <&3") as process:
        while "the learner trains" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGUSR1)
        said, _ = process.communicate(timeout=TIMEOUT_S)
        assert said.splitlines()[-1] == "requeue 7"
        assert process.returncode == 0


def test_settings_that_the_script_gives_to_services_exist():
    """A setting that is renamed must be renamed in the script, too."""
    given = set(re.findall(r'"((?:run|learner|inference|actor|runtime)\.\w+)=', SCRIPT.read_text()))
    assert given
    assert given <= {setting.name for setting in list_settings()}
