"""A run that dies again and again at the same place ends, with the cause."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from seedbed.learner_svc.run.standstill import FILE, MAX_LIVES, CrashCounter, StandstillError, record_crash
from seedbed.shared.errors import ConfigError


def test_the_last_life_at_one_place_ends_the_run(tmp_path: Path) -> None:
    """And says by what; whoever starts it again has as many lives as before."""
    for _ in range(2):
        for number in range(MAX_LIVES - 1):
            record_crash(tmp_path, 400, f"cause {number}")
        with pytest.raises(StandstillError, match=r"400: .*the loss") as caught:
            record_crash(tmp_path, 400, "the loss")
        assert caught.value.exit_code == 78


def test_progress_begins_the_count_anew(tmp_path: Path) -> None:
    """A later checkpoint in between."""
    for update in range(4 * MAX_LIVES):
        record_crash(tmp_path, update // 3, "the loss")


def test_only_errors_that_a_restart_might_mend_are_counted(tmp_path: Path) -> None:
    """Neither an end in order, nor a signal, nor what ends the run anyhow."""
    for error in (None, asyncio.CancelledError(), ConfigError("no")):
        with contextlib.suppress(asyncio.CancelledError, ConfigError), CrashCounter(tmp_path, lambda: 3):
            if error is not None:
                raise error
    assert not (tmp_path / FILE).exists()
    with contextlib.suppress(ValueError), CrashCounter(tmp_path, lambda: 3):
        raise ValueError("x")
    assert (tmp_path / FILE).exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"update": 400}', '{"update": 400, "causes": 3}'])
def test_a_damaged_file_costs_the_count_alone(tmp_path: Path, content: str) -> None:
    """It is no reason to end a run, or to fail in another way."""
    (tmp_path / FILE).write_text(content)
    for _ in range(MAX_LIVES - 1):
        record_crash(tmp_path, 400, "the loss")
    with pytest.raises(StandstillError):
        record_crash(tmp_path, 400, "the loss")
