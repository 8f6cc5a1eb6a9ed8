"""APPO: its loss against plain sums, what stays fixed over passes, and how it holds KL to its target."""

import numpy as np
import pytest
import torch

from seedbed.learner_svc.algorithms.actor_critic import kl_to_behaviour
from seedbed.learner_svc.algorithms.appo import MAX_RATE_FACTOR, Appo
from seedbed.learner_svc.algorithms.config import AppoConfig
from seedbed.learner_svc.algorithms.returns import gae, lambda_advantage, vtrace
from seedbed.learner_svc.sources.batch import discounts, first_rows, take_transitions
from seedbed.shared.protocol.messages import pack_version
from tests.learner_svc.test_vtrace import drift, make_experience
from tests.support.experience import EPOCH, make_batch, make_policy, make_updater

PLAIN = {"value_normalisation": "none", "normalise_advantage": False}


def make_algorithm(**config):
    """An algorithm on a fresh seeded policy, and the policy's flat weights."""
    made, parameters = make_policy()
    return Appo(AppoConfig.model_validate(config), made), parameters


def plain_loss(policy, experience, config, proximal_log_prob, value_before):
    """The definition, with V-trace's returns: a mean over trained transitions, one at a time."""
    batch, length = experience.batch, experience.batch.num_transitions
    output = policy(batch.observation, batch.reward, first_rows(batch.flags), batch.action, batch.state)
    log_prob = policy.distribution.log_prob(output.params[:length], batch.action, None)
    entropy = policy.distribution.entropy(output.params[:length], None)
    discount, reward = discounts(batch.flags, config.discount), batch.reward[1:]
    log_rho = proximal_log_prob - batch.log_prob
    known = (value_before[:length], value_before[length])
    target = vtrace(log_rho, discount, reward, experience.valid_TB, *known, lam=config.lam).value_target_TB
    terms = []
    for t, lane in experience.trained_TB.nonzero().tolist():
        following = value_before[t + 1, lane]
        if t + 1 < length:
            following = following + config.lam * (target[t + 1, lane] - value_before[t + 1, lane])
        advantage = reward[t, lane] + discount[t, lane] * following - value_before[t, lane]
        ratio, bound = torch.exp(log_prob[t, lane] - proximal_log_prob[t, lane]), 1 + config.policy_clip
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 / bound, bound) * advantage)
        if advantage < 0:
            gain = torch.maximum(gain, config.dual_clip * advantage)
        weight = log_rho[t, lane].exp().clamp(max=1)
        error = target[t, lane] - output.value[t, lane]
        kl = kl_to_behaviour(log_prob[t, lane] - batch.log_prob[t, lane])  # from the policy that acted, not from π₀
        regularisation = config.kl_cost * kl - config.entropy_cost * entropy[t, lane]
        terms.append(-weight * gain + config.baseline_cost * 0.5 * error**2 + regularisation)
    return torch.stack(terms).mean()


@pytest.mark.parametrize("kl_cost", [0.0, 0.3])
@pytest.mark.parametrize("moved", [False, True])
def test_the_loss_is_its_definition(moved, kl_cost):
    """Old experience is weighed by ω once; the ratio counts from the policy before the batch."""
    algorithm, parameters = make_algorithm(policy_clip=0.1, lam=0.9, kl_cost=kl_cost, **PLAIN)
    experience = make_experience(make_batch(algorithm.policy, rows=17))
    drift(parameters)  # the policy before the batch is not the one that acted
    batch, length = experience.batch, experience.batch.num_transitions
    with torch.no_grad():
        output = algorithm.policy(batch.observation, batch.reward, first_rows(batch.flags), batch.action, batch.state)
        before = algorithm.policy.distribution.log_prob(output.params[:length], batch.action, None)
    prepared = algorithm.prepare(experience)
    if moved:
        drift(parameters, scale=0.1)
    loss = algorithm.loss(experience, prepared).loss
    expected = plain_loss(algorithm.policy, experience, algorithm.config, before, output.value)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)


def test_a_negative_advantage_counts_at_most_dual_clip_times():
    """A ratio of e¹⁰ would otherwise rule the gradient of the whole batch."""
    algorithm, _ = make_algorithm(entropy_cost=0.0, baseline_cost=0.0, **PLAIN)
    experience = make_experience(make_batch(algorithm.policy))
    prepared = dict(algorithm.prepare(experience))
    prepared |= {"advantage": torch.full_like(prepared["advantage"], -1.0), "log_prob": prepared["log_prob"] - 10.0}
    assert algorithm.loss(experience, prepared).loss.item() == pytest.approx(3.0)


def test_on_policy_without_corrections_the_advantages_are_those_of_gae():
    """V-trace's and GAE's agree where nothing is old."""
    found = {}
    for targets in ("vtrace", "gae"):
        algorithm, _ = make_algorithm(targets=targets, **PLAIN)
        found[targets] = algorithm.prepare(make_experience(make_batch(algorithm.policy, rows=33)))
    for name in ("advantage", "target"):
        torch.testing.assert_close(found["vtrace"][name], found["gae"][name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("valid", "discount", "advantages"),
    [
        pytest.param((1, 0, 1), (0.0, 0.97, 0.97), (-0.9, 0, 1.18), id="row 1 terminated"),
        pytest.param((1, 0, 1), (0.97, 0.97, 0.97), (1.04, 0, 1.18), id="row 1 truncated"),
        pytest.param((1, 1, 0), (0.97, 0.0, 0.97), (0.167, -1.8, 0), id="row 2 terminated"),
        pytest.param((1, 1, 0), (0.97, 0.97, 0.97), (1.57835, 1.11, 0), id="row 2 truncated"),
    ],
)
def test_advantages_of_targets_meet_the_literal_vectors(valid, discount, advantages):
    """With GAE's targets they are GAE, whatever ends an episode."""

    def column(*values):
        return torch.tensor(values, dtype=torch.float64).unsqueeze(1)

    known = (
        column(*discount), column(0.1, 0.2, 0.3), column(*valid).bool(), column(1.0, 2.0, 3.0),
        torch.tensor([4.0], dtype=torch.float64),
    )  # fmt: skip
    targets = gae(*known, lam=0.5)
    assert targets.advantage_TB.flatten().tolist() == pytest.approx(advantages)
    found = lambda_advantage(*known, targets.value_target_TB, lam=0.5)
    assert found.flatten().tolist() == pytest.approx(advantages)


def run(updater, batch, step=0):
    """One update at (EPOCH, step)."""
    return updater.update(batch, step=step, trained_steps=0, max_policy_lag=9, version_now=pack_version(EPOCH, step))


def test_a_row_counts_once_in_the_observation_statistics_however_often_it_is_used():
    """Were they to move between the passes, they alone would move the policy."""
    updater = make_updater(policy={"normalise_observation": True}, name="appo", passes=4, minibatches=3)
    batch = make_batch(updater.policy)
    run(updater, batch)
    assert updater.normaliser.state()["0.count"].item() == batch.num_transitions * batch.num_lanes
    assert updater.optimiser.state()["count"].item() == 12


@pytest.mark.parametrize("stack", [1, 3])
def test_the_loss_of_transitions_that_are_taken_apart_is_the_same(stack):
    """It looks at each alone: returns and advantages are known before."""
    policy, parameters = make_policy(stack=stack)
    algorithm = Appo(AppoConfig(kl_cost=0.3), policy)
    batch = make_batch(policy, rows=17)
    experience = make_experience(batch)
    prepared = algorithm.prepare(experience)
    drift(parameters)
    whole = algorithm.loss(experience, prepared)
    order = np.random.default_rng(3).permutation(experience.valid_TB.numel())
    states = policy.row_states(batch.observation, first_rows(batch.flags), batch.state)
    part = experience.minibatch(
        order, num_trained=experience.num_trained, num_current=experience.num_current, states=states
    )
    fixed = {name: take_transitions(tensor, torch.from_numpy(order)) for name, tensor in prepared.items()}
    apart = algorithm.loss(part, fixed)
    torch.testing.assert_close(apart.loss, whole.loss)
    torch.testing.assert_close(apart.diagnostics, whole.diagnostics)


@pytest.mark.parametrize(("memory", "steps"), [({}, 12), ({"stack": 3}, 12), ({"lstm": 8}, 6)])
def test_minibatches_are_of_transitions_or_with_an_lstm_of_lanes(memory, steps):
    """A batch of six lanes has at most six minibatches of lanes, and any number of transitions."""
    updater = make_updater(policy=memory, name="appo", passes=1, minibatches=12)
    run(updater, make_batch(updater.policy, lanes=6))
    assert updater.optimiser.state()["count"].item() == steps


def test_the_same_seed_and_update_take_the_transitions_in_the_same_order():
    """So that a resumed run does what it would have done."""
    after = []
    for seed, step in ((1, 5), (1, 5), (2, 5), (1, 6)):
        updater = make_updater(name="appo", passes=2, minibatches=3, seed=seed)
        run(updater, make_batch(updater.policy), step=step)
        after.append(updater.parameters.flat.clone())
    assert torch.equal(after[0], after[1])
    assert not torch.equal(after[0], after[2])
    assert not torch.equal(after[0], after[3])


def test_a_policy_that_moves_too_far_stops_its_passes_and_slows_down():
    """A minibatch that finds KL far over its target is the last one on its batch."""
    updater = make_updater(name="appo", passes=8, minibatches=3, kl_target=1e-6, learning_rate=1e-2)
    run(updater, make_batch(updater.policy))
    assert updater.optimiser.state()["count"].item() < 8 * 3
    assert updater.algorithm.rate_factor == pytest.approx(1 / 1.5)
    resumed = make_updater(name="appo", kl_target=1e-6, learning_rate=1e-2)
    resumed.load_state(*updater.state())
    assert resumed.algorithm.rate_factor == updater.algorithm.rate_factor


def test_the_learning_rate_rises_to_a_bound_where_the_policy_moves_little():
    """And no further, however long it does."""
    algorithm, _ = make_algorithm(kl_target=0.01)
    for _ in range(10):
        algorithm.after_batch([{"kl_step": 0.001}])
    assert algorithm.rate_factor == MAX_RATE_FACTOR


def test_a_policy_that_is_certain_of_its_actions_is_left_at_the_configured_rate():
    """It has no KL to speak of: neither a higher rate nor one that was lowered before follows from that."""
    algorithm, _ = make_algorithm(kl_target=0.01)
    for kl, expected in ((0.001, 1.5), (1e-9, 1.0), (1e-9, 1.0), (0.05, 1 / 1.5), (1e-9, 1 / 1.5)):
        algorithm.after_batch([{"kl_step": kl}])
        assert algorithm.rate_factor == pytest.approx(expected)


def test_advantages_that_are_mostly_noise_are_not_blown_up():
    """Where nothing can be won, the entropy bonus rules, and a policy does not wander off."""
    spreads = []
    for least in (0.0, 0.5):
        algorithm, _ = make_algorithm(min_advantage_std=least, entropy_cost=0.0, baseline_cost=0.0)
        experience = make_experience(make_batch(algorithm.policy, rows=17))
        prepared = dict(algorithm.prepare(experience))
        prepared["advantage"] = prepared["advantage"] * 1e-3
        algorithm.loss(experience, prepared).loss.backward()
        gradients = [p.grad.norm().item() for p in algorithm.policy.parameters() if p.grad is not None]
        spreads.append(sum(gradients))
    assert spreads[1] < 0.01 * spreads[0]


def test_value_statistics_move_once_a_batch_and_keep_every_value():
    """PopArt: what the value head says in units of reward is the same before and after."""
    algorithm, _ = make_algorithm(value_normalisation_rate=0.5)
    experience = make_experience(make_batch(algorithm.policy, rows=17))
    experience.batch.reward.mul_(50.0)
    before = algorithm.prepare(experience)
    with torch.no_grad():
        batch = experience.batch
        output = algorithm.policy(batch.observation, batch.reward, first_rows(batch.flags), batch.action, batch.state)
    state = algorithm.state()
    value = output.value[:-1] * state["value.std"].float() + state["value.mean"].float()
    assert state["value.std"].item() > 2.0
    torch.testing.assert_close(value, before["value"], rtol=1e-4, atol=1e-3)


def test_a_value_clip_never_lowers_the_loss():
    """It takes the worse of two errors."""
    losses = []
    for clip in (0.0, 0.01):
        algorithm, parameters = make_algorithm(value_clip=clip, entropy_cost=0.0, **PLAIN)
        experience = make_experience(make_batch(algorithm.policy))
        prepared = algorithm.prepare(experience)
        drift(parameters, scale=0.2)
        losses.append(algorithm.loss(experience, prepared).loss.item())
    assert np.isfinite(losses).all()
    assert losses[1] >= losses[0]
