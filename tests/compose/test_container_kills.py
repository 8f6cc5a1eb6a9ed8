"""Kill -9 of the main process of containers at random, twenty in five minutes; the run reaches its target."""

import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.compose_stack import Stack, docker, inspect
from tests.support.deployment import PATIENCE, wait_until

KILLS, KILL_EVERY_S = int(os.environ.get("CHAOS_RANDOM_KILLS", "20")), 15.0
KILLED = ("learner", "inference", "inference", "actor", "actor", "evaluator", "monitor")  # twice: there are two of them
GIVE_UP_S = 120.0 * PATIENCE
ENDLESS = (  # hardly learns: who trains on long after CartPole is solved, at one rate, may unlearn it for good
    "run.steps=0 run.until_return=10000 eval.every_s=0 actor.lanes=64 learner.batch=64 learner.metrics_every_s=0.5"
    " algorithm.learning_rate=1e-6"
)
TARGET = "run.steps={steps} run.until_return=475 eval.every_s=5"


@dataclass
class Kill:
    """One kill -9, and the life that it ended."""

    service: str
    container: str
    started: str  # the life's start, as the engine tells it
    at: float
    progress: tuple[float, float]
    recovery_s: float | None = None  # until its successor was healthy, and training went on


def kill(stack: Stack, service: str, container: str) -> Kill:
    """Kill everything in a container but the init process, which ends with it."""
    killed = Kill(
        service, container, inspect(container)["State"]["StartedAt"], time.monotonic(), stack.progress("cartpole")
    )
    docker("exec", container, "sh", "-c", "kill -9 -1", check=False)
    return killed


def have_recovered(stack: Stack, kills: list[Kill]) -> bool:
    """Look who is back; whether all are."""
    progress = stack.progress("cartpole")
    for item in kills:
        if item.recovery_s is None and progress > item.progress:
            state = inspect(item.container)["State"]
            if state["Running"] and state["StartedAt"] != item.started and answers(item.container):
                item.recovery_s = time.monotonic() - item.at
    return all(item.recovery_s is not None for item in kills)


def answers(container: str) -> bool:
    """Its own health check, asked now."""
    asked = docker(
        "exec", container, "sh", "-c", "python -S -m seedbed.shared.runtime.health && echo healthy", check=False
    )
    return "healthy" in asked.splitlines()


@pytest.mark.chaos
@pytest.mark.timeout(3000)
def test_a_deployment_survives_twenty_kills_of_its_containers(tmp_path, capsys):
    """Everyone comes back by itself, whoever was killed; no container is started by hand."""
    rng = random.Random(1)
    with Stack("seedbedkills", tmp_path, ARGS=ENDLESS) as stack:
        stack.up("--scale", "actor=2", "--scale", "inference=2")
        stack.wait_trained("cartpole", 10_000)
        kills: list[Kill] = []
        began = time.monotonic()
        for number in range(KILLS):
            due = began + (number + rng.random()) * KILL_EVERY_S

            def is_due(due: float = due) -> bool:
                have_recovered(stack, kills)
                return time.monotonic() >= due

            wait_until(is_due, "the next kill is due", GIVE_UP_S)
            kills.append(kill(stack, *next(running(stack, rng))))
        lasted_s = time.monotonic() - began
        wait_until(lambda: have_recovered(stack, kills), "all have recovered", GIVE_UP_S)
        with capsys.disabled():
            print(f"\n{len(kills)} kills in {lasted_s:.0f} s")
            report(kills)
        # As many steps again, at a rate that falls from half the experiment's: at a constant one it may unlearn.
        stack.change(ARGS=TARGET.format(steps=2 * int(stack.trained_steps("cartpole"))))
        stack.up()
        ended = ("learner", "inference", "actor", "evaluator")
        assert stack.wait_ended(*ended, deadline_s=600.0) == dict.fromkeys(ended, 0)
        summary = stack.summary("cartpole")
        assert (summary["finished"], summary["reason"]) == (True, "until_return")
        assert summary["eval_return_mean"] >= 475


def running(stack: Stack, rng: random.Random) -> Iterator[tuple[str, str]]:
    """(service, container) of those that run, in random order of services and then of their containers."""
    for service in rng.sample(KILLED, len(KILLED)):
        containers = stack.containers(service)
        for container in rng.sample(containers, len(containers)):
            if inspect(container)["State"]["Running"]:
                yield service, container


def report(kills: list[Kill]) -> None:
    """Recovery times by service."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for item in kills:
        seconds[item.service].append(item.recovery_s or 0.0)
    for service, values in [*sorted(seconds.items()), ("all", [item.recovery_s or 0.0 for item in kills])]:
        print(f"  {service}: {len(values)} kills, p50 {statistics.median(values):.1f} s, longest {max(values):.1f} s")
