"""`seedbed env bench`: stages that contain each other, and shares of a tick that add up."""

import json
import os

import pytest

from seedbed.services.tools.cli.app import main
from seedbed.services.tools.cli.env.speed import BenchOptions, choose_cores, measure_in_process, shares
from seedbed.services.tools.cli.env.target import pinned
from seedbed.shared.runtime.config import EnvConfig


def test_shares_are_differences_of_stages():
    """Of one tick over the link; and how much of the bare environment's speed is left, with one group and several."""
    found = shares({"bare": 1.0, "rows": 1.5, "encoded": 2.0, "link": 4.0, "link, groups": 1.25})
    assert (found.pop("of_bare"), found.pop("of_bare_groups")) == (0.25, 0.8)
    assert found == {"simulator": 0.25, "rows": 0.125, "encoding": 0.125, "network": 0.5}
    assert sum(found.values()) == pytest.approx(1.0)


def test_without_a_bare_environment_simulator_and_rows_are_one():
    """As for EnvPool and back-ends of their authors."""
    assert shares({"rows": 2.0, "encoded": 3.0, "link": 4.0}) == {
        "simulator_and_rows": 0.5,
        "encoding": 0.25,
        "network": 0.25,
    }


def test_without_autoreset_no_copy_is_stepped_past_its_end():
    """Neither by the bare environment's loop nor by the group's."""
    env = EnvConfig(id="tests.support.toy_envs:strict_vector")
    stages = dict(measure_in_process(env, BenchOptions(lanes=3, seconds=0.1)))
    assert list(stages) == ["bare", "rows", "encoded"]


def test_every_stage_is_one_json_line(capsys):
    """Bare, rows, encoded, over the link with one group and with several, then the shares."""
    words = ["env.kwargs={cues = 3}", "--seconds", "0.5", "--lanes", "2"]
    assert main(["env", "bench", "seedbed.services.memory.env:make", *words]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["stage"] for line in lines] == ["bare", "rows", "encoded", "link", "link, groups", "shares"]
    assert all(line["bench"] == "env" for line in lines)
    assert all(line["steps_per_s"] > 0 for line in lines[:-1])
    assert [line["groups"] for line in lines[3:5]] == [1, 2]
    assert {"simulator", "rows", "encoding", "network"} <= set(lines[-1])


@pytest.mark.slow
def test_repeats_on_one_core_tell_medians_and_extremes(capsys):
    """EnvPool's own environment is the bare one; afterwards this process may use all of its cores again."""
    pytest.importorskip("envpool")
    before = os.sched_getaffinity(0)
    words = ["--seconds", "2", "--lanes", "4", "--repeats", "2", "--one-core"]
    assert main(["env", "bench", "CartPole-v1", "env.backend=envpool", *words]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["stage"] for line in lines] == ["bare", "rows", "encoded", "link", "link, groups", "shares"]
    assert all(line["slowest"] <= line["steps_per_s"] <= line["fastest"] for line in lines[:-1])
    assert {"simulator", "of_bare", "of_bare_groups"} <= set(lines[-1])
    assert len({line["machine"] for line in lines}) == 1, "the machine has all of its cores throughout"
    assert os.sched_getaffinity(0) == before


def test_cores_are_apart_where_there_are_two():
    """Environments get the first, and what answers them the last."""
    assert choose_cores({3, 1, 2}) == ({1}, {3})
    assert choose_cores({5}) == ({5}, {5})
    with pinned(choose_cores(os.sched_getaffinity(0))[0]):
        assert len(os.sched_getaffinity(0)) == 1
