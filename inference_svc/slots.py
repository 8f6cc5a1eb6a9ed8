"""Allocates rows of the policy-state tables to groups: contiguous ranges, first fit."""

from seedbed.shared.errors import LocalWireError


class SlotPool:
    """The free slots. Owned by the service's loop; memory: one pair for each free range."""

    def __init__(self, max_slots: int) -> None:
        self._free: list[tuple[int, int]] = [(0, max_slots)]  # (start, count), ascending; adjacent ranges are merged
        self.max_slots = max_slots
        self.used = 0

    def allocate(self, count: int) -> int | None:
        """Take `count` slots in a row and return the first; None if no free range is that long."""
        for index, (start, length) in enumerate(self._free):
            if length >= count:
                rest = (start + count, length - count)
                self._free[index : index + 1] = [rest] if rest[1] else []
                self.used += count
                return start
        return None

    def release(self, start: int, count: int) -> None:
        """Free a range of slots. Raises: LocalWireError if any of it is free already."""
        if any(start < begin + length and begin < start + count for begin, length in self._free):
            raise LocalWireError(f"slots {start}..{start + count - 1} released twice")
        self.used -= count
        merged: list[tuple[int, int]] = []
        for begin, length in sorted([*self._free, (start, count)]):
            if merged and sum(merged[-1]) == begin:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((begin, length))
        self._free = merged
