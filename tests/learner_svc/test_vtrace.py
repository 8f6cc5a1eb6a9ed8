"""The V-trace algorithm: its loss and gradient against plain sums, its options, and the figures that it reports."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pydantic import TypeAdapter, ValidationError

from seedbed.learner_svc.algorithms.actor_critic import kl_to_behaviour
from seedbed.learner_svc.algorithms.config import BUILT_IN, AlgorithmConfig, VTraceConfig
from seedbed.learner_svc.algorithms.registry import find_algorithm
from seedbed.learner_svc.algorithms.returns import vtrace
from seedbed.learner_svc.algorithms.vtrace import VTrace
from seedbed.learner_svc.learning.rewards import TrainingRewards
from seedbed.learner_svc.sources.batch import Experience, discounts, first_rows, valid_transitions
from tests.support.experience import make_batch, make_policy, make_spec


def make_experience(batch, trained=None, task_B=None, **rewards):
    """Everything valid is trained on unless said otherwise; `rewards` are settings of the rewards."""
    valid = valid_transitions(batch.flags.numpy())
    trained = valid if trained is None else valid & trained
    return Experience(
        batch=batch,
        valid_TB=torch.from_numpy(valid),
        trained_TB=torch.from_numpy(trained),
        current_TB=torch.from_numpy(trained),
        num_trained=int(trained.sum()),
        num_current=int(trained.sum()),
        reward_TB=TrainingRewards(VTraceConfig(**rewards)).of(batch.reward[1:]),
        task_B=task_B,
    )


def make_algorithm(spec=None, policy=None, **config):
    """An algorithm on a fresh seeded policy, and the policy's flat weights."""
    made, parameters = make_policy(spec, **(policy or {}))
    return VTrace(VTraceConfig.model_validate(config), made), parameters


def drift(parameters, scale=0.05):
    """Move the weights away from those that acted."""
    with torch.no_grad():
        parameters.trained.add_(
            torch.randn(parameters.trained.shape, generator=torch.Generator().manual_seed(4)) * scale
        )


def plain_loss(policy, experience, config):
    """The definition: a mean over trained transitions, one at a time."""
    batch = experience.batch
    output = policy(batch.observation, batch.reward, first_rows(batch.flags), batch.action, batch.state)
    length = batch.num_transitions
    log_prob = policy.distribution.log_prob(output.params[:length], batch.action, None)
    entropy = policy.distribution.entropy(output.params[:length], None)
    reward = (batch.reward[1:] * config.reward_scale).clamp(-config.reward_clip, config.reward_clip)
    targets = vtrace(
        (log_prob - batch.log_prob).detach(), discounts(batch.flags, config.discount), reward, experience.valid_TB,
        output.value[:length].detach(), output.value[length].detach(),
    )  # fmt: skip
    terms = []
    for t, lane in experience.trained_TB.nonzero().tolist():
        error = targets.value_target_TB[t, lane] - output.value[t, lane]
        gain = log_prob[t, lane] * targets.pg_advantage_TB[t, lane]
        terms.append(
            -gain
            + config.baseline_cost * 0.5 * error**2
            - config.entropy_cost * entropy[t, lane]
            + config.kl_cost * kl_to_behaviour(log_prob[t, lane] - batch.log_prob[t, lane])
        )
    return torch.stack(terms).mean()


@pytest.mark.parametrize("lstm", [0, 8])
def test_loss_and_gradient_equal_the_plain_sum(lstm):
    """Off-policy, with ends of every kind, a mask of stale rows, and every cost on."""
    algorithm, parameters = make_algorithm(
        policy={"lstm": lstm}, reward_scale=0.5, reward_clip=0.4, kl_cost=0.3, entropy_cost=0.1
    )
    batch = make_batch(algorithm.policy)
    stale = np.zeros(batch.action.shape[:2], bool)
    stale[:3] = True
    drift(parameters)
    experience = make_experience(batch, ~stale, reward_scale=0.5, reward_clip=0.4)
    parameters.grad.zero_()
    loss = algorithm.loss(experience, {}).loss
    loss.backward()
    gradient = parameters.grad.clone()
    parameters.grad.zero_()
    wanted = plain_loss(algorithm.policy, experience, algorithm.config)
    wanted.backward()
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(gradient, parameters.grad, atol=1e-6, rtol=1e-4)


ACTION_SPACES = {
    "discrete": spaces.Discrete(3, start=2),
    "composite": spaces.Dict({"a": spaces.MultiDiscrete([2, 3]), "b": spaces.Box(-1, 1, (2,), np.float32)}),
    "binary": spaces.MultiBinary(3),
}


@pytest.mark.parametrize("name", ACTION_SPACES)
@pytest.mark.parametrize("policy", [{}, {"lstm": 8}, {"stack": 3}], ids=["plain", "lstm", "stack"])
def test_at_equal_weights_every_ratio_is_one(name, policy):
    """|log π - log μ| on every valid row: row 0, after resets, with masks, memory and composite actions."""
    spec = make_spec(ACTION_SPACES[name], masked=name != "binary")
    algorithm, _ = make_algorithm(spec, policy)
    batch = make_batch(algorithm.policy, rows=12)
    experience = make_experience(batch)
    output = algorithm.loss(experience, {})
    report = algorithm.report(output.diagnostics.tolist(), experience)
    assert report["log_rho_mean_abs_lag0"] < 1e-5
    assert report["log_rho_mean_abs"] < 1e-5
    assert report["kl"] == pytest.approx(0, abs=1e-6)
    assert report["effective_sample_size"] == pytest.approx(1, abs=1e-5)


def test_what_lies_behind_a_reset_row_does_not_touch_the_gradient():
    """The action and log-probability stored at an ended row, and its stale neighbours' rewards, are ignored."""
    algorithm, parameters = make_algorithm()
    batch = make_batch(algorithm.policy, rows=20)
    experience = make_experience(batch)
    ignored = ~experience.valid_TB
    assert ignored.any()

    def gradient():
        parameters.grad.zero_()
        algorithm.loss(experience, {}).loss.backward()
        return parameters.grad.clone()

    before = gradient()
    batch.action[ignored] = 1 - batch.action[ignored]
    batch.log_prob[ignored] = -30.0
    batch.reward[1:][ignored] = 1e6
    assert torch.equal(gradient(), before)


def test_the_figures_are_what_their_names_say():
    """Against NumPy over the trained rows."""
    algorithm, parameters = make_algorithm()
    batch = make_batch(algorithm.policy, rows=20)
    drift(parameters, 0.3)
    experience = make_experience(batch)
    output = algorithm.loss(experience, {})
    report = algorithm.report(output.diagnostics.tolist(), experience)
    with torch.no_grad():
        made = algorithm.policy(batch.observation, batch.reward, first_rows(batch.flags), batch.action, batch.state)
        length = batch.num_transitions
        log_prob = algorithm.policy.distribution.log_prob(made.params[:length], batch.action, None)
        targets = vtrace(
            log_prob - batch.log_prob, discounts(batch.flags, 0.99), batch.reward[1:], experience.valid_TB,
            made.value[:length], made.value[length],
        )  # fmt: skip
        valid = experience.valid_TB
        log_rho = (log_prob - batch.log_prob)[valid].double().numpy()
        target, value = targets.value_target_TB[valid].double().numpy(), made.value[:length][valid].double().numpy()
    omega = np.exp(log_rho)
    wanted = {
        "rho_clipped_share": (omega > 1).mean(),
        "effective_sample_size": omega.mean() ** 2 / (omega**2).mean(),
        "kl": (omega - 1 - log_rho).mean(),
        "log_rho_mean_abs": np.abs(log_rho).mean(),
        "value_target_mean": target.mean(),
        "explained_variance": 1 - (target - value).var() / target.var(),
        "value_loss": 0.5 * ((target - value) ** 2).mean(),
    }
    assert {name: report[name] for name in wanted} == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_an_entropy_above_its_target_lowers_the_cost_and_one_below_raises_it():
    """The adaptive cost starts at entropy_cost and moves by the sign of H - H*."""
    for target, sign in ((0.1, -1), (2.0, 1)):
        algorithm, _ = make_algorithm(entropy_target=target, entropy_cost=0.01, learning_rate=1e-2)
        experience = make_experience(make_batch(algorithm.policy))
        costs = []
        for _ in range(3):
            costs.append(
                algorithm.report(algorithm.loss(experience, {}).diagnostics.tolist(), experience)["entropy_cost"]
            )
            algorithm.after_step(1e-2)
        assert costs[0] == pytest.approx(0.01, rel=1e-5)
        assert sign * (costs[1] - costs[0]) > 0
        assert sign * (costs[2] - costs[1]) > 0


def test_the_adaptive_entropy_cost_stays_within_its_bounds():
    """|m·p| ≤ 20."""
    algorithm, _ = make_algorithm(entropy_target=9.0, entropy_cost=0.01)
    experience = make_experience(make_batch(algorithm.policy))
    algorithm.loss(experience, {})
    for _ in range(4):
        algorithm.after_step(5.0)
    assert algorithm.state()["entropy.parameter"].item() * 10 == pytest.approx(20)


@pytest.mark.parametrize("kind", ["popart", "returns"])
def test_normalised_values_make_loss_and_gradient_independent_of_the_rewards_unit(kind):
    """A thousandfold reward gives the same normalised problem once the statistics have seen it."""
    losses = []
    for unit in (1.0, 1000.0):
        algorithm, _ = make_algorithm(value_normalisation=kind, value_normalisation_rate=1.0, discount=0.0)
        experience = make_experience(make_batch(algorithm.policy), reward_scale=unit)
        algorithm.loss(experience, {})
        algorithm.after_step(0.0)
        if kind == "popart":  # its head still means the old values; give both units the same one
            with torch.no_grad():
                algorithm.policy.head.weight[-1].zero_()
                algorithm.policy.head.bias[-1].zero_()
        losses.append(algorithm.loss(experience, {}).loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_popart_leaves_every_value_where_it_was():
    """Statistics move, the head moves with them."""
    algorithm, _ = make_algorithm(value_normalisation="popart", value_normalisation_rate=0.5)
    experience = make_experience(make_batch(algorithm.policy), reward_scale=40.0)

    def raw_values():
        batch = experience.batch
        with torch.no_grad():
            output = algorithm.policy(batch.observation, batch.reward, first_rows(batch.flags), None, batch.state)
        state = algorithm.state()
        return output.value * state["value.std"] + state["value.mean"]

    before = raw_values()
    for _ in range(3):
        algorithm.loss(experience, {})
        algorithm.after_step(0.0)
    assert algorithm.state()["value.std"].item() > 5
    torch.testing.assert_close(raw_values(), before, atol=1e-3, rtol=1e-4)


def test_standardised_advantages_do_not_depend_on_the_rewards_unit():
    """Scaling rewards scales the value loss only."""
    losses = []
    for unit in (1.0, 50.0):
        algorithm, _ = make_algorithm(normalise_advantage=True, discount=0.0, baseline_cost=0.0)
        with torch.no_grad():
            algorithm.policy.head.weight[-1].zero_()
        experience = make_experience(make_batch(algorithm.policy), reward_scale=unit)
        losses.append(algorithm.loss(experience, {}).loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("log_rho", [-50.0, -1.0, 0.0, 1.0, 3.0, 30.0])
def test_the_distance_to_the_behaviour_is_never_negative_and_pulls_back(log_rho):
    """Its slope has the sign of log ρ, and is bounded."""
    x = torch.tensor(log_rho, requires_grad=True)
    distance = kl_to_behaviour(x)
    distance.backward()
    assert distance.item() >= 0
    assert math.copysign(1, x.grad.item()) == math.copysign(1, log_rho) or log_rho == 0
    assert abs(x.grad.item()) < 20


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_algorithm_is_found_by_its_name(name):
    """Its settings name it, and it reads these settings."""
    kind, settings = find_algorithm(TypeAdapter(AlgorithmConfig).validate_python({"name": name}))
    assert (kind.Settings, settings.name) == (BUILT_IN[name], name)


def test_the_configuration_refuses_nonsense():
    """An entropy target needs a cost to start from, and unknown names are refused."""
    with pytest.raises(ValidationError, match="entropy_cost above 0"):
        VTraceConfig(entropy_target=1.0, entropy_cost=0.0)
    with pytest.raises(ValidationError, match="learning_rat"):
        VTraceConfig.model_validate({"learning_rat": 1})
