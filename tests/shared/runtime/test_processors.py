"""How busy the machine is, from what the system counts."""

import pytest

from seedbed.shared.runtime.processors import MachineLoad


def test_the_share_is_of_the_time_between_two_questions(tmp_path):
    """Idle and waiting for disks is not busy; time that a host gave to others is."""
    file = tmp_path / "stat"
    file.write_text("cpu  100 0 50 800 50 0 0 0 9 9\ncpu0 1 1 1 1\n")
    load = MachineLoad(file)
    file.write_text("cpu  130 5 60 820 80 2 3 30 99 99\n")
    assert load.busy_share() == pytest.approx(80 / 130)
    assert load.busy_share() is None, "no time has passed"
    file.write_text("cpu  130 5 60 920 80 2 3 30\n")
    assert load.busy_share() == 0.0


@pytest.mark.parametrize("text", ["", "cpu\n", "cpu  1 2 x 4 5\n"])
def test_where_the_system_does_not_tell_nothing_is_said(tmp_path, text):
    """Another operating system, or another format."""
    (tmp_path / "stat").write_text(text)
    assert MachineLoad(tmp_path / "stat").busy_share() is None
    assert MachineLoad(tmp_path / "absent").busy_share() is None
