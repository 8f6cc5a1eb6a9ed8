"""Specifications, and the frames of STEP, ACT, UNROLL and EPISODES against golden bytes."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.layout import Layout
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.protocol.rows import (
    EnvSpec,
    act_layout,
    count_flagged,
    describe_difference,
    episodes_layout,
    spec_from_wire,
    spec_to_wire,
    step_layout,
)
from seedbed.shared.protocol.spaces import space_from_gymnasium
from tests.support.protocol_examples import CARTPOLE, EVERYTHING, STATE_FIELDS

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "payloads.json").read_text())

LAYOUTS: dict[str, Layout] = {
    "cartpole_step": step_layout(CARTPOLE, 3),
    "cartpole_act": act_layout(CARTPOLE, 3),
    "cartpole_unroll": RecordSpec(CARTPOLE, 2, state=STATE_FIELDS).layout(3),
    "cartpole_episodes": episodes_layout(CARTPOLE, 3),
    "everything_step": step_layout(EVERYTHING, 2),
    "everything_act": act_layout(EVERYTHING, 2),
    "everything_unroll": RecordSpec(EVERYTHING, 1, state=STATE_FIELDS).layout(2),
    "everything_episodes": episodes_layout(EVERYTHING, 1),
}


def fill(layout: Layout) -> list[bytearray]:
    """Frames whose n-th field counts up from n, so that order, offset, dtype and byte order show in the bytes."""
    frames = layout.allocate()
    for number, view in enumerate(layout.views(frames)):
        view[...] = (np.arange(view.size) % 100 + number).reshape(view.shape)
    return frames


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_equals_its_golden_vector(name: str) -> None:
    """Field order, dtypes, shapes, places, frame sizes and bytes are fixed for good."""
    layout, golden = LAYOUTS[name], GOLDEN[name]
    fields = [
        [item.name, item.dtype, list(item.shape), *place]
        for item, place in zip(layout.fields, layout.offsets, strict=True)
    ]
    assert fields == golden["fields"]
    assert list(layout.frame_bytes) == golden["frame_bytes"]
    for frame, (start, end) in zip(fill(layout), golden["frames"], strict=True):
        assert frame[:512].hex() == start
        assert frame[-64:].hex() == end


@pytest.mark.parametrize(("name", "spec"), [("cartpole", CARTPOLE), ("everything", EVERYTHING)])
def test_digest_is_fixed(name: str, spec: EnvSpec) -> None:
    """The digest that travels with unrolls and weights does not depend on the process or the version."""
    assert spec.digest() == GOLDEN["digests"][name]


@pytest.mark.parametrize("spec", [CARTPOLE, EVERYTHING])
def test_specification_survives_the_wire(spec: EnvSpec) -> None:
    """What HELLO carries is read back equal, digest and all."""
    again = spec_from_wire(spec_to_wire(spec))
    assert again == spec
    assert again.digest() == spec.digest()


def _replace(**changes: Any) -> Callable[[EnvSpec], EnvSpec]:
    return lambda spec: dataclasses.replace(spec, **changes)


_BOX = gymnasium.spaces.Box


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_replace(env_id="CartPole-v0"), ["environment id", "CartPole-v0"]),
        (_replace(settings=(("max_episode_steps", "200"),)), ["max_episode_steps", "500", "200"]),
        (_replace(settings=()), ["max_episode_steps", "absent"]),
        (_replace(observation=space_from_gymnasium(_BOX(-1, 1, (5,)))), ["observation space", "[4]", "[5]"]),
        (_replace(observation=space_from_gymnasium(_BOX(-1, 1, (4,)))), ["bounds", "4.8", "1.0"]),
        (
            _replace(observation=space_from_gymnasium(gymnasium.spaces.Dict(a=_BOX(-1, 1, (4,))))),
            ["observation space", "absent"],
        ),
        (_replace(action=space_from_gymnasium(gymnasium.spaces.Discrete(3))), ["action space", "of 2", "of 3"]),
        (_replace(action=space_from_gymnasium(gymnasium.spaces.Discrete(2, start=1))), ["of 2", "of 2 from 1"]),
        (_replace(mask_size=2), ["mask", "2"]),
        (_replace(statistics=("return", "length", "score")), ["statistics", "score"]),
    ],
)
def test_a_difference_is_named_with_both_values(change: Callable[[EnvSpec], EnvSpec], words: list[str]) -> None:
    """A REJECT can say which leaf or setting differs, and how; the digest differs too."""
    theirs = change(CARTPOLE)
    said = describe_difference(CARTPOLE, theirs)
    assert said is not None
    assert all(word in said for word in words), said
    assert describe_difference(theirs, theirs) is None
    assert theirs.digest() != CARTPOLE.digest()


def test_equal_leaves_under_another_tree_are_a_difference() -> None:
    """A tuple and a dict with the same leaf paths are not one space."""
    box = _BOX(-1, 1, (1,))
    ours = dataclasses.replace(CARTPOLE, observation=space_from_gymnasium(gymnasium.spaces.Tuple((box,))))
    theirs = dataclasses.replace(CARTPOLE, observation=space_from_gymnasium(gymnasium.spaces.Dict({"0": box})))
    assert "tree" in str(describe_difference(ours, theirs))


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (0, ""), (0, 1), (0, "x" * 257),
        (1, [["b", "1"], ["a", "1"]]), (1, [["a", "1"], ["a", "1"]]), (1, [["a"]]), (1, [["a", 1]]), (1, {}),
        (1, [["a", "1" * 5000]]),
        (2, None), (3, [5, 0, 1, "a"]), (4, 1), (4, True), (4, -1), (4, 3),
        (5, []), (5, ["length", "return"]), (5, ["return", "length", "return"]), (5, ["return", "length", ""]),
        (5, ["return", "length", 3]), (5, ["return", "length", *map(str, range(64))]),
    ],
)  # fmt: skip
def test_a_bad_specification_is_refused(index: int, value: Any) -> None:
    """Every part of a peer's specification is checked."""
    wire = spec_to_wire(CARTPOLE)
    wire[index] = value
    with pytest.raises(RemoteWireError):
        spec_from_wire(wire)
    with pytest.raises(RemoteWireError):
        spec_from_wire(wire[:5])


def test_flagged_lanes_are_counted_by_any_of_the_bits() -> None:
    """Lanes, not bits; a byte may have bits that nobody knows."""
    flags = np.arange(256, dtype=np.uint8)
    for bits in range(32):
        assert count_flagged(flags, bits) == np.count_nonzero(flags & bits)
