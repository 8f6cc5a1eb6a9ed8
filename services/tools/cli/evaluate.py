"""Plays a run's policy in this process: figures over whole episodes, and a video.

Tensor and array suffixes: L lanes, A raw-action columns.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import ConfigDict

from seedbed.actor_svc.backends.backend import LanesError
from seedbed.actor_svc.envs import BACKEND_SETTING, make_group
from seedbed.actor_svc.group import EnvGroup
from seedbed.learner_svc.run.checkpoint import Checkpoint, load_latest
from seedbed.learner_svc.run.measure import known_mean
from seedbed.learner_svc.run.saved_policy import read_policy
from seedbed.services.tools.cli.env.remote_backend import make_remote_group
from seedbed.services.tools.cli.machine import usable_cores
from seedbed.services.tools.cli.runs import RECORD
from seedbed.services.tools.cli.video import Recorded, make_shown_group, speed, write_video
from seedbed.shared.errors import CheckpointError
from seedbed.shared.policy.acting import MODE, ActingRule
from seedbed.shared.policy.devices import choose_device
from seedbed.shared.policy.policy import Policy, State
from seedbed.shared.policy.precision import allow_tf32
from seedbed.shared.policy.weights import acting_parameters
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.rows import EnvSpec, Flags, describe_space_difference
from seedbed.shared.protocol.statistics import GIVEN, Means
from seedbed.shared.runtime.config import EvalConfig
from seedbed.shared.runtime.load_config import load_settings
from seedbed.shared.runtime.tasks import RunSettings, check_task
from seedbed.shared.scores.published import published_scale
from seedbed.shared.scores.scale import ScoreScale

Which = Literal["best", "latest", "milestone"]
REMEDIES = {
    "latest": "",
    "best": "; evaluations during training (eval.every_s) find it. Use --which latest",
    "milestone": "; learner.milestone_steps asks for them. Use --which latest",
}
NOISE_TICKS = 32  # ticks whose sampling noise is drawn in one go


class EvaluationSettings(RunSettings):
    """What is read of a run's config.toml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    eval: EvalConfig = EvalConfig()

    def scale_of(self, task: str) -> ScoreScale | None:
        """The scale of normalised scores of one of the run's tasks; of the environment of a run that has none."""
        return self.tasks[task].scale(self.eval) if self.tasks else published_scale(self.eval.own_env(self.env))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPolicy:
    """A policy with the weights of one checkpoint, and the settings of its run."""

    policy: Policy
    rule: ActingRule  # how it acted when it was trained
    checkpoint: Checkpoint
    settings: EvaluationSettings
    device: torch.device
    task: str = ""  # that `settings.env` is of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisodes:
    """Whole episodes of one policy version."""

    names: tuple[str, ...]  # of the statistics; the first two are return and length
    statistics: Array  # f32 [episodes, K]

    @property
    def returns(self) -> Array:
        """The return of each episode, f32 [episodes]."""
        column: Array = self.statistics[:, 0]
        return column

    @property
    def own_means(self) -> Means:
        """The means of the environment's own statistics; None where no episode gave one."""
        columns = self.statistics.T.tolist()
        return {name: known_mean(columns[place]) for place, name in enumerate(self.names) if name not in GIVEN}


def load_policy(run_dir: Path, which: Which = "latest", *, device: str = "auto") -> TrainedPolicy:
    """The policy of a run's newest checkpoint ("latest": of any kind), its best, or its newest milestone.

    Raises: CheckpointError if there is none that can be read.
    """
    settings = load_settings(EvaluationSettings, run_dir / RECORD)
    checkpoint = find_checkpoint(run_dir, which)
    saved = read_policy(checkpoint)
    policy, chosen = saved.policy, choose_device(device)
    policy.to(chosen).eval()
    allow_tf32(policy.precision.tf32)
    acting_parameters(policy).load_(saved.flat.tobytes())
    return TrainedPolicy(policy=policy, rule=saved.rule, checkpoint=checkpoint, settings=settings, device=chosen)


def find_checkpoint(run_dir: Path, which: Which) -> Checkpoint:
    """A run's newest checkpoint ("latest": of any kind), its best, or its newest milestone.

    Raises: CheckpointError if there is none that can be read.
    """
    folder = run_dir / "checkpoints"
    checkpoint = load_latest(folder) if which == "latest" else load_latest(folder, kinds=(which,))
    if checkpoint is None:
        raise CheckpointError(f"{folder}: no {which} checkpoint yet{REMEDIES[which]}")
    return checkpoint


def by_task(trained: TrainedPolicy, only: str | None = None) -> dict[str, TrainedPolicy]:
    """The policy with the environment of each task, or of one; under "" where the run has one environment.

    Raises: ConfigError if it has no such task.
    """
    settings = trained.settings
    if not settings.tasks and only is None:
        return {"": trained}
    if only is not None:
        check_task(only, settings.tasks, "--task")
    return {
        name: replace(trained, task=name, settings=settings.model_copy(update={"env": task.env}))
        for name, task in settings.tasks.items()
        if only in (None, name)
    }


def play_episodes(
    trained: TrainedPolicy,
    episodes: int,
    *,
    greedy: bool,
    seed: int,
    finished: Callable[[int], None] = lambda _count: None,
) -> PlayedEpisodes:
    """Exactly so many whole episodes, each lane its share of them, so that short ones are not preferred.

    `finished` is called with the number of episodes so far.
    """
    torch.set_num_threads(usable_cores())
    lanes = trained.settings.eval.lanes
    try:
        group = _make_group(trained.settings, min(lanes, episodes))
    except LanesError:  # lanes come in multiples: some play no episode that counts
        group = _make_group(trained.settings, lanes)
    left = np.full(group.lanes, episodes // group.lanes)
    left[: episodes % group.lanes] += 1
    rows: list[Array] = []
    try:
        check_specification(trained, group)
        ticks = play(trained, group, greedy=greedy, seed=seed)
        while left.any():
            next(ticks)
            counted = left[group.ended_lanes] > 0
            if counted.any():
                rows.append(group.ended_statistics[counted])
                left[group.ended_lanes[counted]] -= 1
                finished(episodes - int(left.sum()))
    finally:
        group.close()
    return PlayedEpisodes(names=group.spec.statistics, statistics=np.concatenate(rows))


def _make_group(settings: EvaluationSettings, lanes: int) -> EnvGroup:
    """What evaluations of a run step; a service in another language may have its own number of lanes."""
    if settings.env.service:
        return make_remote_group(settings.env, settings.eval, lanes)
    return make_group(settings.eval.own_env(settings.env), lanes)


def play(trained: TrainedPolicy, group: EnvGroup, *, greedy: bool, seed: int) -> Iterator[None]:
    """Reset the group, then step it with the policy's actions, one tick for each `next`, without end."""
    policy, device, lanes = trained.policy, trained.device, group.lanes
    state = policy.initial_state(lanes, device, trained.task)
    group.reset(seed)
    yield
    tick = 0
    rule = MODE if greedy else trained.rule
    noise_ticks: tuple[Array, ...] = ()
    while True:
        if tick % NOISE_TICKS == 0:
            noise_ticks = rule.noise(policy.distribution, seed, tick // NOISE_TICKS, NOISE_TICKS, range(lanes))
        noise = [torch.from_numpy(array[tick % NOISE_TICKS]).to(device) for array in noise_ticks]
        own_LA, state = _act(policy, group, state, rule, noise, device)
        group.advance(policy.distribution.to_env(own_LA))
        tick += 1
        yield


@torch.inference_mode()
def _act(
    policy: Policy, group: EnvGroup, state: State, rule: ActingRule, noise: list[torch.Tensor], device: torch.device
) -> tuple[Array, State]:
    """Own actions f32 [L, A] for the group's newest rows, and the state after them."""
    views = group.views
    first = torch.from_numpy((views.flags & int(Flags.FIRST)) != 0)
    acted = policy.act(
        [torch.from_numpy(leaf).to(device) for leaf in views.observation],
        torch.from_numpy(views.reward).to(device),
        first.to(device),
        state,
        rule,
        noise,
        None if views.mask is None else torch.from_numpy(views.mask).to(device),
    )
    return acted.action.cpu().numpy(), acted.state


def check_specification(trained: TrainedPolicy, group: EnvGroup, *, with_backend: bool = True) -> None:
    """Refuse an environment that is not what the policy was built for. Raises: CheckpointError.

    `with_backend`: False where another one may step it, because not all can be shown.
    """
    spec = group.spec
    if not with_backend:
        others = [item for item in spec.settings if item[0] != BACKEND_SETTING]
        theirs = [item for item in trained.policy.spec.settings if item[0] == BACKEND_SETTING]
        spec = replace(spec, settings=tuple(sorted((*others, *theirs))))
    if not _fits(trained, spec):
        raise CheckpointError(
            f"{trained.checkpoint.path}: was trained on another specification of {trained.policy.spec.env_id} than "
            f"{group.spec.env_id} has now: was a package or the [env] section changed?"
        )


def _fits(trained: TrainedPolicy, spec: EnvSpec) -> bool:
    """Whether the policy can play this: with tasks, any environment that has its spaces."""
    if trained.settings.tasks:
        return describe_space_difference(trained.policy.spec, spec) is None
    return spec == trained.policy.spec


def record_video(trained: TrainedPolicy, file: Path, *, greedy: bool = True, seed: int | None = None) -> Recorded:
    """Write whole episodes as MP4, enough to watch.

    Raises: MissingExtraError without imageio, EnvError if the environment cannot be shown, ConfigError if
      the file cannot be written.
    """
    torch.set_num_threads(usable_cores())
    settings = trained.settings
    env = settings.eval.own_env(settings.env)
    group = make_remote_group(settings.env, settings.eval, 1, render=True) if env.service else make_shown_group(env)
    try:
        ticks = play(trained, group, greedy=greedy, seed=trained.settings.eval.seed if seed is None else seed)
        return write_video(group, ticks, file, fps=speed(group, env))
    finally:
        group.close()


def video_of(file: Path, task: str) -> Path:
    """Where a task's video goes if `file` is asked for: its name with the task's behind it."""
    return file.with_stem(f"{file.stem}-{task}") if task else file
