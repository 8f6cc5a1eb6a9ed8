"""R2D2's loss against plain Python, its burn-in, target network, priorities and resume."""

import math
import re

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pydantic import ValidationError

from seedbed.learner_svc.algorithms.config import R2D2Config, is_lag_bounded
from seedbed.learner_svc.algorithms.r2d2 import R2D2, first_priorities
from seedbed.learner_svc.algorithms.registry import recording_of
from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.learning.rewards import TrainingRewards
from seedbed.learner_svc.learning.update import Updater
from seedbed.learner_svc.sources.batch import Batch
from seedbed.shared.errors import CheckpointError, ConfigError
from seedbed.shared.policy.policy import Policy
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.protocol.rows import Flags
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.runtime.tasks import TaskConfig
from tests.support.experience import EPOCH, algorithm_config, make_batch, make_policy, make_spec

BURN_IN, LENGTH = 4, 6
SETTINGS: dict[str, object] = {"name": "r2d2", "burn_in": BURN_IN, "n_step": 3, "discount": 0.9, "target_every": 1000}
RECURRENT: dict[str, object] = {"lstm": 8}


def make_updater(policy: dict[str, object] | None = None, **settings: object) -> Updater:
    """An updater of a small policy with a target network that differs from it."""
    updater = Updater(*make_policy(**(RECURRENT if policy is None else policy)), algorithm_config(SETTINGS | settings))
    algorithm = updater.algorithm
    assert isinstance(algorithm, R2D2)
    with torch.no_grad():
        for parameter in algorithm.networks()["target"].parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return updater


def recorded(updater: Updater, **more: object) -> Batch:
    """A batch as inference records it."""
    recording = recording_of(algorithm_config(SETTINGS), LENGTH)
    return make_batch(updater.policy, rows=BURN_IN + LENGTH + 1, recording=recording, **more)  # type: ignore[arg-type]


def update(updater: Updater, batch: Batch, step: int = 0, **more: object):
    return updater.update(
        batch, step=step, trained_steps=0, max_policy_lag=1, version_now=pack_version(EPOCH, step), **more
    )  # type: ignore[arg-type]


def h(x: float) -> float:
    return math.copysign(1, x) * (math.sqrt(abs(x) + 1) - 1) + 1e-3 * x


def h_inverse(x: float) -> float:
    root = math.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3))
    return math.copysign(1, x) * (((root - 1) / 2e-3) ** 2 - 1)


def q_rows(policy: Policy, batch: Batch) -> list[list[list[float]]]:
    """Q of every row and lane, one row after the other from the stored state."""
    rows, state = [], batch.state
    for t in range(len(batch.reward)):
        first = (batch.flags[t] & int(Flags.FIRST)) != 0
        rows_of_t = tuple(leaf[t : t + 1] for leaf in batch.observation)
        output = policy(rows_of_t, batch.reward[t : t + 1], first[None], None, state)
        params, value = output.params[0], output.value[0]
        rows.append((value[:, None] + params - params.mean(-1, keepdim=True)).tolist())
        if t < len(batch.action):
            state = policy.remember(output.state, batch.action[t])
    return rows


@torch.no_grad()
def errors(updater: Updater, batch: Batch, discount: float = 0.9, n: int = 3) -> list[dict[int, float]]:
    """δ of every trained transition of every lane, by plain Python."""
    algorithm = updater.algorithm
    online, target = q_rows(updater.policy, batch), q_rows(algorithm.networks()["target"], batch)  # type: ignore[arg-type]
    flags, reward, last = batch.flags.tolist(), batch.reward.tolist(), len(batch.reward) - 1
    found: list[dict[int, float]] = []
    for lane in range(batch.num_lanes):
        of_lane = {}
        for t in range(BURN_IN, last):
            if flags[t + 1][lane] & Flags.FIRST:
                continue
            total, factor, row = 0.0, 1.0, t
            for _ in range(n):
                row += 1
                total += factor * reward[row][lane]
                factor *= 0.0 if flags[row][lane] & (Flags.TERMINATED | Flags.LIFE_LOST) else discount
                if row == last or factor == 0.0 or flags[row + 1][lane] & Flags.FIRST:
                    break
            best = max(range(2), key=lambda action: online[row][lane][action])
            y = h(total + factor * h_inverse(target[row][lane][best]))
            of_lane[t] = y - online[t][lane][int(batch.action[t, lane, 0])]
        found.append(of_lane)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_loss_and_priorities_are_those_of_plain_python(seed: int) -> None:
    """With memory, ends of every kind, a burn-in and weights; every row is evaluated one by one."""
    updater = make_updater(grad_clip=0.0)
    batch = recorded(updater, seed=seed)
    wanted, weight_B = errors(updater, batch), np.linspace(0.2, 1.0, batch.num_lanes).astype(np.float32)
    result = update(updater, batch, weight_B=weight_B)
    number = sum(len(lane) for lane in wanted)
    loss = sum(w * 0.5 * sum(d * d for d in lane.values()) for w, lane in zip(weight_B, wanted, strict=True)) / number
    assert result.valid_steps == number
    assert result.metrics["loss"] == pytest.approx(loss, rel=1e-4)
    assert result.metrics["td_error_mean"] == pytest.approx(
        sum(abs(d) for lane in wanted for d in lane.values()) / number, rel=1e-4
    )
    assert result.priorities_B is not None
    for priority, lane in zip(result.priorities_B, wanted, strict=True):
        absolute = [abs(d) for d in lane.values()]
        expected = 0.9 * max(absolute) + 0.1 * sum(absolute) / len(absolute) if absolute else 0.0
        assert priority == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_minibatches_give_every_sequence_its_own_priority() -> None:
    """Whatever order they take the lanes in; at a learning rate of next to nothing they are those of one batch."""
    whole = make_updater(learning_rate=1e-12)
    config = algorithm_config(SETTINGS | {"learning_rate": 1e-12})
    cut = Updater(*make_policy(**RECURRENT), config, minibatches=3)
    cut.load_state(*whole.state())
    batch = recorded(whole, seed=3)
    one, other = update(whole, batch).priorities_B, update(cut, batch).priorities_B
    np.testing.assert_allclose(one, other, rtol=1e-4)


def test_the_gradient_stops_at_the_burn_in() -> None:
    """The burn-in moves the loss through the memory, and no gradient reaches its rows; it does reach trained ones."""
    batch = recorded(make_updater(), seed=1)
    batch.flags[: BURN_IN + 1] = 0
    (observation,) = batch.observation
    plain = update(make_updater(), batch).metrics["loss"]
    observation[:BURN_IN] += 1.0
    observation.requires_grad_()
    assert update(make_updater(), batch).metrics["loss"] != pytest.approx(plain, rel=1e-6)
    assert observation.grad is not None
    assert observation.grad[:BURN_IN].abs().sum() == 0
    assert observation.grad[BURN_IN:].abs().sum() > 0


def test_another_runs_weights_are_the_target_networks_too() -> None:
    """A run that begins with them would else be pulled to a random network until the first copy."""
    source, updater = make_updater(), make_updater()
    with torch.no_grad():
        source.parameters.flat.add_(0.3)
    updater.start_from(source.parameters.views(source.parameters.flat), {})
    target = updater.algorithm.networks()["target"].state_dict()
    for name, tensor in source.policy.state_dict().items():
        torch.testing.assert_close(target[name], tensor)


def test_the_stored_state_counts_and_can_be_left_out() -> None:
    """It is the state before the burn-in; the ablation begins with zeros."""
    updater = make_updater()
    batch = recorded(updater, seed=2)
    batch.flags[0] = 0
    for part in batch.state:
        part.normal_()
    with_state = update(make_updater(), batch).metrics["loss"]
    without = update(make_updater(stored_state="zero"), batch).metrics["loss"]
    for part in batch.state:
        part.zero_()
    assert without == update(make_updater(), batch).metrics["loss"] != with_state


def test_a_lane_without_its_stored_state_still_plays_its_task() -> None:
    """The ablation forgets the memory, not the task; the target network sees the task too."""
    told = {**RECURRENT, "task_input": True, "tasks": ("a", "b")}
    updater = make_updater(told)
    batch = recorded(updater, seed=2, task_B=(0, 1, 0, 1, 0, 1))
    for part in batch.state[1:]:
        part.normal_()
    task_B = batch.state[0].numpy().copy()
    without = update(make_updater(told, stored_state="zero"), batch, task_B=task_B).metrics["loss"]
    for part in batch.state[1:]:
        part.zero_()
    assert without == update(make_updater(told), batch, task_B=task_B).metrics["loss"]
    batch.state[0].zero_()
    assert without != update(make_updater(told), batch, task_B=task_B).metrics["loss"]


def test_the_target_network_is_copied_when_it_is_time_and_gets_no_gradient() -> None:
    """Every third optimiser step; between copies it stands still."""
    updater = make_updater(target_every=3, learning_rate=1e-2)
    algorithm = updater.algorithm
    for step in range(6):
        before = [tensor.clone() for tensor in algorithm.networks()["target"].parameters()]
        update(updater, recorded(updater, seed=step), step)
        after = list(algorithm.networks()["target"].parameters())
        is_same = all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        assert is_same == (step % 3 != 2)
    for ours, its in zip(updater.policy.parameters(), after, strict=True):
        torch.testing.assert_close(ours, its)


def test_a_resume_is_exact() -> None:
    """Weights, target network, optimiser and the count of steps until the next copy."""
    one = make_updater(target_every=2, learning_rate=1e-2)
    batch = recorded(one, seed=5)
    update(one, batch)
    other = make_updater(target_every=2, learning_rate=1e-2)
    other.load_state(*one.state())
    for updater in (one, other):
        update(updater, batch, 1)
    for name, array in one.state()[0].items():
        np.testing.assert_array_equal(array, other.state()[0][name], err_msg=name)


def test_experience_of_any_age_is_trained_on() -> None:
    """A bound on the lag is for algorithms without replay; what a lost learner's weights acted counts too."""
    updater = make_updater()
    batch = recorded(updater, version=pack_version(EPOCH - 1, 10_000))
    result = update(updater, batch, step=20_000)
    assert result.applied
    assert (result.dropped_steps, result.lost_epoch_steps) == (0, 0)


def test_other_actions_than_choices_are_refused() -> None:
    """By name, before anything is trained."""
    policy, parameters = make_policy(make_spec(spaces.Box(-1, 1, (2,))))
    with pytest.raises(ConfigError, match="Box"):
        Updater(policy, parameters, algorithm_config(SETTINGS))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"algorithm": {"burn_in": 33}}, "algorithm.burn_in"),
        ({"algorithm": {"n_step": 33}}, "algorithm.n_step"),
        ({"algorithm": {"replay_sequences": 999}}, "algorithm.replay_start"),
        ({"algorithm": {"replay_sequences": 1000}, "learner": {"batch": 1001}}, "learner.batch"),
        ({"learner": {"echo": 2}}, "learner.echo"),
        ({"algorithm": {"learning_rate_decay_steps": -1}}, "learning_rate_decay_steps"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_starts(
    changes: dict[str, dict[str, object]], named: str
) -> None:
    """With those of [learner] that they depend on."""
    sections = {"env": {"id": "CartPole-v1"}} | changes | {"algorithm": {"name": "r2d2"} | changes.get("algorithm", {})}
    with pytest.raises(ValidationError, match=re.escape(named)):
        LearnerSettings.model_validate(sections)


def test_a_resume_with_other_units_of_q_is_refused() -> None:
    """A network that speaks of rescaled rewards is not read as one of plain rewards."""
    arrays, meta = make_updater().state()
    updater = Updater(*make_policy(), algorithm_config(SETTINGS | {"value_rescaling": False}))
    before = updater.parameters.flat.clone()
    with pytest.raises(CheckpointError, match="rescaled"):
        updater.load_state(arrays, meta)
    assert torch.equal(updater.parameters.flat, before)


def test_masks_bind_acting_and_targets() -> None:
    """A forbidden action is neither taken nor taken for the best of the next row."""
    spec = make_spec(spaces.Discrete(3), masked=True)
    updater = Updater(*make_policy(spec), algorithm_config(SETTINGS | {"burn_in": 0}))
    recording = recording_of(algorithm_config(SETTINGS | {"burn_in": 0}), LENGTH)
    batch = make_batch(updater.policy, rows=LENGTH + 1, recording=recording, seed=4)
    assert batch.mask is not None
    allowed = batch.mask[:-1].clone()
    allowed[allowed.sum(-1) == 0] = 1
    assert (allowed.gather(-1, batch.action.long()) == 1).all()
    plain = update(updater, batch).metrics["q_target_mean"]
    batch.mask[...] = 1
    other = Updater(*make_policy(spec), algorithm_config(SETTINGS | {"burn_in": 0}))
    assert update(other, batch).metrics["q_target_mean"] != plain


def test_first_priorities_are_those_of_the_acting_network() -> None:
    """At equal weights of target and policy they are the update's own, but for the last targets of an unroll."""
    config = R2D2Config.model_validate(SETTINGS | {"n_step": 1})
    updater = Updater(*make_policy(), algorithm_config(SETTINGS | {"n_step": 1}))
    batch = recorded(updater, seed=6)
    arrays = {name: tensor.numpy() for name, tensor in batch.tensors.items()}
    found = first_priorities(config, BURN_IN, arrays, TrainingRewards(config))
    wanted = errors(updater, batch, n=1)
    for priority, lane in zip(found, wanted, strict=True):
        absolute = [abs(d) for t, d in lane.items() if t < BURN_IN + LENGTH - 1]
        expected = 0.9 * max(absolute) + 0.1 * sum(absolute) / len(absolute) if absolute else 0.0
        assert priority == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_first_priorities_are_of_the_rewards_that_the_unrolls_task_trains_on() -> None:
    """A task whose rewards are a thousand times greater, and scaled down, does not fill the first batches."""
    config = R2D2Config.model_validate(SETTINGS)
    updater = Updater(*make_policy(), algorithm_config(SETTINGS))
    arrays = {name: tensor.numpy() for name, tensor in recorded(updater, seed=6).tensors.items()}
    great = arrays | {"reward": 1024 * arrays["reward"]}
    tasks = [TaskConfig(env=EnvConfig(id="a")), TaskConfig(env=EnvConfig(id="b"), reward_scale=1 / 1024)]
    rewards = TrainingRewards(config, tasks)
    wanted = first_priorities(config, BURN_IN, arrays, rewards, 0)
    assert first_priorities(config, BURN_IN, great, rewards, 1) == pytest.approx(wanted)
    assert first_priorities(config, BURN_IN, great, rewards, 0) != pytest.approx(wanted)


@pytest.mark.parametrize(
    ("section", "is_bounded"),
    [({}, True), ({"name": "appo"}, True), ({"name": "r2d2"}, False), ({"name": "mine:Own"}, True)],
)
def test_a_run_with_replay_has_no_bound_of_the_lag(section: dict[str, str], is_bounded: bool) -> None:
    """So that nobody is warned that its experience is nearly too old."""
    assert is_lag_bounded(section) == is_bounded
