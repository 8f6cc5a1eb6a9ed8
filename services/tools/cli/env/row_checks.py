"""The rules of rows, judged tick by tick; it holds one tick and figures, however long it watches.

Array suffixes: L lanes, M mask columns, E lanes whose episode ended, K statistics.
"""

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from seedbed.services.tools.cli.env.scale_checks import ScaleWatch, name_of
from seedbed.services.tools.cli.env.verdicts import Result, failed, passed, skipped, warned
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import StepBits
from seedbed.shared.protocol.rows import ENDED, REWARD_PROBLEM, EnvSpec, Flags, are_rewards, step_layout
from seedbed.shared.protocol.spaces import Leaf, check_values

FIRST, TERMINATED, TRUNCATED = int(Flags.FIRST), int(Flags.TERMINATED), int(Flags.TRUNCATED)
ABSENT, ENDED_BITS = int(Flags.ABSENT), int(ENDED)
KNOWN_FLAGS = int(sum(Flags))  # all lower bits
MAX_NAMED = 6  # lanes that a message lists
MAX_RETURNS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One tick's rows of a group."""

    observation: tuple[Array, ...]  # leaves in canonical order, [L, ...]
    mask: Array | None  # u8 [L, M]
    reward: Array  # f32 [L]
    flags: Array  # u8 [L]
    statistics: Array | None  # f32 [E, K]; none was sent


def read_tick(spec: EnvSpec, lanes: int, bits: int, payload: Sequence[bytes]) -> Tick:
    """A STEP's payload frames as a tick.

    Raises: RemoteWireError if frames have wrong sizes.
    """
    layout = step_layout(spec, lanes)
    size = len(layout.frame_bytes)
    layout.check(payload[:size])
    *leaves, reward, flags = layout.views(payload[:size])
    mask = leaves.pop() if spec.mask_size else None
    rest = payload[size:]
    statistics: Array | None = None
    if bits & StepBits.STATISTICS:
        width = len(spec.statistics)
        if not rest or len(rest[0]) % (4 * width):
            sizes = [len(frame) for frame in rest]
            raise RemoteWireError(
                "statistics", f"bit 1 says one frame of float32 [E, {width}]; there are {sizes} bytes"
            )
        statistics, rest = np.frombuffer(rest[0], np.float32).reshape(-1, width), rest[1:]
    if len(rest) != (1 if bits & StepBits.RENDER else 0):
        raise RemoteWireError("frame_count", f"{len(rest)} frames behind those that bits {bits} announce")
    return Tick(observation=tuple(leaves), mask=mask, reward=reward, flags=flags, statistics=statistics)


def fingerprint(spec: EnvSpec, tick: Tick) -> dict[str, str]:
    """What a tick holds, short enough to keep: a digest of each array by its name."""
    arrays = dict(zip((name_of(leaf) for leaf in spec.observation.leaves()), tick.observation, strict=True))
    arrays |= {"reward": tick.reward, "flags": tick.flags}
    if tick.mask is not None:
        arrays["mask"] = tick.mask
    return {name: hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest() for name, array in arrays.items()}


def compare_episodes(
    first: Sequence[dict[str, str]], again: Sequence[dict[str, str]], other: Sequence[dict[str, str]]
) -> Result:
    """The rule of seeds: two plays of one seed and the same actions are alike; another seed's may differ."""
    for tick, (a, b) in enumerate(zip(first, again, strict=True)):
        different = [name for name in a if a[name] != b[name]]
        if different:
            return failed(
                "seeds", f"the same seed and actions, but {different[0]} differs {tick} ticks after the reset"
            )
    same = f"the same seed plays the same {len(first)} ticks"
    return passed("seeds", same if first != other else f"{same}; so does another seed: nothing seems to be random")


class RowChecker:
    """Judges the rows of one group as they come. `who` begins every finding, as "group 1: ".

    Large because each check counts for itself over all ticks.
    """

    def __init__(self, spec: EnvSpec, lanes: int, who: str = "") -> None:
        self.spec, self.lanes = spec, lanes
        self.num_ticks = self.num_steps = 0
        self._who = who
        self._broken: dict[str, str] = {}
        self._boxes = [leaf if leaf.kind == "box" else None for leaf in spec.observation.leaves()]
        self._bounds = [(leaf.low_array(), leaf.high_array()) if leaf else None for leaf in self._boxes]
        self._previous: Array | None = None  # flags
        self._return: Array = np.zeros(lanes, np.float64)
        self._length: Array = np.zeros(lanes, np.int64)
        self._whole: Array = np.zeros(lanes, np.bool_)  # the episode was seen from its start
        self._num_rebuilt = 0
        self._num_terminated = self._num_truncated = 0
        self._lengths: set[int] = set()  # of whole episodes; at most a few are kept
        self._limit = spec.max_episode_steps
        self._whole_returns: deque[float] = deque(maxlen=MAX_RETURNS)  # of episodes seen from their first row on
        self._terminated_at_limit = 0
        self._own_names = spec.statistics[2:]
        self._own_seen: Array = np.zeros(len(self._own_names), np.int64)  # in how many finished episodes
        self._scale = ScaleWatch(spec.observation)

    def observe(self, tick: Tick, *, after_reset: bool) -> None:
        """Judge one tick; `after_reset`: the first of all, or the answer to a reset."""
        self._check_flags(tick, after_reset)
        self._check_values(tick)
        self._follow_episodes(tick)
        self._previous = tick.flags
        self.num_ticks += 1

    def results(self) -> list[Result]:
        """The results of all rules about rows, from what was seen so far."""
        rows = f"{self.num_ticks} ticks of {self.lanes} lanes"
        kept = {
            "values": f"finite and of their spaces in {rows}",
            "bounds": "observations lie within their Box",
            "first rows": "every lane begins an episode after a reset",
            "flags": "known ones, and none that exclude each other",
            "next-step reset": "after an end the next row is the reset row",
            "reset rewards": "0 in every reset row",
            "no rebuilt lanes": "no lane failed",
        }
        if self.spec.mask_size:
            kept["masks"] = "0 and 1 only"
        found = [
            failed(name, self._broken[name]) if name in self._broken else passed(name, seen)
            for name, seen in kept.items()
        ]
        return [*found, *self._judge_ends(), *self._scale.results()]

    # Within

    def _note(self, name: str, text: str) -> None:
        """The first finding about a rule is kept."""
        self._broken.setdefault(name, f"{self._who}tick {self.num_ticks}: {text}")

    def _check_flags(self, tick: Tick, after_reset: bool) -> None:
        flags, previous = tick.flags, self._previous
        first, ended = flags & FIRST != 0, flags & ENDED_BITS != 0
        if (flags > KNOWN_FLAGS).any():
            self._note("flags", f"unknown bits in {_lanes(np.asarray(flags > KNOWN_FLAGS), flags)}")
        if (first & ended).any():
            self._note("flags", f"`first` and ended at once in {_lanes(first & ended)}")
        if after_reset or previous is None:
            if not first.all():
                self._note("first rows", f"no `first` in {_lanes(~first)} right after a reset")
        else:
            had_ended = previous & ENDED_BITS != 0
            missing = had_ended & ~first & (flags & ABSENT == 0)
            if missing.any():
                self._note("next-step reset", f"no `first` in {_lanes(missing)}, whose row before ended an episode")
            rebuilt = first & ~had_ended & (previous & ABSENT == 0)
            if rebuilt.any():
                self._num_rebuilt += int(rebuilt.sum())
                self._note("no rebuilt lanes", f"`first` without an end before it in {_lanes(rebuilt)}")
        if (tick.reward[first] != 0).any():
            self._note("reset rewards", f"a reward in {_lanes(first & (tick.reward != 0), tick.reward)}")

    def _check_values(self, tick: Tick) -> None:
        try:
            check_values(self.spec.observation, tick.observation)
        except RemoteWireError as error:
            self._note("values", f"observation {error}".replace(" '' ", " "))
        if not (fine := are_rewards(tick.reward)).all():
            self._note("values", f"{REWARD_PROBLEM}, in {_lanes(~fine, tick.reward)}")
        present = tick.flags & ABSENT == 0
        for leaf, bounds, view in zip(self._boxes, self._bounds, tick.observation, strict=True):
            if leaf is not None and bounds is not None:
                self._check_bounds(leaf, bounds, view, present)
        self._scale.observe(tick.observation, present)
        if tick.mask is not None and (tick.mask > 1).any():
            self._note("masks", f"values above 1 in {_lanes(np.asarray((tick.mask > 1).any(1)))}")

    def _check_bounds(self, leaf: Leaf, bounds: tuple[Array, Array], view: Array, present: Array) -> None:
        low, high = bounds
        outside = ((view < low) | (view > high)) & present.reshape(-1, *[1] * leaf.low_array().ndim)
        if outside.any():
            lane, *place = (int(index[0]) for index in outside.nonzero())
            value, spot = view[(lane, *place)], tuple(place)
            self._note(
                "bounds",
                f"{name_of(leaf)}{list(place) if place else ''} of lane {lane} is {value}, its space says "
                f"{low[spot]} to {high[spot]}",
            )

    def _follow_episodes(self, tick: Tick) -> None:
        """Sum up returns and lengths, and compare them with what the peer says at the end."""
        first, ended = tick.flags & FIRST != 0, (tick.flags & ENDED_BITS != 0).nonzero()[0]
        self._return += tick.reward
        self._length += 1
        self.num_steps += self.lanes - int(first.sum())
        self._return[first], self._length[first], self._whole[first] = 0.0, 0, True
        self._compare_statistics(tick.statistics, ended)
        if self._limit is not None and (over := self._whole & (self._length > self._limit)).any():
            self._note("ends", f"{_lanes(over, self._length)} went on beyond max_episode_steps, which is {self._limit}")
        for lane in ended.tolist():
            is_truncated = bool(tick.flags[lane] & TRUNCATED)
            self._num_truncated += is_truncated
            self._num_terminated += not is_truncated
            if self._whole[lane]:
                length = int(self._length[lane])
                self._whole_returns.append(float(self._return[lane]))
                if len(self._lengths) < MAX_NAMED:
                    self._lengths.add(length)
                self._judge_length(lane, length, is_truncated)

    def _judge_length(self, lane: int, length: int, is_truncated: bool) -> None:
        if self._limit is None:
            return
        self._terminated_at_limit += length == self._limit and not is_truncated
        if self._terminated_at_limit > 1 and not self._num_truncated:
            self._note("ends", f"episodes that last {length} steps, the time limit, are `terminated` only")

    def _compare_statistics(self, statistics: Array | None, ended: Array) -> None:
        count = 0 if statistics is None else len(statistics)
        if count != len(ended):
            self._note("statistics", f"{count} rows of statistics for {len(ended)} lanes that ended")
            return
        if statistics is not None:
            self._own_seen += np.isfinite(statistics[:, 2:]).sum(0)
        for lane, said in zip(ended.tolist(), statistics if statistics is not None else (), strict=True):
            if not self._whole[lane]:
                continue
            expected = self._return[lane], self._length[lane]
            if not np.allclose(said[:2], expected, rtol=1e-3, atol=1e-3):
                self._note(
                    "statistics",
                    f"lane {lane} says return {said[0]:.6g} and length {said[1]:.0f}; its rows add up to "
                    f"{expected[0]:.6g} and {expected[1]}",
                )

    def _judge_ends(self) -> list[Result]:
        ended = self._num_terminated + self._num_truncated
        for_want = f"no episode ended within {self.num_ticks} ticks; raise --soak-steps"
        results = []
        for name in ("statistics", "ends"):
            if name in self._broken:
                results.append(failed(name, self._broken[name]))
            elif not ended:
                results.append(skipped(name, for_want))
            elif name == "statistics":
                results.append(passed(name, f"return and length of {ended} episodes add up"))
            else:
                results.append(passed(name, self._describe_ends()))
        return [*results, *self._judge_own_statistics(ended), *self._judge_truncation()]

    def _judge_own_statistics(self, ended: int) -> list[Result]:
        """Whether finished episodes had the statistics that the environment declares."""
        if not self._own_names or not ended:
            return []
        missing = [name for name, seen in zip(self._own_names, self._own_seen, strict=True) if not seen]
        if missing:
            return [warned("own statistics", f"none of {ended} finished episodes had {', '.join(missing)}")]
        return [passed("own statistics", ", ".join(self._own_names))]

    def _judge_truncation(self) -> list[Result]:
        """Whether anybody saw what a time limit does."""
        if self._num_truncated:
            return [passed("truncation", f"seen {self._num_truncated} times")]
        return [skipped("truncation", "no episode was truncated: if there is a time limit, it is untested")]

    def _describe_ends(self) -> str:
        text = f"{self._num_terminated} terminated, {self._num_truncated} truncated"
        if self._whole_returns:
            text += f"; random actions return {fmean(self._whole_returns):.4g} on average"
        if len(self._lengths) == 1 and not self._num_truncated and self._num_terminated > 1:
            text += f"; all after {next(iter(self._lengths))} steps: if that is a time limit, set truncated instead"
        return text


def _lanes(chosen: Array, values: Array | None = None) -> str:
    """ "lane 3 (0.5)", "lanes 1, 2, …"."""
    indices = chosen.nonzero()[0].tolist()
    named = [f"{i}" if values is None else f"{i} ({values[i]})" for i in indices[:MAX_NAMED]]
    return f"lane{'s' if len(indices) > 1 else ''} {', '.join(named)}{', …' if len(indices) > MAX_NAMED else ''}"
