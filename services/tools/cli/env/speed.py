"""`env bench`: where the time of one tick goes, from the bare environment to an action that came over the network.

Each stage contains the one before it, with the same lanes, so that the differences are shares of one tick:

| stage | what runs |
|---|---|
| bare | the environment alone, as its author wrote it |
| rows | our group: autoreset, checks, rows |
| encoded | rows as frames, headers, actions from frames |
| link | one group, an actor process, loopback, an inference that answers at once |
| link, groups | several groups: one steps while another waits |

All stages are measured in turn, as often as is asked for; figures are medians.
"""

import os
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from seedbed.actor_svc.backends.backend import call_environment
from seedbed.actor_svc.backends.vector import reset_ended
from seedbed.actor_svc.envs import make_group
from seedbed.actor_svc.group import EnvGroup
from seedbed.services.tools.cli.env.bare import BarePool, make_bare, make_bare_pool
from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.life import NUM_ANSWERS, Answering, ServiceLink, random_action_frames
from seedbed.services.tools.cli.env.link import SILENT, Notes, live
from seedbed.services.tools.cli.env.target import Listen, Target, as_service, pinned
from seedbed.services.tools.cli.env.value_checks import BareEnv
from seedbed.services.tools.cli.service_folder import ServiceFolder
from seedbed.shared.errors import EnvError
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Act, Step
from seedbed.shared.runtime.config import EnvConfig

Line = dict[str, str | int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How long is measured, with how many lanes and groups."""

    seconds: float = 10.0  # for all stages together
    lanes: int = 64
    groups: int = 2  # of the last stage
    repeats: int = 1  # of all stages in turn, within `seconds`
    one_core: bool = False  # for whatever steps environments; the inference that answers has another, if there is one
    seed: int = 1

    @property
    def share_s(self) -> float:
        """Seconds for each stage of each repeat."""
        return self.seconds / 5 / self.repeats


def measure(
    name: str, target: Target, options: BenchOptions, words: Sequence[str] = (), notes: Notes = SILENT
) -> Iterator[Line]:
    """Each stage as it is done for the last time, then the shares.

    A service in a process of its own has the link's stages only.

    Args:
      name: what the target is called in the results.
      words: further words for the service's command.
    Raises: EnvError if the environment cannot be stepped or the service gives no steps.
    """
    ticks_s: dict[str, list[float]] = {}
    base: Line = {"target": name, "lanes": options.lanes}
    if options.one_core:
        base["cores"] = 1
    for repeat in range(options.repeats):
        for stage, seconds, said in _stages(target, options, words, notes):
            ticks_s.setdefault(stage, []).append(seconds)
            if repeat == options.repeats - 1:
                yield base | {"stage": stage} | said | _speed(ticks_s[stage], int(said.get("lanes", options.lanes)))
    if "encoded" in ticks_s:
        yield base | {"stage": "shares"} | shares({stage: statistics.median(ticks_s[stage]) for stage in ticks_s})


def _stages(
    target: Target, options: BenchOptions, words: Sequence[str], notes: Notes
) -> Iterator[tuple[str, float, Line]]:
    """Every stage once: its name, seconds for a tick, and what else there is to say."""
    first, second = choose_cores(os.sched_getaffinity(0)) if options.one_core else (None, None)
    if isinstance(target, EnvConfig):
        with pinned(first):  # not while the caller runs: it may count cores
            measured = list(measure_in_process(target, options))
        yield from ((stage, seconds, {}) for stage, seconds in measured)
        target = as_service(target)
    is_ours = isinstance(target, ServiceFolder)  # else its groups are what they are
    if isinstance(target, ServiceFolder) and first is not None:
        target = replace(target, cores=first)
    for count in (1, options.groups) if is_ours and options.groups > 1 else (1,):
        with pinned(second):
            served = measure_link(target, options, count, words, notes)
        said: Line = {"groups": len(served.hellos), "lanes": next(iter(served.hellos.values())).lanes}
        if "env_busy" in served.load:  # the service's own figure: the share of time that its environments ran
            said["env_busy"] = round(served.load["env_busy"], 3)
        yield "link" if count == 1 else "link, groups", served.seconds / max(1, served.num_counted), said


def choose_cores(usable: Collection[int]) -> tuple[frozenset[int], frozenset[int]]:
    """One core for what steps environments, and one for what answers: the same where there is only one."""
    ordered = sorted(usable)
    return frozenset(ordered[:1]), frozenset(ordered[-1:])


def shares(ticks_s: dict[str, float]) -> Line:
    """Of one tick over the link: simulator and our rows (one figure without a bare environment), encoding, network.

    `of_bare`: steps/s through the service, by one group and by several, against the bare environment.
    """
    whole, rows = ticks_s["link"], ticks_s["rows"]
    parts = {"encoding": ticks_s["encoded"] - rows, "network": whole - ticks_s["encoded"]}
    if "bare" in ticks_s:
        parts = {"simulator": ticks_s["bare"], "rows": rows - ticks_s["bare"], **parts}
    else:
        parts = {"simulator_and_rows": rows, **parts}
    line: Line = {name: round(max(0.0, part) / whole, 3) for name, part in parts.items()}
    for stage, name in (("link", "of_bare"), ("link, groups", "of_bare_groups")):
        if "bare" in ticks_s and stage in ticks_s:
            line[name] = round(ticks_s["bare"] / ticks_s[stage], 3)
    return line


def measure_in_process(env: EnvConfig, options: BenchOptions) -> Iterator[tuple[str, float]]:
    """(stage, seconds for each tick) of bare, rows and encoded."""
    group = make_group(env, options.lanes)
    try:
        bare: BareEnv | BarePool | None = None
        if not group.spec.mask_size:  # it may not bear forbidden actions
            bare = make_bare_pool(env, options.lanes) or make_bare(env, options.lanes)
        if bare is not None:
            yield "bare", _time_bare(bare, options, options.share_s)
            call_environment(bare.close)
        for stage in ("rows", "encoded"):
            group.reset(options.seed)
            yield stage, _time_group(group, options, options.share_s, encoded=stage == "encoded")
    finally:
        group.close()


def measure_link(
    target: ServiceFolder | Listen, options: BenchOptions, groups: int, words: Sequence[str], notes: Notes
) -> "Timed":
    """One life of the service, timed in the second half of its share."""
    if isinstance(target, ServiceFolder):
        target.build()
    check = CheckOptions(lanes=options.lanes, groups=groups, seed=options.seed)
    served = live(partial(Timed, seconds_to_serve=options.share_s), target, check, words, notes)
    if not served.num_counted:
        found = "; ".join(item.found for item in served.results)
        raise EnvError(f"no steps came: {found or 'no HELLO, or no STEP for long'}")
    return served


class Timed(Answering):
    """Answers for so long; what came in the second half counts."""

    rule = "measuring"

    def __init__(self, link: ServiceLink, *, seconds_to_serve: float) -> None:
        super().__init__(link)
        self.seconds = 0.0  # that were counted
        self.num_counted = 0  # ticks of all groups in them
        self._serve_s = seconds_to_serve
        self._begun_at: float | None = None
        self._half: tuple[float, int] | None = None

    def on_time(self, now: float) -> None:
        """Start measuring at half-time; end when the time is over."""
        if self._begun_at is None and self._is_under_way():
            self._begun_at = now
        elif self._begun_at is None:
            if now > 5 * self.options.patience_s:
                self.end()
        elif self._half is None:
            if now - self._begun_at >= self._serve_s / 2:
                self._half = now, self.num_steps
        elif now - self._half[0] >= self._serve_s / 2:
            self.seconds, self.num_counted = now - self._half[0], self.num_steps - self._half[1]
            if self.num_counted or self.seconds > self.options.patience_s:  # one tick at least, however slow it is
                self.end()

    def _is_under_way(self) -> bool:
        """Whether every group has had its first actions: one may take seconds to make while another steps."""
        asked = self.expected.groups if self.expected is not None else 1
        sessions = self.table.sessions.values()
        return len(self.hellos) >= asked and len(sessions) > 0 and all(item.last_seq > 0 for item in sessions)

    def on_exit(self, status: int, last_words: str) -> None:
        """The service left before the measurement was over: fail."""
        raise EnvError(f"the service left while it was measured (exit status {status}): {last_words}")


def _time_bare(env: BareEnv | BarePool, options: BenchOptions, seconds: float) -> float:
    """Seconds for one tick of all lanes: a single environment's step times the lanes."""
    env.action_space.seed(options.seed)
    actions = [env.action_space.sample() for _ in range(NUM_ANSWERS)]
    call_environment(env.reset, seed=options.seed)
    if isinstance(env, BarePool):
        return _time_ticks(lambda number: call_environment(env.step, actions[number % NUM_ANSWERS]), seconds)

    def step(number: int) -> None:
        _, _, terminated, truncated, _ = env.step(actions[number % NUM_ANSWERS])
        if isinstance(env, VectorEnv):
            reset_ended(env, terminated, truncated)
        elif terminated or truncated:
            env.reset()

    lanes = 1 if isinstance(env, VectorEnv) else options.lanes
    return lanes * _time_ticks(lambda number: call_environment(step, number), seconds)


def _time_group(group: EnvGroup, options: BenchOptions, seconds: float, *, encoded: bool) -> float:
    """Seconds for one tick of a group, with or without what the link's both ends do to its messages."""
    generator = np.random.default_rng(options.seed)
    answers = [random_action_frames(group.spec, group.lanes, None, generator) for _ in range(NUM_ANSWERS)]
    act = encode(Act(session=1 << 60, seq=1 << 20, policy_version=1))

    def advance(number: int) -> None:
        if group.spec.mask_size:
            group.advance(group.random_actions(generator))
        else:
            group.advance(group.act_layout.views(answers[number % NUM_ANSWERS]))

    def exchange(number: int) -> None:
        decode(act)
        actions = answers[number % NUM_ANSWERS]
        if group.spec.mask_size:
            actions = random_action_frames(group.spec, group.lanes, group.views.mask, generator)
        rows = group.step_frames(actions)
        encode(Step(session=1 << 60, seq=number, bits=rows.bits))

    return _time_ticks(exchange if encoded else advance, seconds)


def _time_ticks(tick: Callable[[int], Any], seconds: float) -> float:
    """Seconds for one call, over the second half of the time."""
    number, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds / 2:
        tick(number)
        number += 1
    counted, started = 0, time.perf_counter()
    while not counted or time.perf_counter() - started < seconds / 2:
        tick(number + counted)
        counted += 1
    return (time.perf_counter() - started) / counted


def _speed(ticks_s: Sequence[float], lanes: int) -> Line:
    """Return the speed of the median tick; with several repeats also the slowest and the fastest."""
    tick_s = statistics.median(ticks_s)
    line: Line = {"us_per_tick": round(1e6 * tick_s, 1), "steps_per_s": round(lanes / tick_s)}
    if len(ticks_s) > 1:
        line |= {"slowest": round(lanes / max(ticks_s)), "fastest": round(lanes / min(ticks_s))}
    return line
