"""Slot ranges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.inference_svc.slots import SlotPool
from seedbed.shared.errors import LocalWireError


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_no_slot_ever_belongs_to_two_groups_and_all_come_back(operations: list[tuple[bool, int]]) -> None:
    """Whatever the order of coming and going, ranges never overlap, and an emptied pool is whole again."""
    pool, held = SlotPool(32), []
    for takes, number in operations:
        if takes:
            start = pool.allocate(number)
            if start is not None:
                held.append((start, number))
        elif held:
            pool.release(*held.pop(number % len(held)))
        taken = [slot for start, count in held for slot in range(start, start + count)]
        assert len(taken) == len(set(taken)) == pool.used
        assert all(0 <= slot < 32 for slot in taken)
    for start, count in held:
        pool.release(start, count)
    assert pool.allocate(32) == 0


def test_a_range_released_twice_is_our_own_fault() -> None:
    """Releasing what is free is refused by name."""
    pool = SlotPool(4)
    with pytest.raises(LocalWireError, match=r"0\.\.1"):
        pool.release(0, 2)
