"""Who plays an environment that is shown: nobody in particular (random actions), or a run's policy."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seedbed.actor_svc.group import EnvGroup
from seedbed.services.tools.cli.env.target import find_environment
from seedbed.services.tools.cli.runs import Need, resolve_run
from seedbed.services.tools.cli.video import Recorded, make_shown_group, play_randomly, speed, write_video
from seedbed.shared.runtime.config import EnvConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedGroup:
    """A group to look at, and what steps it: each `next` of `ticks` is one tick, the first one the reset."""

    group: EnvGroup
    ticks: Iterator[None]
    env: EnvConfig
    player: str  # for people


def show_random(env: EnvConfig, seed: int) -> SteppedGroup:
    """Play random actions and show them."""
    group = make_shown_group(env)
    return SteppedGroup(group=group, ticks=play_randomly(group, seed), env=env, player="random actions")


def show_policy(target: str, words: list[str], run: str, *, greedy: bool, seed: int) -> SteppedGroup:
    """The newest checkpoint of a run. Needs torch.

    The run's own [env] holds wherever TARGET is the same environment and no word says otherwise.
    Raises: ConfigError for an unknown run, CheckpointError if it was trained on another specification.
    """
    from seedbed.services.tools.cli.evaluate import check_specification, load_policy, play

    run_dir = resolve_run(run, Need.POLICY)
    trained = load_policy(run_dir)
    env = find_environment(target, words)
    if not words:
        envs = [trained.settings.env, *(task.env for task in trained.settings.tasks.values())]
        env = next((item for item in envs if item.id == env.id), env)
    group = make_shown_group(env)
    check_specification(trained, group)
    ticks = play(trained, group, greedy=greedy, seed=seed)
    return SteppedGroup(group=group, ticks=ticks, env=env, player=f"the policy of {run_dir.name}")


def record(shown: SteppedGroup, file: Path, episodes: int | None) -> Recorded:
    """Write the video and let go of the group. Raises: as `write_video`."""
    try:
        return write_video(shown.group, shown.ticks, file, fps=speed(shown.group, shown.env), episodes=episodes)
    finally:
        shown.group.close()
