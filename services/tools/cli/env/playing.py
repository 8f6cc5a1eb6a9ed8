"""Who plays an environment that is shown: nobody in particular (random actions), or a run's policy."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from seedbed.actor_svc.group import EnvGroup
from seedbed.services.tools.cli.env.target import find_environment
from seedbed.services.tools.cli.extras import require_torch
from seedbed.services.tools.cli.runs import Need, resolve_run
from seedbed.services.tools.cli.video import make_shown_group, play_randomly, speed


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedGroup:
    """A group to look at, and what steps it: each `next` of `ticks` is one tick, the first one the reset."""

    group: EnvGroup
    ticks: Iterator[None]
    fps: float  # at which it is watched
    player: str  # for people


@contextmanager
def show(target: str, words: list[str], run: str | None, *, greedy: bool, seed: int) -> Iterator[SteppedGroup]:
    """Make an environment that can be shown, played at random or by the newest checkpoint of a run; close it at exit.

    The run's own [env] holds wherever TARGET is the same environment and no word says otherwise.
    Raises: ConfigError for an unknown run, CheckpointError if it was trained on another specification.
    """
    if run is None:
        env = find_environment(target, words)
        with closing(make_shown_group(env)) as group:
            ticks = play_randomly(group, seed)
            yield SteppedGroup(group=group, ticks=ticks, fps=speed(group, env), player="random actions")
        return
    require_torch()
    from seedbed.services.tools.cli.evaluate import check_specification, load_policy, play

    run_dir = resolve_run(run, Need.POLICY)
    trained = load_policy(run_dir)
    env = find_environment(target, words)
    if not words:
        envs = [trained.settings.env, *(task.env for task in trained.settings.tasks.values())]
        env = next((item for item in envs if item.id == env.id), env)
    with closing(make_shown_group(env)) as group:
        check_specification(trained, group, with_backend=False)
        ticks = play(trained, group, greedy=greedy, seed=seed)
        yield SteppedGroup(group=group, ticks=ticks, fps=speed(group, env), player=f"the policy of {run_dir.name}")
