"""Checks an environment in this process: its own values first, then the rows that a group of lanes makes of them."""

import contextlib
import time
from dataclasses import dataclass

import numpy as np

from seedbed.actor_svc.backends.backend import LanesError, call_environment
from seedbed.actor_svc.envs import MakeEnvironment, make_group
from seedbed.actor_svc.group import EnvGroup
from seedbed.services.tools.cli.env.bare import make_bare
from seedbed.services.tools.cli.env.row_checks import RowChecker, Tick, compare_episodes, fingerprint
from seedbed.services.tools.cli.env.value_checks import check_values_of
from seedbed.services.tools.cli.env.verdicts import Result, failed, merge, passed, skipped
from seedbed.shared.errors import ConfigError, EnvError
from seedbed.shared.runtime.config import EnvConfig

VALUE_TICKS = 200  # of the bare environment
SEED_TICKS = 200  # of each episode that is compared
ACTION_SEED = 0  # episodes of different seeds get the same actions


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """How much is checked: lanes, groups and steps."""

    lanes: int = 4
    groups: int = 2  # of a service
    mode: str = "train"  # in which a service is started
    soak_steps: int = 1000  # ticks
    seed: int = 1
    patience_s: float = 20.0  # for each answer of a service; starting it may take five times as long


def check_environment(env: EnvConfig, options: CheckOptions, *, make: MakeEnvironment | None = None) -> list[Result]:
    """Every rule of environments, and speed.

    Args:
      make: the environment's constructor, in place of what `env.id` names.
    Raises: ConfigError if `env` names no environment.
    """
    results = [_check_bare(env, options)] if make is None else []
    try:
        group = _make_group(env, options.lanes, make)
    except (ConfigError, EnvError) as error:
        return merge([failed("made", str(error)), *results])
    try:
        results.append(passed("made", _describe(group)))
        results += _check_group(group, options)
    finally:
        group.close()
    return merge(results)


def check_values_behind(env: EnvConfig, options: CheckOptions) -> list[Result]:
    """Check what a service cannot show: the values that its environment gives before they become rows.

    The environment is made in this process. Where that cannot be done, as for a package that only the service has,
    nothing is said of it.
    """
    try:
        return [_check_bare(env, options)]
    except ConfigError as error:
        return [skipped("dtypes", f"the environment cannot be made here: {error}")]


def _make_group(env: EnvConfig, lanes: int, make: MakeEnvironment | None) -> EnvGroup:
    """Make a group of so many lanes, rounded up where lanes come in multiples, such as the agents of a world."""
    try:
        return make_group(env, lanes, make=make)
    except LanesError as error:
        return make_group(env, -(-lanes // error.multiple) * error.multiple, make=make)


def _check_bare(env: EnvConfig, options: CheckOptions) -> Result:
    """The environment's own values, where it is a Gymnasium one."""
    try:
        bare = make_bare(env, options.lanes)
    except EnvError:
        return skipped("dtypes", "the environment cannot be made")
    if bare is None:
        return skipped("dtypes", "no Gymnasium environment under it: its back-end writes rows itself")
    try:
        return check_values_of(bare, ticks=min(VALUE_TICKS, options.soak_steps), seed=options.seed)
    except EnvError as error:
        return failed("dtypes", str(error))
    finally:
        with contextlib.suppress(EnvError):
            call_environment(bare.close)


def _check_group(group: EnvGroup, options: CheckOptions) -> list[Result]:
    """Rows, then seeds; an environment that fails for good ends both."""
    checker = RowChecker(group.spec, group.lanes)
    results: list[Result] = []
    try:
        started = time.perf_counter()
        _play(group, options.seed, options.soak_steps, checker)
        seconds = time.perf_counter() - started
        results.append(passed("soak", _describe_speed(group, options.soak_steps, seconds)))
        results.append(_check_seeds(group, options))
    except EnvError as error:
        results.append(failed("soak", f"after {checker.num_ticks} ticks: {error}"))
    results += checker.results()
    counters = group.counters()
    if counters.rebuilds:
        found = f"{counters.rebuilds} lanes were made anew; the last time: {counters.last_failure}"
        results.insert(0, failed("no rebuilt lanes", found))
    return results


def _play(group: EnvGroup, seed: int, ticks: int, checker: RowChecker | None = None) -> list[dict[str, str]]:
    """Reset and step with random actions; with a checker it sees every tick, else fingerprints come back."""
    generator = np.random.default_rng(ACTION_SEED)
    group.reset(seed)
    seen: list[dict[str, str]] = []
    for number in range(ticks + 1):
        if number:
            group.advance(group.random_actions(generator))
        tick = _tick(group)
        if checker is not None:
            checker.observe(tick, after_reset=number == 0)
        else:
            seen.append(fingerprint(group.spec, tick))
    return seen


def _check_seeds(group: EnvGroup, options: CheckOptions) -> Result:
    ticks = min(SEED_TICKS, options.soak_steps)
    first, again = (_play(group, options.seed, ticks) for _ in range(2))
    return compare_episodes(first, again, _play(group, options.seed + 1, ticks))


def _tick(group: EnvGroup) -> Tick:
    """The group's newest rows, copied where they are kept."""
    views = group.views
    return Tick(
        observation=tuple(view.copy() for view in views.observation),
        mask=None if views.mask is None else views.mask.copy(),
        reward=views.reward.copy(),
        flags=views.flags.copy(),
        statistics=group.ended_statistics.copy() if group.ended_lanes.size else None,
    )


def _describe(group: EnvGroup) -> str:
    leaves = group.spec.observation.leaves(), group.spec.action.leaves()
    observation, action = (
        ", ".join(f"{leaf.path} {leaf.describe()}".strip() for leaf in side[:4]) + (" …" if len(side) > 4 else "")
        for side in leaves
    )
    return f"observation {observation}; action {action}"


def _describe_speed(group: EnvGroup, ticks: int, seconds: float) -> str:
    rate = ticks * group.lanes / max(seconds, 1e-9)
    return f"{ticks} ticks of {group.lanes} lanes, {rate:,.0f} steps/s, {1e3 * seconds / max(ticks, 1):.2f} ms a tick"
