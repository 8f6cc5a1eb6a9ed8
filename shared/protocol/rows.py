"""A group's rows: flags, environment specifications, and the layouts of STEP and ACT.

Row t of a lane: the observation, the reward and the flags that came with it, then the action taken at it.
`terminated` and `truncated` mark the row with an episode's final observation; the next row is the reset row (`first`),
its reward is 0 and the action before it is ignored. The transition into a `first` row is no step:
valid_t = 1 - first_{t+1}.
"""

import hashlib
import itertools
import json
import threading
from dataclasses import dataclass
from enum import IntFlag
from functools import lru_cache
from typing import Any

import numpy as np

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.layout import Array, Field, Layout
from seedbed.shared.protocol.spaces import Leaf, Space, mask_size, space_from_wire, space_to_wire


class Flags(IntFlag):
    """The flags of one lane and row, one byte."""

    TERMINATED = 1
    TRUNCATED = 2
    FIRST = 4
    LIFE_LOST = 8  # cuts the discount in training; no reset, no state change
    ABSENT = 16  # no agent in this lane at this row


ENDED = Flags.TERMINATED | Flags.TRUNCATED
_MARKS = [bytes(1 if value & bits else 0 for value in range(256)) for bits in range(int(max(Flags)) * 2)]
MAX_NAME = 256  # characters of an id, a setting's or a statistic's name
MAX_SETTING = 4096  # characters of a setting's value
MAX_LIST = 64  # settings, statistics
MAX_REWARD = 1e15  # absolute value: squares of returns must be finite in float32
REWARD_PROBLEM = f"a reward that is NaN, or beyond {MAX_REWARD:g} either way"
LARGEST_MESSAGE = 2  # size of all frames of a message together, in multiples of the largest frame
MAX_KNOWN_SPECS = 16  # specifications that are cached by the digest of their wire form
_known_specs: dict[bytes, "EnvSpec"] = {}
_knowing = threading.Lock()


def are_rewards(values: Array, out: Array | None = None) -> Array:
    """Return which floats are valid rewards, bool of the same shape: neither NaN nor beyond `MAX_REWARD`."""
    return np.asarray(np.less_equal(np.abs(values), MAX_REWARD, out=out))


def count_flagged(flags: Array, bits: int) -> int:
    """Count the lanes with any of these bits in flags u8 [L]; over bytes, three times as fast for small groups."""
    return flags.tobytes().translate(_MARKS[bits]).count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """The specification of an environment: all that a policy depends on. HELLO and the weights' manifest carry it."""

    env_id: str
    settings: tuple[tuple[str, str], ...] = ()  # (name, value as JSON), sorted: frame skip, clipping, …
    observation: Space
    action: Space
    mask_size: int = 0  # summed categories of all discrete action components, or 0 without masks
    statistics: tuple[str, ...] = ("return", "length")  # of an ended episode; the first two are always these

    @property
    def max_episode_steps(self) -> int | None:
        """The time limit among the settings, agent steps; None if there is none."""
        try:
            limit = json.loads(dict(self.settings).get("max_episode_steps", "null"))
        except ValueError:
            return None
        return limit if type(limit) is int else None

    def digest(self) -> str:
        """Return sixteen hex digits that differ if anything in the specification differs."""
        # JSON and not MessagePack: one canonical text, bytes as hex digits.
        text = json.dumps(spec_to_wire(self), separators=(",", ":"), default=bytes.hex)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def spec_to_wire(spec: EnvSpec) -> list[Any]:
    """Return [env_id, [[setting, value], ...], observation, action, mask_size, [statistic, ...]]."""
    return [
        spec.env_id, [list(item) for item in spec.settings], space_to_wire(spec.observation),
        space_to_wire(spec.action), spec.mask_size, list(spec.statistics),
    ]  # fmt: skip


def spec_from_wire(obj: Any) -> EnvSpec:
    """Return the specification in a peer's wire form; equal forms of late give the same cached object.

    Raises: RemoteWireError.
    """
    form = hashlib.blake2b(repr(obj).encode(errors="surrogatepass"), digest_size=32).digest()  # ten times as fast
    spec = _known_specs.get(form) or _read_spec(obj)
    with _knowing:
        _known_specs.pop(form, None)
        _known_specs[form] = spec
        if len(_known_specs) > MAX_KNOWN_SPECS:
            del _known_specs[next(iter(_known_specs))]
    return spec


def _read_spec(obj: Any) -> EnvSpec:
    if type(obj) is not list or len(obj) < 6:
        raise RemoteWireError("spec", "an environment specification must be an array of six")
    env_id, settings, observation, action, mask, statistics = obj[:6]
    if type(env_id) is not str or not 0 < len(env_id) <= MAX_NAME:
        raise RemoteWireError("spec", "the environment id must be a text of 1 to 256 characters")
    names = _spec_names(statistics, "statistics")
    if names[:2] != ("return", "length") or len(set(names)) != len(names):
        raise RemoteWireError("spec", "the statistics must be return, length and others, each once")
    action_space = _spec_space(action, "action")
    if any(leaf.kind == "text" for leaf in action_space.leaves()):
        raise RemoteWireError("spec", "the action space contains Text, which no policy can choose")
    if type(mask) is not int or mask not in (0, mask_size(action_space)):
        raise RemoteWireError("spec", f"masks of {mask!r} columns for {mask_size(action_space)} categories")
    return EnvSpec(
        env_id=env_id,
        settings=_spec_settings(settings),
        observation=_spec_space(observation, "observation"),
        action=action_space,
        mask_size=mask,
        statistics=names,
    )


def _spec_space(value: Any, what: str) -> Space:
    try:
        return space_from_wire(value)
    except RemoteWireError as error:
        raise RemoteWireError(error.code, f"{what} space: {error}") from error


def _spec_names(value: Any, what: str) -> tuple[str, ...]:
    if type(value) is not list or len(value) > MAX_LIST:
        raise RemoteWireError("spec", f"{what}: not an array of at most {MAX_LIST}")
    if not all(type(name) is str and 0 < len(name) <= MAX_NAME for name in value):
        raise RemoteWireError("spec", f"{what}: not texts of 1 to {MAX_NAME} characters")
    return tuple(value)


def _spec_settings(value: Any) -> tuple[tuple[str, str], ...]:
    if type(value) is not list or not all(type(item) is list and len(item) == 2 for item in value):
        raise RemoteWireError("spec", "settings: not an array of pairs")
    names = _spec_names([item[0] for item in value], "settings")
    if any(a >= b for a, b in itertools.pairwise(names)):
        raise RemoteWireError("spec", "settings: names not ascending")
    if not all(type(item[1]) is str and len(item[1]) <= MAX_SETTING for item in value):
        raise RemoteWireError("spec", f"settings: values are not texts of at most {MAX_SETTING} characters")
    return tuple((item[0], item[1]) for item in value)


def describe_difference(ours: EnvSpec, theirs: EnvSpec) -> str | None:
    """Return the first difference with both values, as text; None if there is none."""
    if ours.env_id != theirs.env_id:
        return f"environment id: ours {ours.env_id!r}, theirs {theirs.env_id!r}"
    mine, other = dict(ours.settings), dict(theirs.settings)
    for name in sorted(mine.keys() | other.keys()):
        if mine.get(name) != other.get(name):
            ours_said, theirs_said = (_brief(found.get(name, "absent")) for found in (mine, other))
            return f"setting {name}: ours {ours_said}, theirs {theirs_said}"
    return describe_space_difference(ours, theirs)


def describe_space_difference(ours: EnvSpec, theirs: EnvSpec) -> str | None:
    """Return the first difference in spaces, masks or statistics, as text; None if one policy can serve both."""
    for what, a, b in (
        ("observation", ours.observation, theirs.observation),
        ("action", ours.action, theirs.action),
    ):
        difference = _space_difference(a, b)
        if difference:
            return f"{what} {difference}"
    if ours.mask_size != theirs.mask_size:
        return f"action mask columns: ours {ours.mask_size}, theirs {theirs.mask_size}"
    if ours.statistics != theirs.statistics:
        return f"episode statistics: ours {list(ours.statistics)}, theirs {list(theirs.statistics)}"
    return None


def _brief(text: str) -> str:
    """Return a text shortened so that the values of both sides fit into a message."""
    return text if len(text) <= 200 else text[:200] + "…"


def _space_difference(ours: Space, theirs: Space) -> str | None:
    mine = {leaf.path: leaf for leaf in ours.leaves()}
    other = {leaf.path: leaf for leaf in theirs.leaves()}
    for path in sorted(mine.keys() | other.keys()):
        a, b = mine.get(path), other.get(path)
        if a == b:
            continue
        where = f"leaf {path!r}" if path else "space"
        if a is None or b is None:
            ours_said, theirs_said = (_brief(leaf.describe()) if leaf else "absent" for leaf in (a, b))
            return f"{where}: ours {ours_said}, theirs {theirs_said}"
        if a.describe() != b.describe():
            return f"{where}: ours {_brief(a.describe())}, theirs {_brief(b.describe())}"
        if a.kind == "box":
            return f"{where}: {_bounds_difference(a, b)}"
        return f"{where}: the characters allowed differ"
    return None if ours == theirs else "tree: the same leaves under dicts and tuples that differ"


def _bounds_difference(ours: Leaf, theirs: Leaf) -> str:
    (a_low, a_high), (b_low, b_high) = (
        (leaf.low_array().ravel(), leaf.high_array().ravel()) for leaf in (ours, theirs)
    )
    i = int(((a_low != b_low) | (a_high != b_high)).argmax())
    return f"bounds of element {i}: ours [{a_low[i]}, {a_high[i]}], theirs [{b_low[i]}, {b_high[i]}]"


@lru_cache(maxsize=256)
def step_layout(spec: EnvSpec, lanes: int) -> Layout:
    """Return the layout of STEP's arrays: observation leaves, mask u8 [L, M] if any, reward f32 [L], flags u8 [L]."""
    fields = [Field(leaf.path, leaf.wire_dtype, (lanes, *leaf.wire_shape)) for leaf in spec.observation.leaves()]
    if spec.mask_size:
        fields.append(Field("mask", "uint8", (lanes, spec.mask_size)))
    fields += [Field("reward", "float32", (lanes,)), Field("flags", "uint8", (lanes,))]
    return Layout(fields)


@lru_cache(maxsize=256)
def act_layout(spec: EnvSpec, lanes: int) -> Layout:
    """Return the layout of ACT's arrays: action leaves as the environment takes them."""
    return Layout([Field(leaf.path, leaf.wire_dtype, (lanes, *leaf.wire_shape)) for leaf in spec.action.leaves()])


def episodes_layout(spec: EnvSpec, count: int) -> Layout:
    """Return the layout of EPISODES' arrays in one frame: packed version i64 [N], then statistics f32 [N, K]."""
    fields = [Field("version", "int64", (count,)), Field("statistics", "float32", (count, len(spec.statistics)))]
    return Layout(fields, single_frame=True)
