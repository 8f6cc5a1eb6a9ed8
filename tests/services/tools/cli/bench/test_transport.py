"""The transport benchmark runs real processes and reports what they did."""

import json

import pytest

from seedbed.services.tools.cli.bench import transport
from seedbed.services.tools.cli.bench.transport import IMAGES, SCENARIOS, TransportScenario, run_scenario
from seedbed.services.tools.cli.bench.transport_peers import OBSERVATION_BYTES, SPEC
from seedbed.shared.net.keyring import Keyring
from seedbed.shared.protocol.rows import step_layout


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_scenario_reports_rates_and_latencies(loop):
    """Two clients with several groups each are all served; steps are requests times lanes."""
    result = run_scenario(TransportScenario("tiny", clients=2, groups=3, lanes=5), loop, 0.3)
    assert json.loads(json.dumps(result)) == result
    assert result["requests_per_s"] > 0
    assert result["env_steps_per_s"] == pytest.approx(5 * result["requests_per_s"], abs=5)
    assert 0 < result["p50_ms"] <= result["p99_ms"]
    assert result["server_cpu_us_per_request"] > 0
    assert (result["loop"], result["groups"], result["lanes"]) == (loop, 6, 5)


def test_observations_have_the_size_that_is_reported():
    """A row is 64 bytes of observation, besides reward and flags."""
    assert step_layout(SPEC, 1).fields[0].num_bytes == OBSERVATION_BYTES == 64


def test_the_scenarios_are_told_apart_by_name():
    """A result's line can be found again."""
    assert len({scenario.name for scenario in (*SCENARIOS, IMAGES)}) == len(SCENARIOS) + 1


def test_a_scenario_runs_on_links_with_keys(tmp_path):
    """Frames of images, too, which travel in frames of their own."""
    Keyring(tmp_path / "keys").init()
    scenario = TransportScenario("tiny", clients=1, groups=2, lanes=3, observation_bytes=28_224)
    result = run_scenario(scenario, "uvloop", 0.3, tmp_path / "keys")
    assert result["requests_per_s"] > 0
    assert result["observation_bytes"] == 28_224


def test_what_curve_costs_is_stated_once_for_each_scenario(monkeypatch):
    """Plain and CURVE take turns; the last line has the ratios of rates and of processor time."""
    monkeypatch.setattr(transport, "SCENARIOS", ())
    monkeypatch.setattr(transport, "IMAGES", TransportScenario("tiny", clients=1, groups=2, lanes=3))
    monkeypatch.setattr(transport, "ROUNDS", 1)
    plain, curve = transport.measure_curve(0.4)
    assert (plain["curve"], curve["curve"]) == ("no", "yes")
    assert "curve_ratio" not in plain
    assert curve["curve_ratio"] == pytest.approx(curve["requests_per_s"] / plain["requests_per_s"], abs=0.001)
    assert curve["curve_cpu_ratio"] > 0
