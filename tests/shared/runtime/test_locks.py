"""Files that one process holds."""

import os
import threading
from pathlib import Path

import pytest

from seedbed.shared.runtime.locks import HeldError, is_held, take


def test_a_file_is_held_until_it_is_let_go(tmp_path: Path) -> None:
    """By one at a time; asking does not take it."""
    file = tmp_path / "lock"
    assert not is_held(file)
    held = take(file)
    assert is_held(file)
    with pytest.raises(HeldError, match=f"process {os.getpid()} on"):
        take(file)
    os.close(held)
    assert not is_held(file)


def test_those_who_ask_hinder_nobody(tmp_path: Path) -> None:
    """A page that looks again and again never keeps a learner from its folder."""
    file, is_over = tmp_path / "lock", threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            is_held(file)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(50):
            os.close(take(file))
    finally:
        is_over.set()
        asking.join()
