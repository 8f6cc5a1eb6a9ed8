"""Batches cut from unrolls by lane."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.learner_svc.sources.queue import QueueSource
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.recording import Per, RecordField, RecordSpec
from tests.support.specs import make_spec

gymnasium = pytest.importorskip("gymnasium")

T = 3
STATE = (RecordField("state/h", "float32", (2,), Per.LANE),)
SPEC = make_spec(gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(3), masked=True)
RECORD = RecordSpec(SPEC, T, state=STATE)


def a_source(batch: int, num_buffers: int = 2) -> QueueSource[int]:
    return QueueSource(RECORD, batch=batch, num_buffers=num_buffers)


def an_unroll(first_lane: int, lanes: int) -> bytes:
    """Every number of a lane tells which lane it is."""
    layout = RECORD.layout(lanes)
    frames = layout.allocate()
    for item, array in zip(layout.fields, layout.views(frames), strict=True):
        if item.name == "version":
            array[:] = np.arange(T) + 1000 * first_lane
        else:
            axis = 0 if item.name == "state/h" else 1
            shape = [1] * array.ndim
            shape[axis] = lanes
            array[...] = ((first_lane + np.arange(lanes)) % 200).reshape(shape)
    return bytes(frames[0])


def lanes_of(arrays: list[Array]) -> list[int]:
    """The lanes that a batch holds; fails unless all its fields agree."""
    obs, mask, reward, flags, action, log_prob, version, state = arrays
    found = reward[0].astype(int).tolist()
    for array in (obs[..., 0], mask[..., 1], flags, action[..., 0], log_prob, state.T):
        assert (array == reward[0]).all()
    assert version.shape == (T, len(found))
    return found


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8)), min_size=1, max_size=12),
    batch=st.integers(1, 7),
)
def test_every_lane_is_used_once_and_in_order(groups: list[tuple[int, int]], batch: int) -> None:
    """However groups and batches divide, lanes come out as they came in, without those applied already."""
    source = a_source(batch)
    expected: list[int] = []
    found: list[int] = []
    parts: list[tuple[int, int]] = []
    copied: list[int] = []
    first = 0
    for key, (lanes, skip) in enumerate(groups):
        skip = min(skip, lanes - 1)
        source.offer(key, lanes, an_unroll(first, lanes), skip=skip)
        expected += range(first + skip, first + lanes)
        first += lanes
        copied += source.fill()
        while (full := source.take()) is not None:
            found += lanes_of(full.arrays)
            parts += full.parts
            source.release(full)
            copied += source.fill()
    whole = len(expected) // batch * batch
    assert found == expected[:whole]
    assert sum(count for _, count in parts) == whole
    assert copied == list(range(len(groups)))
    assert source.used() == parts
    assert source.used() == []


def test_without_a_free_batch_unrolls_wait() -> None:
    """Two batches and no more: the rest keeps its frames until one is given back."""
    source = a_source(2)
    for key in range(3):
        source.offer(key, 2, an_unroll(2 * key, 2))
    assert source.fill() == [0, 1]
    assert source.fill() == []
    full = source.take()
    assert full is not None
    source.release(full)
    assert source.fill() == [2]


def test_a_batch_in_use_is_not_overwritten() -> None:
    """What the update thread has belongs to it until it is given back."""
    source = a_source(2)
    source.offer(0, 2, an_unroll(0, 2))
    source.fill()
    held = source.take()
    assert held is not None
    for key in range(1, 4):
        source.offer(key, 2, an_unroll(2 * key, 2))
        source.fill()
    assert lanes_of(held.arrays) == [0, 1]


def test_versions_are_spread_over_the_lanes() -> None:
    """One version per tick of a group becomes one per transition."""
    source = a_source(3)
    source.offer(0, 1, an_unroll(1, 1))
    source.offer(1, 2, an_unroll(5, 2))
    source.fill()
    full = source.take()
    assert full is not None
    assert full.arrays[6].tolist() == [[1000 + t, 5000 + t, 5000 + t] for t in range(T)]


@pytest.mark.parametrize(("lanes", "size"), [(2, 10), (1, 0), (0, 0)])
def test_a_frame_of_the_wrong_size_is_refused(lanes: int, size: int) -> None:
    """Sizes are compared before anything is copied."""
    with pytest.raises(RemoteWireError):
        a_source(2).check(lanes, size)


def test_lanes_of_a_batch_are_shared_out_by_weight() -> None:
    """Each task's lanes in their order, and a task's own queue goes on where the batch cut it."""
    source: QueueSource[str] = QueueSource(RECORD, batch=8, weights={"a": 0.75, "b": 0.25})
    source.offer("b0", 5, an_unroll(100, 5), task="b")
    source.offer("a0", 4, an_unroll(0, 4), task="a")
    source.offer("a1", 9, an_unroll(10, 9), task="a")
    assert source.fill() == ["a0"]  # the last lanes of a1 and b0 are to come
    first, second = source.take(), source.take()
    assert first is not None
    assert second is not None
    assert sorted(lanes_of(first.arrays)) == [0, 1, 2, 3, 10, 11, 100, 101]
    assert sum(lanes for key, lanes in first.parts if key == "b0") == 2
    assert sorted(lanes_of(second.arrays)) == [12, 13, 14, 15, 16, 17, 102, 103]
    source.release(first)
    assert sorted(source.fill()) == ["a1", "b0"]


def test_a_task_without_unrolls_leaves_no_batch_open() -> None:
    """The one that has some fills it alone."""
    source: QueueSource[int] = QueueSource(RECORD, batch=4, weights={"a": 0.5, "b": 0.5})
    source.offer(0, 4, an_unroll(0, 4), task="b")
    source.fill()
    full = source.take()
    assert full is not None
    assert lanes_of(full.arrays) == [0, 1, 2, 3]
