"""What happened in the groups: steps, finished and aborted episodes, and the EPISODES messages that tell of them."""

from collections.abc import Sequence

import numpy as np

from seedbed.inference_svc.evaluation import PlayedRound
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.flow import Outbox
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import Step, StepBits
from seedbed.shared.protocol.rows import ENDED, EnvSpec, Flags, count_flagged, episodes_layout
from seedbed.shared.protocol.spaces import all_true

# As plain integers: an enumeration's own operators cost as much as the arrays'.
_STATISTICS, _FIRST, _ENDED = int(StepBits.STATISTICS), int(Flags.FIRST), int(ENDED)


class EpisodeReport:
    """Training episodes and steps since the last EPISODES. Owned by the service's loop; emptied twice a second."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._clear()

    def _clear(self) -> None:
        self._statistics: list[Array] = []
        self._versions: list[int] = []
        self._steps = self._aborted = 0

    def count_steps(self, steps: int, aborted: int = 0) -> None:
        """Valid transitions of one tick, and episodes that it cut short."""
        self._steps += steps
        self._aborted += aborted

    def add(self, statistics: Array, version: int) -> None:
        """Episodes that ended in one tick, f32 [n, K]."""
        self._statistics.append(statistics)
        self._versions += [version] * len(statistics)

    def flush(self, spec: EnvSpec) -> None:
        """Pass on what has come together."""
        if self._steps or self._statistics:
            frames = _pack(spec, self._statistics, self._versions)
            self._outbox.push_episodes(
                frames, count=len(self._versions), acted_steps=self._steps, aborted=self._aborted
            )
            self._clear()

    def tell_evaluation(self, spec: EnvSpec, result: PlayedRound) -> None:
        """Pass on a finished evaluation, whole."""
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
    """Statistics f32 [ended lanes, K] of a STEP, None if no episode ended.

    Return and length are finite; another figure that the environment did not give is NaN.
    Raises: RemoteWireError if the frame does not have a row for each lane that ended, or holds another value.
    """
    if not step.bits & _STATISTICS:
        return None
    ended, width = count_flagged(flags, _ENDED), len(spec.statistics)
    if not extras or len(extras[0]) != ended * width * 4:
        raise RemoteWireError("statistics", f"{ended} lanes ended with {width} statistics each")
    statistics = np.ndarray((ended, width), np.float32, extras[0])
    if not all_true(np.isfinite(statistics)) and (
        not np.isfinite(statistics[:, :2]).all() or np.isinf(statistics).any()
    ):
        raise RemoteWireError("statistics", "a return or length that is not finite, or an infinite figure")
    return statistics


def valid_steps(flags: Array) -> int:
    """Lanes whose transition into this row is a step: all but those at a reset row."""
    return len(flags) - count_flagged(flags, _FIRST)


def aborted_episodes(previous: Array, flags: Array) -> int:
    """Lanes that were reset without an end: `first` after a row that had neither ended nor was itself `first`."""
    return int(np.count_nonzero((flags & _FIRST) & ~_spread(previous & (_ENDED | _FIRST))))


def _spread(bits: Array) -> Array:
    """All ones where any bit is set."""
    return np.where(bits != 0, np.uint8(255), np.uint8(0))
