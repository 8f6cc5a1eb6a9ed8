"""When batches start."""

from seedbed.inference_svc.batcher import Batcher


def test_everything_queued_runs_when_the_device_is_free() -> None:
    """Requests accumulate while the device is busy and leave together, each with its wait."""
    batcher: Batcher[str] = Batcher(0.001)
    batcher.add("a", 0.0)
    assert batcher.launch_at(2, 0.0) == 0.0
    assert batcher.take(0.0) == [("a", 0.0)]
    batcher.add("b", 1.0)
    batcher.add("c", 2.0)
    assert batcher.launch_at(2, 2.0) is None
    batcher.finished()
    assert batcher.launch_at(2, 3.0) == 3.0
    assert batcher.take(3.0) == [("b", 2.0), ("c", 1.0)]


def test_an_idle_device_waits_a_moment_for_most_of_a_large_fleet() -> None:
    """With many active groups, the first of them waits for others, but no longer than the deadline."""
    batcher: Batcher[int] = Batcher(0.001)
    batcher.add(0, 5.0)
    assert batcher.launch_at(10, 5.0) == 5.001
    assert batcher.launch_at(10, 5.002) == 5.002
    for group in range(1, 5):
        batcher.add(group, 5.0)
    assert batcher.launch_at(10, 5.0) == 5.0


def test_a_group_that_left_is_not_run() -> None:
    """A discarded group is in no batch, and nothing queued means nothing to launch."""
    batcher: Batcher[str] = Batcher(0.0)
    batcher.add("a", 0.0)
    batcher.discard("a")
    batcher.discard("never there")
    assert batcher.launch_at(1, 0.0) is None
