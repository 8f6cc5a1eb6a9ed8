"""Counts steps and episodes of groups, and packs them into EPISODES messages."""

from collections.abc import Sequence

import numpy as np

from seedbed.inference_svc.evaluation import FinishedRound
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import Step, StepBits
from seedbed.shared.protocol.outbox import Outbox
from seedbed.shared.protocol.rows import ENDED, EnvSpec, Flags, count_flagged, episodes_layout
from seedbed.shared.protocol.spaces import all_true

# Plain integers: the operators of an enumeration would take as long as those of the arrays.
_STATISTICS, _FIRST, _ENDED = int(StepBits.STATISTICS), int(Flags.FIRST), int(ENDED)


class EpisodeReport:
    """Training steps and episodes since the last EPISODES message. Owned by the service's loop; sent twice a second."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._clear()

    def _clear(self) -> None:
        self._statistics: list[Array] = []
        self._versions: list[int] = []
        self._steps = self._aborted = 0

    def count_steps(self, steps: int, aborted: int = 0) -> None:
        """Add the valid transitions of one tick, and the episodes that were aborted in it."""
        self._steps += steps
        self._aborted += aborted

    def add(self, statistics: Array, version: int) -> None:
        """Add the statistics of episodes that ended in one tick, f32 [n, K], acted by this policy version."""
        self._statistics.append(statistics)
        self._versions += [version] * len(statistics)

    def flush(self, spec: EnvSpec) -> None:
        """Queue an EPISODES message of everything since the last one, if there is anything."""
        if self._steps or self._statistics:
            frames = _pack(spec, self._statistics, self._versions)
            self._outbox.push_episodes(
                frames, count=len(self._versions), acted_steps=self._steps, aborted=self._aborted
            )
            self._clear()

    def report_evaluation(self, spec: EnvSpec, result: FinishedRound) -> None:
        """Queue one EPISODES message with all episodes of a finished evaluation."""
        count = len(result.statistics)
        frames = _pack(spec, [result.statistics], [result.version] * count)
        self._outbox.push_episodes(frames, count=count, acted_steps=0, mode="eval", evaluation=result.id)


def _pack(spec: EnvSpec, statistics: Sequence[Array], versions: Sequence[int]) -> list[bytearray]:
    layout = episodes_layout(spec, len(versions))
    frames = layout.allocate()
    version, values = layout.views(frames)
    version[:] = versions
    if statistics:
        values[:] = np.concatenate(list(statistics))
    return frames


def read_statistics(spec: EnvSpec, step: Step, flags: Array, extras: Sequence[bytes]) -> Array | None:
    """Return the statistics of a STEP, f32 [ended lanes, K]; None if no episode ended.

    Return and length are finite; another statistic is NaN where the environment did not give it.
    Raises: RemoteWireError if the frame has not one row for each ended lane, or holds another value.
    """
    if not step.bits & _STATISTICS:
        return None
    ended, width = count_flagged(flags, _ENDED), len(spec.statistics)
    if not extras or len(extras[0]) != ended * width * 4:
        found = len(extras[0]) if extras else 0
        message = f"a frame of {found} bytes, expected {width} statistics of each of the {ended} ended lanes"
        raise RemoteWireError("statistics", message)
    statistics = np.ndarray((ended, width), np.float32, extras[0])
    if not all_true(np.isfinite(statistics)) and (
        not np.isfinite(statistics[:, :2]).all() or np.isinf(statistics).any()
    ):
        raise RemoteWireError("statistics", "a return or length is not finite, or another statistic is infinite")
    return statistics


def valid_steps(flags: Array) -> int:
    """Count the lanes whose transition into this row is a step: all but those at a reset row."""
    return len(flags) - count_flagged(flags, _FIRST)


def aborted_episodes(previous: Array, flags: Array) -> int:
    """Count the lanes reset in mid-episode: `first` after a row that was neither an ended row nor itself `first`."""
    return int(np.count_nonzero((flags & _FIRST) & ~_spread(previous & (_ENDED | _FIRST))))


def _spread(bits: Array) -> Array:
    """Return 255 where any bit is set, else 0."""
    return np.where(bits != 0, np.uint8(255), np.uint8(0))
