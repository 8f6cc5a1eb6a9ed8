"""The mathematics learns: policy and updater in one process, without services, on CartPole."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from seedbed.learner_svc.learning.update import Updater
from seedbed.learner_svc.sources.batch import Batch
from seedbed.shared.policy.acting import Sample
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import FlatParameters
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.protocol.rows import Flags
from tests.support.experience import algorithm_config
from tests.support.specs import make_spec

ROWS, LANES = 17, 128


def collect(envs, policy, row, noise, version):
    """One unroll: rows 0…T, the last of which is the next one's first; and the episodes' lengths that ended in it."""
    rows, actions, log_probs = [row], [], []
    distribution = policy.distribution
    with torch.inference_mode():
        for t in range(ROWS - 1):
            observation, reward, flags = (torch.from_numpy(x) for x in rows[-1])
            first = (flags & int(Flags.FIRST)) != 0
            acted = policy.act((observation,), reward, first, (), Sample(), [x[t] for x in noise], wanted=["log_prob"])
            actions.append(acted.action.numpy())
            log_probs.append(acted.recorded["log_prob"].numpy())
            ended = (rows[-1][2] & (Flags.TERMINATED | Flags.TRUNCATED)) != 0
            observation, reward, terminated, truncated, _ = envs.step(distribution.to_env(actions[-1])[0])
            flags = np.where(ended, Flags.FIRST, terminated * Flags.TERMINATED | truncated * Flags.TRUNCATED)
            rows.append((observation.copy(), reward.astype(np.float32), flags.astype(np.uint8)))
    observation, reward, flags = (np.stack(x) for x in zip(*rows, strict=True))
    arrays = [observation, reward, flags, np.stack(actions), np.stack(log_probs)]
    arrays.append(np.full((ROWS - 1, LANES), version, np.int64))
    return Batch.from_arrays(RecordSpec(policy.spec, ROWS - 1), arrays), rows[-1]


@pytest.mark.learning
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"value_normalisation": "popart", "optimizer": "rmsprop"},
        {"entropy_target": 0.4, "normalise_advantage": True},
        {"name": "appo", "kl_target": 0.01, "passes": 4, "minibatches": 4},
    ],
    ids=["plain", "popart-rmsprop", "adaptive-entropy", "appo"],
)
def test_cartpole_is_learned(options):
    """Episodes of 400 steps on average within 600 K steps, with a seed."""
    torch.manual_seed(1)
    envs = gym.make_vec("CartPole-v1", LANES, vectorization_mode="vector_entry_point")
    spec = make_spec(envs.single_observation_space, spaces.Discrete(2), env_id="CartPole-v1")
    policy = Policy(spec, PolicyConfig())
    use = {name: options[name] for name in ("passes", "minibatches") if name in options}
    table = {name: value for name, value in options.items() if name not in use}
    config = algorithm_config({"learning_rate": 2e-3, "reward_scale": 0.1} | table)
    updater = Updater(policy, FlatParameters(policy), config, run_steps=1_000_000, **use)
    observation, _ = envs.reset(seed=1)
    row = (observation.copy(), np.zeros(LANES, np.float32), np.full(LANES, Flags.FIRST, np.uint8))
    step = trained_steps = 0
    length, finished = np.zeros(LANES), []
    while trained_steps < 600_000 and (len(finished) < 100 or np.mean(finished[-100:]) < 400):
        version = pack_version(1, step)
        noise = [torch.from_numpy(x) for x in policy.distribution.noise(1, step, ROWS - 1, LANES)]
        batch, row = collect(envs, policy, row, noise, version)
        for flags in batch.flags[1:].numpy():
            length += (flags & Flags.FIRST) == 0
            ended = (flags & (Flags.TERMINATED | Flags.TRUNCATED)) != 0
            finished += length[ended].tolist()
            length[ended] = 0
        result = updater.update(batch, step=step, trained_steps=trained_steps, max_policy_lag=1, version_now=version)
        assert result.metrics["log_rho_mean_abs_lag0"] < 1e-4
        step, trained_steps = step + 1, trained_steps + result.valid_steps
    envs.close()
    assert np.mean(finished[-100:]) >= 400, f"{np.mean(finished[-100:]):.0f} after {trained_steps} steps"
