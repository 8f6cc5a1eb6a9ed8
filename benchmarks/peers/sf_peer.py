"""Sample Factory 2.1.1 on CartPole or Pong, CPU, one epoch: prints trained agent steps per second as JSON.

Usage: sf_peer.py {cartpole,pong} SECONDS. Its own V-trace option fails in this release on CPU, so its default
(APPO with GAE) is what runs. The rate is read from its progress lines over the last half of the run.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

LANES = {"cartpole": 128, "pong": 16}  # over both workers; gymnasium environments, one by one


def make_cartpole(name, cfg=None, env_config=None, render_mode=None):
    """Make CartPole; Sample Factory prescribes the parameters."""
    import gymnasium as gym

    return gym.make("CartPole-v1", render_mode=render_mode)


def make_pong(name, cfg=None, env_config=None, render_mode=None):
    """Make Pong with observations 84x84x4, frame skip 4 and no sticky actions."""
    import ale_py  # noqa: F401  registers the games
    import gymnasium as gym
    import numpy as np

    env = gym.make("PongNoFrameskip-v4")
    env = gym.wrappers.FrameStack(gym.wrappers.AtariPreprocessing(env, frame_skip=4), 4)
    return type("AsArray", (gym.ObservationWrapper,), {"observation": lambda self, obs: np.asarray(obs)})(env)


COMMON = [
    "--device=cpu", "--num_workers=2", "--use_rnn=False", "--num_epochs=1", "--normalize_returns=False",
    "--normalize_input=False", "--train_for_env_steps=10000000000", "--restart_behavior=overwrite",
    "--experiment=peer", "--train_dir=./sf",
]  # fmt: skip
WORK = {
    "cartpole": [
        "--num_envs_per_worker=64", "--batch_size=4096", "--rollout=32", "--recurrence=32",
        "--encoder_mlp_layers", "64", "64",
    ],
    "pong": [
        "--num_envs_per_worker=8", "--batch_size=640", "--rollout=20", "--recurrence=20",
        "--encoder_conv_architecture=convnet_atari", "--encoder_conv_mlp_layers", "256", "--nonlinearity=relu",
        "--obs_scale=255", "--env_frameskip=1",
    ],
}  # fmt: skip


def train(task):
    """Train a task with Sample Factory and exit with its status; `measure` runs this in a process of its own."""
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import run_rl

    register_env(task, {"cartpole": make_cartpole, "pong": make_pong}[task])
    argv = [f"--env={task}", *COMMON, *WORK[task]]
    parser, _ = parse_sf_args(argv)
    sys.exit(run_rl(parse_full_cfg(parser, argv)))


def measure(task, seconds):
    """Run a training process for `seconds` and print the rate of trained steps over the last half as JSON."""
    points, lines = [], []
    run = subprocess.Popen(
        [sys.executable, __file__, task, "train"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    start = time.monotonic()
    try:
        for line in run.stdout:
            lines.append(line)
            found = re.search(r"Total num frames: (\d+)", line)
            if found:
                points.append((time.monotonic() - start, int(found[1])))
            if time.monotonic() - start > seconds:
                break
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    late = [p for p in points if p[0] > seconds / 2]
    if len(late) < 2 or late[-1][1] == late[0][1]:
        sys.exit("".join(lines[-30:]) + "\nsample-factory made no progress")
    rate = (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])
    print(
        json.dumps(
            {
                "system": "sample-factory 2.1.1",
                "task": task,
                "workers": 2,
                "backend": "gymnasium, one by one",
                "lanes": LANES[task],
                "trained_steps_per_s": round(rate, 1),
            }
        )
    )


if __name__ == "__main__":
    if sys.argv[2] == "train":
        train(sys.argv[1])
    else:
        measure(sys.argv[1], float(sys.argv[2]))
