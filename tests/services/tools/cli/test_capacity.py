"""The arithmetic of `seedbed plan`."""

from dataclasses import replace

import pytest
from rich.console import Console

from seedbed.services.tools.cli.capacity import HEADROOM, Costs, Hardware, plan_fleet
from seedbed.services.tools.cli.report import render_plan

COSTS = Costs(
    env_id="ALE/Pong-v5", frames_per_step=4, actor_s=100e-6, inference_s=500e-6, learner_s=1000e-6, impala_s=800e-6,
    inference_rate=2_000.0, learner_rate=1_000.0, inference_bytes=7_000.0, learner_bytes=8_000.0,
    weights_bytes=1_000_000.0, steps_per_update=500.0, unrolls_per_update=25,
)  # fmt: skip


def test_the_actors_set_the_rate_and_the_rest_must_follow():
    """Each service is planned with room to spare."""
    plan = plan_fleet(COSTS, Hardware(actor_machines=2, cores=4))
    assert plan.rate == pytest.approx(8 / 100e-6)
    assert plan.inference_services == 50
    assert plan.learners == 100
    assert plan.unrolls_per_update == 2_500
    assert plan.rate / plan.inference_services <= HEADROOM * COSTS.inference_rate
    assert plan.actors_per_inference == pytest.approx(8 / 50)
    assert plan.inference_link == pytest.approx(80_000 / 50 * 7_000)
    assert plan.impala_rate == pytest.approx(10_000)


def test_rates_of_an_accelerator_replace_those_that_were_measured():
    """A step on it costs its share of the accelerator's hour."""
    fleet = Hardware(
        actor_machines=2, cores=4, inference_rate=100_000.0, learner_rate=100_000.0, core_price=0.036,
        accelerator_price=3.6,
    )  # fmt: skip
    plan = plan_fleet(COSTS, fleet)
    assert (plan.inference_services, plan.learners) == (1, 1)
    steps = 1e9 / 4
    assert plan.seedbed.actors == pytest.approx(steps * 100e-6 * 1e-5)
    assert plan.seedbed.inference == pytest.approx(steps / 100_000 * 1e-3)
    assert plan.impala.actors == pytest.approx(steps * 800e-6 * 1e-5)
    learning = steps / 100_000 * 1e-3
    assert plan.seedbed.total == pytest.approx(plan.seedbed.actors + plan.seedbed.inference + learning)
    assert plan.impala.total == pytest.approx(plan.impala.actors + learning)


def test_the_weights_of_a_learner_go_to_every_service():
    """To inference with its layout, to each core of actors with the other."""
    plan = plan_fleet(replace(COSTS, learner_rate=1e9, inference_rate=1e9), Hardware(actor_machines=1, cores=10))
    versions_per_s = plan.rate / COSTS.steps_per_update
    assert plan.learner_link == pytest.approx(plan.rate * 8_000 + versions_per_s * 1e6)
    assert plan.impala_weights_link == pytest.approx(10 * plan.impala_rate / 500 * 1e6)


@pytest.mark.parametrize(("price", "has_prices"), [(0.0, False), (0.04, True)])
def test_prices_are_shown_where_there_are_any(capsys, price, has_prices):
    """Without them the table would be of zeros."""
    fleet = Hardware(actor_machines=1, cores=4, core_price=price)
    Console(width=120).print(render_plan(COSTS, fleet, plan_fleet(COSTS, fleet)))
    said = capsys.readouterr().out
    assert "ALE/Pong-v5" in said
    assert ("a billion frames" in said) == has_prices
