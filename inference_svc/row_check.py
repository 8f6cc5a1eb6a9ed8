"""Checks the values of a STEP's rows before they reach the policy: finite, valid categories, and within bounds."""

from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np

from seedbed.inference_svc.config import OutOfBounds
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.rows import REWARD_PROBLEM, EnvSpec, Flags, are_rewards
from seedbed.shared.protocol.spaces import Leaf, all_true, are_finite, check_leaf_values

BOUNDS = "bounds"  # the error code under the policy `reject`


@dataclass(frozen=True, slots=True)
class _Bounded:
    """An observation leaf with bounds that its values can leave."""

    index: int  # among the arrays of a STEP
    leaf: Leaf
    low: Array  # repeated for all lanes, [L, ...]: comparing equal shapes takes half the time
    high: Array
    is_proof: bool  # whether values within bounds are finite as float32


class RowCheck:
    """Checks the rows of groups with the same specification and number of lanes. Immutable; `row_check` shares them.

    Args:
      policy: what to do with observations outside their Box: `count` only counts them, `clip` moves them to the
        nearest bound, `reject` refuses the STEP.
    """

    def __init__(self, spec: EnvSpec, policy: OutOfBounds, lanes: int) -> None:
        self._policy = policy
        leaves = tuple(enumerate(spec.observation.leaves()))
        self._bounded = [
            _bounded(index, leaf, lanes) for index, leaf in leaves if leaf.kind == "box" and not _is_whole_range(leaf)
        ]
        proven = {item.index for item in self._bounded if item.is_proof}
        self._unproven = [(index, leaf) for index, leaf in leaves if index not in proven]

    def __call__(self, inputs: list[Array]) -> int:
        """Count the lanes of this tick with an observation out of bounds.

        Args:
          inputs: the arrays of a STEP; clipped ones are replaced in the list.
        Raises: RemoteWireError for a value that would break the forward pass or the loss, or under `reject`.
        """
        for index, leaf in self._unproven:
            check_leaf_values(leaf, inputs[index])
        if not all_true(are_rewards(inputs[-2])):
            raise RemoteWireError("reward", REWARD_PROBLEM)
        outside = None
        for bounded in self._bounded:
            values = inputs[bounded.index]
            if all_true((values >= bounded.low) & (values <= bounded.high)):  # False for NaN
                continue
            check_leaf_values(bounded.leaf, values)
            found = self._outside(bounded, values, inputs[-1])
            outside = found if outside is None else outside | found
            if self._policy == "clip":
                inputs[bounded.index] = np.clip(values, bounded.low, bounded.high)
        return 0 if outside is None else int(np.count_nonzero(outside))

    def _outside(self, bounded: _Bounded, values: Array, flags: Array) -> Array:
        """Return which lanes' values are outside the bounds, bool [L]; lanes without an agent do not count."""
        is_outside = ((values < bounded.low) | (values > bounded.high)).reshape(len(flags), -1)
        is_outside &= ((flags & int(Flags.ABSENT)) == 0)[:, None]
        if self._policy == "reject" and is_outside.any():
            lane, element = (int(place[0]) for place in is_outside.nonzero())
            value, low, high = (array[lane].reshape(-1)[element] for array in (values, bounded.low, bounded.high))
            place = f"observation {bounded.leaf.path!r}, lane {lane}, element {element}"
            raise RemoteWireError(BOUNDS, f"{place}: {value} is outside [{low}, {high}]")
        return np.asarray(is_outside.any(1))


_in_use: WeakValueDictionary[tuple[EnvSpec, OutOfBounds, int], RowCheck] = WeakValueDictionary()


def row_check(spec: EnvSpec, policy: OutOfBounds, lanes: int) -> RowCheck:
    """Return the `RowCheck` with these arguments that a group already uses; a new one if none does."""
    found = _in_use.get((spec, policy, lanes))
    if found is None:
        found = _in_use[spec, policy, lanes] = RowCheck(spec, policy, lanes)
    return found


def _bounded(index: int, leaf: Leaf, lanes: int) -> _Bounded:
    low, high = (np.repeat(bound[None], lanes, 0) for bound in (leaf.low_array(), leaf.high_array()))
    return _Bounded(index, leaf, low, high, is_proof=all_true(are_finite(low)) and all_true(are_finite(high)))


def _is_whole_range(leaf: Leaf) -> bool:
    """Whether no value of the dtype lies outside the leaf's bounds."""
    low, high = leaf.low_array(), leaf.high_array()
    if low.dtype.kind == "f":
        return bool(np.isneginf(low).all() and np.isposinf(high).all())
    limits = np.iinfo(low.dtype)
    return bool((low == limits.min).all() and (high == limits.max).all())
