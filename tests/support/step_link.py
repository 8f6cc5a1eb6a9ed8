"""Small values for tests of the step link: a specification, HELLOs, payload frames that carry a number."""

import itertools
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from seedbed.shared.protocol.messages import Hello
from seedbed.shared.protocol.rows import act_layout, step_layout
from tests.support.specs import make_spec

SPEC = make_spec(
    gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32), gymnasium.spaces.MultiDiscrete([2, 2]), env_id="Counting-v0"
)
HELLO = Hello(
    library_version="0", actor="a", incarnation=11, group=0, lanes=2, nonce=0, mode="train", spec=SPEC,
    capabilities=("reset",),
)  # fmt: skip


def hello(**changes: Any) -> Hello:
    """A HELLO, with some fields changed."""
    return replace(HELLO, **changes)


def counter(start: int = 1) -> Callable[[], int]:
    """Nonces 1, 2, 3, …"""
    return itertools.count(start).__next__


def rows(number: int) -> list[bytes]:
    """STEP's payload with a number in its first bytes."""
    (size,) = step_layout(SPEC, HELLO.lanes).frame_bytes
    return [struct.pack("<q", number).ljust(size, b"\0")]


def actions(number: int) -> list[bytes]:
    """ACT's payload with a number in its first bytes."""
    (size,) = act_layout(SPEC, HELLO.lanes).frame_bytes
    return [struct.pack("<q", number).ljust(size, b"\0")]


def number_in(payload: Any) -> int:
    """The number that `rows` or `actions` put there."""
    return int(struct.unpack_from("<q", payload[0])[0])
