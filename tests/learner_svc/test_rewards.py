"""Rewards to train on: scale, clip and transform, of the run and of each task."""

import math

import pytest
import torch

from seedbed.learner_svc.algorithms.config import R2D2Config, VTraceConfig
from seedbed.learner_svc.learning.rewards import TrainingRewards, asymmetric
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.runtime.tasks import TaskConfig
from tests.support.experience import make_batch, make_updater

REWARD = torch.tensor([[-2.0, -0.5, 0.0], [0.25, 1.0, 40.0]])


def a_task(**settings):
    """A task of any environment."""
    return TaskConfig(env=EnvConfig(id="x"), **settings)


def test_the_asymmetric_transform_has_the_published_values():
    """0.3·tanh r below zero, 5·tanh r above it."""
    reward = torch.tensor([-100.0, -1.0, -0.1, 0.0, 0.1, 1.0, 100.0])
    wanted = [-0.3, -0.2284782468, -0.0299003984, 0.0, 0.4983399731, 3.8079707799, 5.0]
    torch.testing.assert_close(asymmetric(reward), torch.tensor(wanted))


def test_rewards_are_scaled_then_clipped_then_transformed():
    """In this order; without settings they stay what they are, and are not copied."""
    assert TrainingRewards(VTraceConfig()).of(REWARD) is REWARD
    clipped = TrainingRewards(VTraceConfig(reward_scale=0.5, reward_clip=0.4)).of(REWARD)
    torch.testing.assert_close(clipped, torch.tensor([[-0.4, -0.25, 0.0], [0.125, 0.4, 0.4]]))
    changed = TrainingRewards(R2D2Config(reward_scale=0.5, reward_clip=0.4, reward_transform="asymmetric")).of(REWARD)
    wanted = [[0.3 * math.tanh(-0.4), 0.3 * math.tanh(-0.25), 0], [5 * math.tanh(x) for x in (0.125, 0.4, 0.4)]]
    torch.testing.assert_close(changed, torch.tensor(wanted))


def test_a_task_has_its_own_scale_clip_and_transform():
    """What a task leaves out is the algorithm's; a clip of 0 switches that one off."""
    config = VTraceConfig(reward_scale=2.0, reward_clip=1.0)
    tasks = [a_task(), a_task(reward_scale=0.1, reward_clip=0.0), a_task(reward_transform="asymmetric", reward_clip=0)]
    found = TrainingRewards(config, tasks).of(REWARD, torch.tensor([1, 0, 2]))
    wanted = torch.tensor([[-0.4, -1.0, 0.0], [0.05, 1.0, 5.0]])
    torch.testing.assert_close(found, wanted)
    config = VTraceConfig(reward_transform="asymmetric")
    found = TrainingRewards(config, [a_task(reward_transform="none"), a_task()]).of(REWARD, torch.tensor([0, 1, 0]))
    torch.testing.assert_close(found, torch.stack([REWARD[:, 0], asymmetric(REWARD[:, 1]), REWARD[:, 2]], 1))


@pytest.mark.parametrize("minibatches", [1, 3])
def test_every_lane_is_trained_with_the_rewards_of_its_task(minibatches):
    """An update on lanes of two tasks is the update on rewards that were changed before it."""
    tasks = {"a": a_task(reward_scale=3.0), "b": a_task(reward_transform="asymmetric")}
    numbers = [0, 1, 1, 0, 1, 0]
    weights = []
    for is_changed_before in (True, False):
        updater = make_updater(
            minibatches=minibatches, tasks={"a": a_task(), "b": a_task()} if is_changed_before else tasks, seed=2
        )
        batch = make_batch(updater.policy)
        if is_changed_before:
            batch["reward"][1:] = TrainingRewards(VTraceConfig(), list(tasks.values())).of(
                batch.reward[1:], torch.tensor(numbers)
            )
        updater.update(
            batch, step=0, trained_steps=0, max_policy_lag=8, version_now=int(batch.version[0, 0]),
            task_B=torch.tensor(numbers).numpy(),
        )  # fmt: skip
        weights.append(updater.parameters.flat.clone())
    torch.testing.assert_close(weights[0], weights[1], atol=0, rtol=0)
