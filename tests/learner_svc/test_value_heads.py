"""A value output and target statistics for each task: every lane is trained as if its task were alone."""

import numpy as np
import pytest
import torch

from seedbed.learner_svc.algorithms.actor_critic import moments_by_task
from seedbed.learner_svc.algorithms.appo import Appo
from seedbed.learner_svc.algorithms.config import AppoConfig, R2D2Config, VTraceConfig, decide_value_heads
from seedbed.learner_svc.algorithms.vtrace import VTrace
from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.learning.initial_weights import task_difference
from seedbed.learner_svc.learning.normaliser import ValueNormaliser
from seedbed.learner_svc.sources.batch import first_rows
from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.runtime.tasks import TaskConfig
from tests.learner_svc.test_vtrace import drift, make_experience
from tests.support.experience import EPOCH, make_batch, make_policy, make_updater

TASKS = ("near", "far", "absent")
TASK_B = (1, 0, 0, 1, 1, 0)
PER_TASK = {"tasks": TASKS, "value_heads": "per_task"}
CPU = torch.device("cpu")


def make_algorithm(kind=VTrace, policy=None, **config):
    """An algorithm on a policy with a value for each task."""
    made, parameters = make_policy(**PER_TASK | (policy or {}))
    settings = {VTrace: VTraceConfig, Appo: AppoConfig}[kind]
    return kind(settings.model_validate({"value_normalisation": "popart"} | config), made), parameters


def make_lanes(policy, task_B=TASK_B, **options):
    """Experience of lanes of these tasks; those of task 0 earn a thousand times more."""
    batch = make_batch(policy, lanes=len(task_B), task_B=task_B, **options)
    batch["reward"][:, torch.tensor(task_B) == 0] *= 1000.0
    return make_experience(batch, task_B=torch.tensor(task_B))


def values_of(algorithm, experience):
    """V of every row in units of reward, by the state of a resume."""
    batch, state = experience.batch, algorithm.state()
    with torch.no_grad():
        output = algorithm.policy(batch.observation, batch.reward, first_rows(batch.flags), batch.action, batch.state)
    return output.value * state["value.std"][experience.task_B] + state["value.mean"][experience.task_B]


def test_the_moments_of_each_task_are_those_of_its_trained_targets():
    """Against NumPy in float64; a task whose lanes are all masked has none."""
    generator = np.random.default_rng(0)
    target = (generator.normal(size=(7, 6)) * [1e-3, 1e4, 1e4, 1, 1, 5] + [0, 1e5, 1e5, 3, 3, 0]).astype(np.float32)
    trained, task = generator.random((7, 6)) < 0.7, np.array([0, 1, 1, 2, 2, 4])
    trained[:, 5] = False
    found = moments_by_task(torch.from_numpy(target), torch.from_numpy(trained), torch.from_numpy(task), 5)
    assert found.is_present.tolist() == [True, True, True, False, False]
    for number in range(3):
        lanes = task == number
        wanted = target[:, lanes][trained[:, lanes]].astype(np.float64)
        assert found.mean[number].item() == pytest.approx(wanted.mean(), rel=1e-12, abs=1e-12)
        assert found.variance[number].item() == pytest.approx(wanted.var(), rel=1e-9)


def test_statistics_of_each_task_follow_their_definition():
    """Debiased moving averages of first and second moment, one task at a time, in float64."""
    rate, generator = 0.1, np.random.default_rng(1)
    normaliser, seen = ValueNormaliser(rate, CPU, (3,)), [[], [], []]
    for _ in range(20):
        mean, variance, is_present = generator.normal(size=3) * 1e3, generator.random(3), generator.random(3) < 0.5
        normaliser.update(*map(torch.from_numpy, (mean, variance, is_present)))
        for number in np.flatnonzero(is_present):
            seen[number].append((mean[number], variance[number]))
    for number, moments in enumerate(seen):
        weights = rate * (1 - rate) ** np.arange(len(moments))[::-1]
        means, variances = np.array(moments).T
        mean = np.average(means, weights=weights)
        second = np.average(variances + means**2, weights=weights)
        assert normaliser.mean[number].item() == pytest.approx(mean, rel=1e-9)
        assert normaliser.std[number].item() == pytest.approx(np.sqrt(second - mean**2), rel=1e-9)


def test_one_task_has_the_statistics_of_a_run_without_tasks_bit_for_bit():
    """The vector of one follows the scalar."""
    alone, vector = ValueNormaliser(0.01, CPU), ValueNormaliser(0.01, CPU, (1,))
    for mean, variance in np.random.default_rng(2).random((9, 2)):
        scalars = alone.update(torch.tensor(mean), torch.tensor(variance))
        vectors = vector.update(torch.tensor([mean]), torch.tensor([variance]), torch.tensor([True]))
        assert [x.item() for x in scalars] == [x.item() for x in vectors]
    assert {k: v.item() for k, v in alone.state().items()} == {k: v.item() for k, v in vector.state().items()}


@pytest.mark.parametrize("kind", [VTrace, Appo])
@pytest.mark.parametrize("value_network", ["shared", "separate"])
def test_popart_leaves_every_value_where_it_was_and_other_tasks_alone(kind, value_network):
    """Rows of the head move with the statistics of their task; those of a task without lanes stay bit for bit."""
    algorithm, _ = make_algorithm(kind, {"value_network": value_network}, value_normalisation_rate=0.5)
    experience, policy = make_lanes(algorithm.policy), algorithm.policy
    head = policy.head if value_network == "shared" else policy.value_head
    wanted, absent = values_of(algorithm, experience), (head.weight[-1].clone(), head.bias[-1].clone())
    actions = head.weight[:-3].clone()
    for _ in range(3):
        algorithm.loss(experience, algorithm.prepare(experience))
        algorithm.after_step(0.0)
    state = algorithm.state()
    assert state["value.std"][0] > 100 * state["value.std"][1] > 0
    assert (state["value.mean"][2], state["value.std"][2], state["value.weight"][2]) == (0, 1, 0)
    assert torch.equal(head.weight[-1], absent[0])
    assert torch.equal(head.bias[-1], absent[1])
    assert torch.equal(head.weight[:-3], actions)
    torch.testing.assert_close(values_of(algorithm, experience), wanted, atol=1e-3, rtol=1e-4)


def test_a_task_whose_rows_are_all_too_old_keeps_its_statistics():
    """It is as absent as one without lanes."""
    algorithm, _ = make_algorithm()
    algorithm.loss(make_lanes(algorithm.policy), {})
    algorithm.after_step(0.0)
    before = {name: tensor.clone() for name, tensor in algorithm.state().items()}
    batch = make_batch(algorithm.policy, task_B=TASK_B, seed=3)
    is_fresh = np.broadcast_to(np.array(TASK_B) == 1, (8, 6))
    algorithm.loss(make_experience(batch, is_fresh, task_B=torch.tensor(TASK_B)), {})
    algorithm.after_step(0.0)
    for name, tensor in algorithm.state().items():
        assert torch.equal(tensor[0], before[name][0])
        assert not torch.equal(tensor[1], before[name][1])


@pytest.mark.parametrize("kind", [VTrace, Appo])
@pytest.mark.parametrize("policy", [{}, {"lstm": 8}, {"value_network": "separate"}, {"task_input": True}])
def test_loss_and_gradient_are_the_sum_over_the_tasks(kind, policy):
    """Lanes of two tasks in a batch count as in two batches of their own, each in units of its own deviation."""
    algorithm, parameters = make_algorithm(kind, policy, normalise_advantage=False, value_normalisation_rate=0.5)
    experience = make_lanes(algorithm.policy)
    algorithm.loss(experience, algorithm.prepare(experience))
    algorithm.after_step(0.0)
    drift(parameters)
    prepared = algorithm.prepare(experience)

    def gradient_of(lanes):
        index = torch.tensor(lanes)
        part = make_experience(experience.batch.lanes(index), task_B=experience.task_B[index])
        parameters.grad.zero_()
        loss = algorithm.loss(part, {name: tensor[:, index] for name, tensor in prepared.items()}).loss
        loss.backward()
        return part.num_trained, loss.detach(), parameters.grad.clone()

    number, loss, gradient = gradient_of(range(6))
    parts = [gradient_of(lanes) for lanes in ([1, 2, 5], [0, 3, 4])]
    assert sum(part[0] for part in parts) == number
    torch.testing.assert_close(loss, sum(n * x for n, x, _ in parts) / number)
    torch.testing.assert_close(gradient, sum(n * x for n, _, x in parts) / number, atol=1e-6, rtol=1e-4)


def test_loss_and_gradient_equal_those_of_a_run_with_that_task_alone():
    """The row of a task's head and its statistics do what the only ones of another run do."""
    several, parameters = make_algorithm(value_normalisation_rate=0.5)
    alone_policy, alone_parameters = make_policy()
    alone = VTrace(several.config, alone_policy)
    with torch.no_grad():
        for name, tensor in alone_policy.state_dict().items():
            ours = several.policy.state_dict()[name]
            tensor.copy_(torch.cat([ours[:2], ours[3:4]]) if name.startswith("head") else ours)
    for seed in range(3):
        theirs = make_batch(alone_policy, seed=seed)
        ours = make_batch(several.policy, seed=seed, task_B=(1,) * 6)
        losses = []
        for algorithm, batch, flat in ((several, ours, parameters), (alone, theirs, alone_parameters)):
            batch["reward"].mul_(50.0)
            batch["log_prob"].copy_(theirs.log_prob)
            batch["action"].copy_(theirs.action)
            flat.grad.zero_()
            loss = algorithm.loss(make_experience(batch, task_B=torch.ones(6, dtype=torch.int64)), {}).loss
            loss.backward()
            algorithm.after_step(0.0)
            losses.append(loss.detach())
        torch.testing.assert_close(*losses)
        torch.testing.assert_close(
            several.policy.head.weight.grad[[0, 1, 3]],
            alone_policy.head.weight.grad, atol=1e-6, rtol=1e-4,
        )  # fmt: skip
        assert not several.policy.head.weight.grad[[2, 4]].any()
    for name, tensor in alone.state().items():
        torch.testing.assert_close(several.state()[name][1], tensor, atol=0, rtol=1e-5)


def update_of_tasks(algorithm, policy, seed=0):
    """Metrics of an update on lanes of two tasks, those of task "far" earning a thousand times more."""
    tasks = {name: TaskConfig(env=EnvConfig(id=name)) for name in TASKS}
    updater = make_updater(policy=policy, tasks=tasks, **algorithm)
    metrics = []
    for step in range(2):
        version = pack_version(EPOCH, step)
        batch = make_batch(updater.policy, seed=seed, task_B=TASK_B if updater.policy.tasks else (), version=version)
        batch["reward"][:, torch.tensor(TASK_B) == 1] *= 1000.0
        result = updater.update(
            batch, step=step, trained_steps=0, max_policy_lag=8, version_now=version, task_B=np.array(TASK_B)
        )
        metrics.append(result.metrics)
    return metrics, updater


@pytest.mark.parametrize("kind", ["vtrace", "appo"])
@pytest.mark.parametrize("policy", [PER_TASK, {}], ids=["per_task", "shared"])
def test_explained_variance_is_within_each_task_and_their_mean_over_all(kind, policy):
    """The values know nothing of the targets yet: near 0 in each task, not what differences between tasks explain."""
    (metrics, _), _ = update_of_tasks({"name": kind, "value_normalisation": "none"}, policy)
    shares = [metrics[f"explained_variance/{task}"] for task in ("near", "far")]
    assert "explained_variance/absent" not in metrics
    assert metrics["explained_variance"] == pytest.approx(sum(shares) / 2)
    assert abs(shares[1]) < 0.01  # values near 0 leave targets in the thousands as they are
    assert abs(shares[0]) > abs(shares[1])


@pytest.mark.parametrize("kind", ["vtrace", "appo"])
def test_the_units_of_each_tasks_values_are_metrics(kind):
    """As the state that a resume needs has them; a task without lanes keeps its first ones."""
    (_, metrics), updater = update_of_tasks({"name": kind, "value_normalisation": "popart"}, PER_TASK)
    assert metrics["value_unit_std/far"] > 100 * metrics["value_unit_std/near"] > 0
    assert (metrics["value_unit_mean/absent"], metrics["value_unit_std/absent"]) == (0.0, 1.0)
    assert "value_unit_std" not in metrics
    if kind == "appo":  # whose statistics change before the step, and not after it
        state = updater.algorithm.state()
        means = [metrics[f"value_unit_mean/{task}"] for task in TASKS]
        assert means == pytest.approx(state["value.mean"].tolist(), rel=1e-6)


@pytest.mark.parametrize("value_normalisation", ["none", "popart"])
def test_values_that_all_share_have_one_unit(value_normalisation):
    """In units of reward there is nothing to show."""
    (_, metrics), _ = update_of_tasks({"value_normalisation": value_normalisation}, {})
    assert ("value_unit_std" in metrics) == (value_normalisation == "popart")
    assert not any(name.startswith("value_unit_std/") for name in metrics)


@pytest.mark.parametrize("algorithm", [{}, {"name": "appo"}], ids=["vtrace", "appo"])
@pytest.mark.parametrize("minibatches", [1, 3])
def test_a_resumed_run_goes_on_bit_for_bit(algorithm, minibatches):
    """Weights, optimiser and the statistics of every task come back; another number of tasks is refused."""
    settings = {"policy": PER_TASK, "value_normalisation": "popart", "minibatches": minibatches, **algorithm}

    def step(updater, number):
        batch = make_batch(updater.policy, seed=number, task_B=TASK_B, version=pack_version(EPOCH, number))
        updater.update(
            batch, step=number, trained_steps=0, max_policy_lag=8, version_now=pack_version(EPOCH, number),
            task_B=np.array(TASK_B),
        )  # fmt: skip

    straight = make_updater(**settings)
    for number in range(2):
        step(straight, number)
    arrays, meta = straight.state()
    resumed = make_updater(**settings)
    resumed.load_state(arrays, meta)
    for updater in (straight, resumed):
        step(updater, 2)
    ours, theirs = straight.state()[0], resumed.state()[0]
    assert ours["algorithm.value.std"].shape == (3,)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert {"algorithm.value.mean", "algorithm.value.std"} <= straight.statistics().keys()


def test_a_batch_must_say_whose_lanes_it_has():
    """A policy with a value for each task cannot do without."""
    algorithm, _ = make_algorithm()
    with pytest.raises(ValueError, match="does not say whose lanes"):
        algorithm.loss(make_experience(make_batch(algorithm.policy, task_B=TASK_B)), {})


@pytest.mark.parametrize(
    ("heads", "algorithm", "tasks", "decided"),
    [
        ("auto", VTraceConfig(value_normalisation="popart"), 2, "per_task"),
        ("auto", AppoConfig(value_normalisation="returns"), 2, "per_task"),
        ("auto", VTraceConfig(), 2, "shared"),
        ("auto", AppoConfig(), 1, "shared"),
        ("auto", AppoConfig(), 0, "shared"),
        ("auto", R2D2Config(), 2, "shared"),
        ("shared", AppoConfig(), 2, "shared"),
        ("per_task", VTraceConfig(), 2, "per_task"),
    ],
)
def test_tasks_have_values_of_their_own_where_values_are_normalised(heads, algorithm, tasks, decided):
    """The default; both can be asked for."""
    assert decide_value_heads(PolicyConfig(value_heads=heads), algorithm, tasks).value_heads == decided


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"env": {"id": "x"}, "policy": {"task_input": True}}, r"policy.task_input is for runs with several tasks"),
        ({"env": {"id": "x"}, "policy": {"value_heads": "per_task"}}, r"set policy.value_heads = 'auto'"),
        (
            {
                "env": {}, "tasks": {"a": {"env": {"id": "x"}}, "b": {"env": {"id": "y"}}},
                "policy": {"value_heads": "per_task"}, "algorithm": {"name": "r2d2"},
            },
            r"algorithm.name = 'r2d2' leave it out",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(sections, message):
    """With the setting, and what to set instead."""
    with pytest.raises(ValueError, match=message):
        LearnerSettings.model_validate(sections)
    if "tasks" not in sections:
        with pytest.raises(ConfigError, match="several tasks"):
            make_policy(**sections["policy"])


def test_tasks_must_be_those_of_the_checkpoint_in_the_same_order():
    """A head means the task of its number."""
    assert task_difference(["a", "b"], ["a", "b"]) == ""
    assert task_difference(["a", "b"], []) == ""
    assert task_difference(["b", "a"], ["a", "b"]) == "the tasks here are b, a, and there, in this order, a, b"
