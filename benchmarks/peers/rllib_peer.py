"""RLlib 2.60 IMPALA on CartPole or Pong, CPU: prints trained agent steps per second as JSON.

Usage: rllib_peer.py {cartpole,pong} SECONDS.
"""

import json
import os
import sys
import time

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import gymnasium as gym
import numpy as np
import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env


def make_pong(_):
    """Make Pong with observations 84x84x4 in 0..1, frame skip 4 and no sticky actions."""
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    env = gym.wrappers.FrameStackObservation(gym.wrappers.AtariPreprocessing(env, frame_skip=4), 4)
    return gym.wrappers.TransformObservation(
        env,
        lambda obs: np.transpose(obs, (1, 2, 0)).astype(np.float32) / 255.0,
        gym.spaces.Box(0, 1, (84, 84, 4), np.float32),
    )


def main(task, seconds):
    """Train a task for `seconds` and print the rate of trained steps over the last half as JSON."""
    register_env("pong", make_pong)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    if task == "cartpole":
        env, lanes, rows, batch, model = "CartPole-v1", 64, 32, 4096, DefaultModelConfig(fcnet_hiddens=[64, 64])
    else:
        env, lanes, rows, batch = "pong", 8, 20, 640
        model = DefaultModelConfig(conv_filters=[[16, 8, 4], [32, 4, 2]], head_fcnet_hiddens=[256])
    config = (
        IMPALAConfig()
        .environment(env)
        .env_runners(num_env_runners=2, num_envs_per_env_runner=lanes, rollout_fragment_length=rows)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=batch)
        .rl_module(model_config=model)
    )
    algorithm, start, points = config.build_algo(), time.monotonic(), []
    while time.monotonic() - start < seconds:
        learners = algorithm.train().get("learners", {}).get("__all_modules__", {})
        points.append((time.monotonic() - start, learners.get("num_env_steps_trained_lifetime", 0)))
    late = [p for p in points if p[0] > seconds / 2]
    if len(late) < 2:
        raise SystemExit("fewer than two iterations in the last half: give it more seconds")
    rate = (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])
    print(
        json.dumps(
            {
                "system": "rllib 2.60 impala",
                "task": task,
                "workers": 2,
                "lanes": 2 * lanes,
                "trained_steps_per_s": round(rate, 1),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
