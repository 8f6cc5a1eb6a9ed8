"""`seedbed env bench`: stages that contain each other, and shares of a tick that add up."""

import json

import pytest

from services.cli.app import main
from services.cli.env.speed import shares


def test_shares_are_differences_of_stages():
    """Of one tick over the link."""
    found = shares({"bare": 1.0, "rows": 1.5, "encoded": 2.0, "link": 4.0})
    assert found == {"simulator": 0.25, "rows": 0.125, "encoding": 0.125, "network": 0.5}
    assert sum(found.values()) == pytest.approx(1.0)


def test_without_a_bare_environment_simulator_and_rows_are_one():
    """As for EnvPool and back-ends of their authors."""
    assert shares({"rows": 2.0, "encoded": 3.0, "link": 4.0}) == {
        "simulator_and_rows": 0.5,
        "encoding": 0.25,
        "network": 0.25,
    }


def test_every_stage_is_one_json_line(capsys):
    """Bare, rows, encoded, over the link with one group and with several, then the shares."""
    words = ["env.kwargs={cues = 3}", "--seconds", "0.5", "--lanes", "2"]
    assert main(["env", "bench", "services.memory.env:make", *words]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["stage"] for line in lines] == ["bare", "rows", "encoded", "link", "link, groups", "shares"]
    assert all(line["bench"] == "env" for line in lines)
    assert all(line["steps_per_s"] > 0 for line in lines[:-1])
    assert [line["groups"] for line in lines[3:5]] == [1, 2]
    assert {"simulator", "rows", "encoding", "network"} <= set(lines[-1])
