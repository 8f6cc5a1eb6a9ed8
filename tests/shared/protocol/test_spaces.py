"""Spaces: what travels, what is refused, and values to leaves and back."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.shared.errors import ConfigError, EnvError, RemoteWireError
from seedbed.shared.protocol.leaves import compress_bounds
from seedbed.shared.protocol.spaces import (
    DTYPES,
    Space,
    check_values,
    decode_text,
    encode_text,
    flatten,
    mask_size,
    raw_action_size,
    space_from_gymnasium,
    space_from_wire,
    space_to_wire,
    unflatten,
)
from tests.support.protocol_examples import CARTPOLE, EVERYTHING


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    """A Box of any allowed dtype, small, with uniform, per-column or free bounds."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    bound_shape = shape[draw(st.integers(0, len(shape))) :]
    values = np.array(draw(st.lists(st.integers(0, 50), min_size=64, max_size=64)), dtype)
    low = np.broadcast_to(values[: int(np.prod(bound_shape))].reshape(bound_shape), shape)
    high = low + np.asarray(draw(st.integers(0, 9)), dtype)
    if dtype.kind == "f" and draw(st.booleans()):
        low, high = np.full(shape, -np.inf, dtype), np.full(shape, np.inf, dtype)
    return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)


LEAF_SPACES = st.one_of(
    boxes(),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 100), st.integers(-50, 50)),
    st.lists(st.integers(1, 9), min_size=1, max_size=4).map(spaces.MultiDiscrete),
    st.lists(st.integers(1, 4), min_size=1, max_size=2).map(spaces.MultiBinary),
    st.builds(lambda n, chars: spaces.Text(n, charset="".join(chars)), st.integers(1, 9),
              st.frozensets(st.characters(codec="utf-8"), min_size=2, max_size=20)),
)  # fmt: skip
NAMES = st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), min_size=1, max_size=6)
SPACES = st.recursive(
    LEAF_SPACES,
    lambda inner: st.one_of(
        st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(SPACES)
def test_any_space_survives_the_wire_and_its_values_flatten_and_unflatten(gym_space: gymnasium.Space[Any]) -> None:
    """Wire form and leaves keep everything; sampled values come back equal and pass the value check."""
    space = space_from_gymnasium(gym_space, image="HWC")
    assert space_from_wire(space_to_wire(space)) == space
    assert hash(space) == hash(space_from_wire(space_to_wire(space)))
    paths = [leaf.path for leaf in space.leaves()]
    assert len(set(paths)) == len(paths)
    gym_space.seed(0)
    sample = gym_space.sample()
    value = _batched(gym_space, sample)
    arrays = flatten(space, value)
    for leaf, array in zip(space.leaves(), arrays, strict=True):
        assert (array.dtype, array.shape) == (np.dtype(leaf.wire_dtype), (1, *leaf.wire_shape))
    check_values(space, arrays)
    _assert_equal(unflatten(space, arrays), value)


def _batched(space: gymnasium.Space[Any], value: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _batched(child, value[name]) for name, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_batched(child, part) for child, part in zip(space.spaces, value, strict=True))
    return [value] if isinstance(space, spaces.Text) else np.asarray(value)[None]


def _assert_equal(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            _assert_equal(ours[name], theirs[name])
    elif isinstance(theirs, tuple):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            _assert_equal(a, b)
    else:
        np.testing.assert_array_equal(ours, theirs)


@settings(max_examples=100, deadline=None)
@given(boxes())
def test_bounds_are_exact_and_compressed(box: spaces.Box) -> None:
    """A leaf gives back each bound bit for bit, and uniform bounds cost one item."""
    leaf = space_from_gymnasium(box, image=None).leaves()[0]
    np.testing.assert_array_equal(leaf.low_array(), box.low)
    np.testing.assert_array_equal(leaf.high_array(), box.high)
    assert leaf.low_array().dtype == box.dtype
    if (box.low == box.low.flat[0]).all():
        assert len(leaf.low) == np.dtype(leaf.dtype).itemsize


def test_bounds_that_a_peer_did_not_compress_are_the_same_space() -> None:
    """A writer may send every bound; the canonical form, and so the digest, is the same."""
    space = space_from_gymnasium(spaces.Box(-1, 1, (2, 3)))
    low, high = (np.full((2, 3), value, "<f4").tobytes() for value in (-1, 1))
    assert space_from_wire([1, 9, [2, 3], low, high[:12], ""]) == space


def test_negative_zero_is_the_same_bound_as_zero() -> None:
    """Equal bounds are equal bytes."""
    assert compress_bounds(np.float32([-0.0, 0.0])) == bytes(4)


def test_leaves_are_in_canonical_order_with_escaped_paths() -> None:
    """Dict names ascend whatever order they were given in; a slash in a name cannot be mistaken for a child."""
    box = spaces.Box(-1, 1, (1,))
    space = space_from_gymnasium(spaces.Dict([("b", spaces.Tuple((box, box))), ("a/0", box), ("~", box)]))
    assert [leaf.path for leaf in space.leaves()] == ["a~10", "b/0", "b/1", "~0"]
    assert [leaf.path for leaf in CARTPOLE.observation.leaves()] == [""]


def test_own_action_and_mask_sizes_count_columns() -> None:
    """Discrete 1 column, MultiDiscrete and MultiBinary one each, Box its elements; masks only for categories."""
    assert raw_action_size(EVERYTHING.action) == 2 + 3 + 1 + 2
    assert mask_size(EVERYTHING.action) == 3 + 4 + 2
    assert (raw_action_size(CARTPOLE.action), mask_size(CARTPOLE.action)) == (1, 2)
    with pytest.raises(ConfigError, match="Text"):
        raw_action_size(space_from_gymnasium(spaces.Text(3)))


def test_a_long_multi_discrete_is_described_in_a_line() -> None:
    """By what repeats in it, else by its first numbers."""
    cells = spaces.MultiDiscrete(np.broadcast_to(np.array([11, 6, 3]), (7, 7, 3)))
    said = space_from_gymnasium(cells, image=None).leaves()[0].describe()
    assert said == "multi_discrete of 49 × [11, 6, 3] from 147 × [0] int64[7, 7, 3]"
    odd = space_from_gymnasium(spaces.MultiDiscrete(np.arange(2, 302)), image=None).leaves()[0].describe()
    assert "300 in all" in odd
    assert len(odd) < 120


@pytest.mark.parametrize(
    ("gym_space", "words"),
    [
        (spaces.Box(0, 1, (2,), np.bool_), "dtype bool"),
        (spaces.Dict(a=spaces.Sequence(spaces.Discrete(2))), "'a' is a Sequence"),
        (spaces.Dict(a=spaces.Tuple((spaces.Graph(spaces.Discrete(2), None),))), "'a/0' is a Graph"),
        (spaces.OneOf((spaces.Discrete(2),)), "OneOf"),
        (spaces.Dict(), "number of children"),
        (spaces.Dict({"": spaces.Discrete(2)}), "length"),
        (spaces.Dict({3: spaces.Discrete(2)}), "key 3"),
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), "env.image to 'HWC' or 'CHW'"),
        (spaces.Discrete(1 << 30), "categories"),
        (spaces.Box(np.arange(5000, dtype=np.float32), np.float32(9000), (5000,)), "at most 16384"),
        (spaces.Tuple([spaces.Discrete(2)] * 300), "children"),
        (spaces.Tuple([spaces.Tuple([spaces.Discrete(2)] * 200)] * 2), "leaves"),
    ],
)
def test_a_space_that_cannot_travel_is_refused_with_its_leaf(gym_space: gymnasium.Space[Any], words: str) -> None:
    """The author of an environment learns which leaf to change, before anything runs."""
    with pytest.raises(ConfigError, match=words):
        space_from_gymnasium(gym_space)


def test_images_are_marked_and_never_guessed() -> None:
    """Rank 2 is HW; rank 3 takes what the caller says, for all leaves or by path; None means no images."""
    camera = spaces.Box(0, 255, (4, 6, 3), np.uint8)
    both = spaces.Dict(a=camera, b=camera, grey=spaces.Box(0, 255, (4, 6), np.uint8))
    images = [leaf.image for leaf in space_from_gymnasium(both, image={"a": "HWC", "b": "CHW"}).leaves()]
    assert images == ["HWC", "CHW", "HW"]
    assert [leaf.image for leaf in space_from_gymnasium(both, image=None).leaves()] == ["", "", ""]
    with pytest.raises(ConfigError, match="'b'"):
        space_from_gymnasium(both, image={"a": "HWC"})
    assert space_from_gymnasium(spaces.Box(0, 1, (4, 6, 3))).leaves()[0].image == ""


_DEEP: list[Any] = [2, 7, 2, 0]
for _ in range(9):
    _DEEP = [7, [_DEEP]]
_ONE = bytes(4)


@pytest.mark.parametrize(
    "wire",
    [
        None, 3, [], ["box"], [True, 9, [], _ONE, _ONE, ""], [0, 1], [8, 1], {}, b"", [[1]],
        [1], [1, 9, [1], _ONE, _ONE], [1, 11, [1], _ONE, _ONE, ""], [1, -1, [1], _ONE, _ONE, ""],
        [1, 9, [0], _ONE, _ONE, ""], [1, 9, [-1], _ONE, _ONE, ""], [1, 9, [1 << 40], _ONE, _ONE, ""],
        [1, 9, [8192, 8193], _ONE, _ONE, ""], [1, 9, [1] * 9, _ONE, _ONE, ""], [1, 9, [True], _ONE, _ONE, ""],
        [1, 9, 1, _ONE, _ONE, ""], [1, 9, [4], b"", _ONE, ""], [1, 9, [4], bytes(8), _ONE, ""],
        [1, 9, [4], bytes(3), _ONE, ""], [1, 9, [4], "0000", _ONE, ""], [1, 9, [4], _ONE, b"\x00\x00\x80\xbf", ""],
        [1, 9, [4], b"\x00\x00\xc0\x7f", _ONE, ""], [1, 9, [2, 3], bytes(8), _ONE, ""],
        [1, 9, [4, 4], _ONE, _ONE, "HW"], [1, 0, [4, 4], b"\0", b"\1", "HWC"], [1, 0, [4, 4], b"\0", b"\1", "WH"],
        [1, 0, [4, 4], b"\0", b"\1", None], [1, 9, [8192], bytes(32768), _ONE, ""],
        [2, 7, 0, 0], [2, 7, -1, 0], [2, 7, 1.0, 0], [2, 9, 2, 0], [2, 0, 2, -1], [2, 0, 300, 0], [2, 7, 2, 1 << 63],
        [2, 7, 1 << 21, 0], [2, 7, 2], [2, 6, 2, (1 << 64) - 1], [2, 7, True, 0],
        [3, 7, [2], [2], [0, 0]], [3, 7, [2], [2, 2], 0], [3, 7, [2], [2, 0], [0, 0]], [3, 9, [2], [2, 2], [0, 0]],
        [4, 1], [4, 1, None], [4, 12, [2]],
        [5, 0, 0, "a"], [5, 2, 1, "a"], [5, 0, 1 << 20, "a"], [5, 0, 4, ""], [5, 0, 4, "ba"], [5, 0, 4, "aa"],
        [5, -1, 4, "a"], [5, 0, 4, b"a"], [5, 0, 4, None],
        [6, []], [6, {}], [6, [["a"]]], [6, [["", [2, 7, 2, 0]]]], [6, [["a", [2, 7, 2, 0]], ["a", [2, 7, 2, 0]]]],
        [6, [["b", [2, 7, 2, 0]], ["a", [2, 7, 2, 0]]]], [6, [["x" * 129, [2, 7, 2, 0]]]], [6, [["\n", [2, 7, 2, 0]]]],
        [6, [["\ud800", [2, 7, 2, 0]]]], [6, [[1, [2, 7, 2, 0]]]], [7, [None]], [7, [[2, 7, 2, 0]] * 257], _DEEP,
        [7, [[7, [[2, 7, 2, 0]] * 256]] * 3],
    ],
)  # fmt: skip
def test_a_bad_wire_form_is_refused(wire: Any) -> None:
    """Kinds, dtypes, shapes, bounds, counts, names and depth are checked before anything is built from them."""
    with pytest.raises(RemoteWireError) as caught:
        space_from_wire(wire)
    assert caught.value.code == "space"


def test_values_that_do_not_fit_the_space_name_their_leaf() -> None:
    """An environment whose values differ from its space is told where."""
    space = space_from_gymnasium(spaces.Dict(a=spaces.Box(-1, 1, (3,)), b=spaces.Text(3)))
    good = {"a": np.zeros((2, 3), np.float32), "b": ["x", "yz"]}
    assert flatten(space, good)[0] is good["a"]
    for bad, words in (
        ({**good, "a": np.zeros((2, 4), np.float32)}, r"'a' has shape \(4,\)"),
        ({**good, "a": np.float32(1)}, "'a'"),
        ({**good, "a": [["x"]]}, "'a'"),
        ({**good, "b": ["xxxx", "y"]}, "'b' has 4 characters"),
        ({"a": good["a"]}, "'b'"),
        (3, "'a'"),
    ):
        with pytest.raises(EnvError, match=words):
            flatten(space, bad)


def test_text_is_a_byte_count_and_padded_utf_8() -> None:
    """Bytes on the wire exactly; a count beyond the field or broken UTF-8 from a peer is refused."""
    leaf = space_from_gymnasium(spaces.Text(2, charset="aä")).leaves()[0]
    rows = encode_text(leaf, ["aä", "", "a"])
    assert rows.tobytes().hex() == "0300000061c3a40000000000" + "00" * 12 + "010000006100000000000000"
    assert decode_text(leaf, rows) == ["aä", "", "a"]
    for raw in (b"\x09\x00\x00\x00" + bytes(8), b"\x01\x00\x00\x00\xff" + bytes(7), b"\xff" * 12):
        with pytest.raises(RemoteWireError):
            decode_text(leaf, np.frombuffer(raw, np.uint8)[None])


@pytest.mark.parametrize(
    ("gym_space", "good", "bad"),
    [
        (spaces.Discrete(3, start=-1), [[-1, 0, 1]], [[-2], [2], [np.iinfo(np.int64).min]]),
        (spaces.MultiDiscrete([2, 3]), [[[1, 2]]], [[[2, 0]], [[0, 3]], [[-1, 0]]]),
        (spaces.MultiBinary(2), [[[0, 1]]], [[[0, 2]], [[-1, 0]]]),
        (spaces.Box(-1, 1, (1,)), [[[0.5]], [[7.0]]], [[[np.nan]], [[np.inf]]]),
        (spaces.Box(0, 9, (1,), np.uint8), [[[255]]], []),
        (spaces.Text(2), [[[1, 0, 0, 0, 97, 0, 0, 0, 0, 0, 0, 0]]], [[[9, 0, 0, 0] * 3]]),
    ],
)
def test_a_peers_values_are_checked(gym_space: gymnasium.Space[Any], good: list[Any], bad: list[Any]) -> None:
    """Categories in range, floats finite, text within its field; exceeding a box's bounds is not an error."""
    space: Space = space_from_gymnasium(gym_space)
    dtype = space.leaves()[0].wire_dtype
    for value in good:
        check_values(space, [np.array(value, dtype)])
    for value in bad:
        with pytest.raises(RemoteWireError):
            check_values(space, [np.array(value, dtype)])
