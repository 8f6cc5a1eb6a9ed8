"""The learner's disk fills up, or its run folder goes away, while it trains."""

import shutil
import signal

from seedbed.learner_svc.run.checkpoint import list_checkpoints, load
from seedbed.learner_svc.run.history import read_metrics
from tests.support.deployment import Deployment, known, wait_until
from tests.support.full_disk import full_disk


def test_a_full_disk_costs_rows_and_checkpoints_and_not_the_run(deployment):
    """Training goes on, what could not be written is counted and told; with space again it saves again."""
    learner = deployment.learner
    wait_until(deployment.checkpoint, "a checkpoint is there")
    before = learner.metric("learner_write_failures_total")
    with full_disk(learner.process.pid):
        wait_until(lambda: learner.metric("learner_write_failures_total") > before + 3, "writes are refused")
        deployment.wait_trained(500)
        updates = known(learner.metric("learner_updates_total"))
        kept = list_checkpoints(deployment.run_dir / "checkpoints")
        assert kept
        assert all(load(item.path) for item in kept), "each checkpoint that is there is whole"
    wait_until(lambda: deployment.checkpoint().step > updates, "it saves again")
    wait_until(lambda: float(deployment.rows()[-1]["updates"]) > updates, "rows come again")
    numbers = [float(row["updates"]) for row in deployment.rows()]
    assert numbers == sorted(numbers)
    told = wait_until(lambda: learner.events("writes_work_again"), "it tells of it, once its log can be written too")
    assert told[0]["failures"] > 3


def test_a_learner_that_cannot_save_its_end_says_so_and_is_resumed(deployment):
    """Exit 74 with the file and the remedy; what was saved before is whole, and the run goes on from it."""
    learner = deployment.learner
    saved = wait_until(deployment.checkpoint, "a checkpoint is there")
    with full_disk(learner.process.pid):
        learner.signal(signal.SIGTERM)
        assert learner.wait_ended() == 74
    again = deployment.checkpoint()
    assert again is not None
    assert again.step >= saved.step
    learner.start().wait_ready()
    deployment.wait_trained(200)


def test_a_run_folder_that_is_deleted_ends_its_learner(tmp_path):
    """Nothing could be kept any more: it says so at once, and makes no new folder in the old one's place."""
    with Deployment(tmp_path) as deployment:
        deployment.add_actor("resident")
        deployment.start()
        deployment.wait_trained(100)
        wait_until(lambda: read_metrics(deployment.run_dir / "metrics.csv"), "rows are there")
        shutil.rmtree(deployment.run_dir)
        assert deployment.learner.wait_ended() == 74
        assert "was deleted or moved while it was in use" in deployment.learner.errors()
        assert not deployment.run_dir.exists()
