"""What a step of an experiment costs each service on this machine, measured for `seedbed plan`.

A whole run gives the processor time of all roles, and how busy inference and learner are. Then one thread steps the
same environments and runs the run's policy for them itself, as an actor of IMPALA does.
"""

import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from seedbed.actor_svc.envs import make_group
from seedbed.learner_svc.algorithms.registry import recording_of
from seedbed.services.tools.cli.bench.experiment import ROLES, TimedRun, last_half, load_endless, run_for
from seedbed.services.tools.cli.capacity import Costs
from seedbed.services.tools.cli.evaluate import TrainedPolicy, load_policy, play
from seedbed.services.tools.monitor.verdict import read_signals
from seedbed.shared.errors import ConfigError, SeedbedError
from seedbed.shared.figures import columns
from seedbed.shared.protocol.rows import act_layout, step_layout

WARMUP_TICKS = 8  # of one thread alone


def measure_costs(name: str, seconds: float, words: Sequence[str]) -> Costs:
    """Train an experiment for `seconds`, then act for a fifth of that time in one thread.

    Raises: ConfigError for several tasks, several learners, no actors or a service in another language; SeedbedError if
      the run fails, or trains too little to be measured.
    """
    with tempfile.TemporaryDirectory(prefix="seedbed-plan-") as folder:
        still = ["eval.every_s=0", "eval.every_steps=0", "launch.eval_actors=0"]
        experiment = load_endless(name, [*words, *still], Path(folder) / "run")
        settings = experiment.settings
        if settings.tasks or settings.env.service:
            raise ConfigError(f"{name}: a plan is for one environment in Python, not for tasks or another language")
        if settings.launch.actors < 1 or settings.launch.learners > 1:
            raise ConfigError(
                f"{name}: a plan measures one learner with actors: set launch.learners=1, launch.actors=1"
            )
        run = run_for(experiment, seconds)
        trained = load_policy(experiment.run_dir, device="cpu")
        return _costs(run, trained, _impala_s(trained, settings.actor.lanes, seconds / 5))


def _costs(run: TimedRun, trained: TrainedPolicy, impala_s: float) -> Costs:
    settings, policy = run.experiment.settings, trained.policy
    first, last = last_half(run.points)
    acted, took_s = last.acted - first.acted, last.at - first.at
    signals = read_signals(run.experiment.run_dir)
    update_busy_share = signals.figures[columns.UPDATE_BUSY_SHARE]
    used_s = {role: last.cpu_s[role] - first.cpu_s[role] for role in ROLES}
    is_measured = acted > 0 and min(used_s.values()) > 0
    if not is_measured or not signals.inference_busy_share or not update_busy_share:
        raise SeedbedError("too little was trained in that time: give it more --seconds")
    length, lanes = settings.learner.unroll_length, settings.actor.lanes
    record = recording_of(settings.algorithm, length).make_record(policy.spec, policy.state_fields)
    exchanged = step_layout(policy.spec, lanes).num_bytes + act_layout(policy.spec, lanes).num_bytes
    rate = acted / took_s
    return Costs(
        env_id=settings.env.id,
        frames_per_step=settings.env.frame_skip if settings.env.is_atari else 1,
        actor_s=used_s["actor"] / acted,
        inference_s=used_s["inference"] / acted,
        learner_s=used_s["learner"] / acted,
        impala_s=impala_s,
        inference_rate=rate / signals.inference_busy_share / signals.num_replicas,
        learner_rate=rate / update_busy_share,
        inference_bytes=exchanged / lanes,
        learner_bytes=record.layout(1).num_bytes / length,
        weights_bytes=4 * sum(parameter.numel() for parameter in policy.parameters()),  # as published, in float32
        steps_per_update=settings.learner.batch * length * acted / max(1.0, last.trained - first.trained),
        unrolls_per_update=settings.learner.batch,
    )


def _impala_s(trained: TrainedPolicy, lanes: int, seconds: float) -> float:
    """Return the time of one thread that acts and steps its environments, for one step of one of them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    group = make_group(trained.settings.env, lanes)
    try:
        ticks = play(trained, group, greedy=False, seed=1)
        for _ in itertools.islice(ticks, WARMUP_TICKS):
            pass
        began, number = time.process_time(), 0
        while time.process_time() - began < seconds:
            next(ticks)
            number += 1
        return (time.process_time() - began) / (number * lanes)
    finally:
        group.close()
        torch.set_num_threads(threads)
