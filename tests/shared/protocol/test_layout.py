"""Layouts: offsets, own frames, views on the frames' memory, and refusal of any other sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.layout import ALIGNMENT, OWN_FRAME_BYTES, Field, Layout
from seedbed.shared.protocol.spaces import DTYPES

FIELDS = st.lists(
    st.builds(
        Field,
        name=st.text(max_size=3),
        dtype=st.sampled_from(DTYPES),
        shape=st.one_of(
            st.lists(st.integers(1, 5), max_size=3).map(tuple),
            st.tuples(st.sampled_from([8191, 8192, 65535, 65536])),
        ),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(FIELDS, st.booleans())
def test_fields_are_aligned_apart_and_together_fill_the_frames(fields: list[Field], single_frame: bool) -> None:
    """Every byte of every frame belongs to one field or to the padding behind one."""
    layout = Layout(fields, single_frame=single_frame)
    owners = [np.zeros(size, np.int8) for size in layout.frame_bytes]
    for item, (frame, offset) in zip(layout.fields, layout.offsets, strict=True):
        assert offset % ALIGNMENT == 0
        assert (frame > 0) == (not single_frame and item.num_bytes >= OWN_FRAME_BYTES)
        if frame:
            assert (offset, layout.frame_bytes[frame]) == (0, item.num_bytes)
        owners[frame][offset : offset + item.num_bytes] += 1
    assert all((owner <= 1).all() for owner in owners)
    padding = sum(int((owner == 0).sum()) for owner in owners)
    assert padding < ALIGNMENT * len(fields)
    assert layout.num_bytes == sum(item.num_bytes for item in fields) + padding


@settings(max_examples=100, deadline=None)
@given(FIELDS)
def test_what_is_written_through_views_is_read_from_bytes(fields: list[Field]) -> None:
    """Views write into allocated frames; over received bytes they show the same values, read-only."""
    layout = Layout(fields)
    frames = layout.allocate()
    for number, view in enumerate(layout.views(frames)):
        view[...] = number + 1
    received = [bytes(frame) for frame in frames]
    layout.check(received)
    for number, (item, view) in enumerate(zip(fields, layout.views(received), strict=True)):
        assert (view.dtype.name, view.shape) == (item.dtype, item.shape)
        assert (view == number + 1).all()
        assert not view.flags.writeable


@settings(max_examples=100, deadline=None)
@given(FIELDS, st.sampled_from(["float64", "own"]))
def test_packed_arrays_are_read_from_the_frames(fields: list[Field], dtype: str) -> None:
    """Whatever the arrays' own dtype, as long as the field's holds their values."""
    layout = Layout(fields)
    arrays = [np.full(item.shape, 1, item.dtype if dtype == "own" else dtype) for item in fields]
    frames = layout.pack(arrays)
    layout.check(frames)
    assert all((view == 1).all() for view in layout.views(frames))


@settings(max_examples=200, deadline=None)
@given(FIELDS, st.data())
def test_frames_of_any_other_sizes_are_refused(fields: list[Field], data: st.DataObject) -> None:
    """A byte more or less, a frame more or less, or frames exchanged: refused before a view exists."""
    layout = Layout(fields)
    sizes = list(layout.frame_bytes)
    index = data.draw(st.integers(0, len(sizes) - 1))
    change = data.draw(st.sampled_from(["longer", "shorter", "extra", "missing", "empty", "reversed"]))
    if change == "longer":
        sizes[index] += 1
    elif change == "shorter":
        sizes[index] = max(0, sizes[index] - 1)
    elif change == "extra":
        sizes.insert(index, data.draw(st.integers(0, 9)))
    elif change == "missing":
        del sizes[index]
    elif change == "empty":
        sizes = []
    else:
        sizes.reverse()
    if tuple(sizes) == layout.frame_bytes:
        layout.check([bytes(size) for size in sizes])
        return
    with pytest.raises(RemoteWireError, match="expected") as caught:
        layout.check([bytes(size) for size in sizes])
    assert caught.value.code == "frame_size"


def test_a_field_gets_its_own_frame_from_64_kib_on() -> None:
    """The boundary exactly; one frame only where the message demands it."""
    small, large = Field("s", "uint8", (OWN_FRAME_BYTES - 1,)), Field("l", "uint8", (OWN_FRAME_BYTES,))
    assert Layout([small, large]).frame_bytes == (OWN_FRAME_BYTES, OWN_FRAME_BYTES)
    assert Layout([small, large]).offsets == ((0, 0), (1, 0))
    assert Layout([large]).frame_bytes == (0, OWN_FRAME_BYTES)
    assert Layout([small, large], single_frame=True).frame_bytes == (2 * OWN_FRAME_BYTES,)
