"""Replicas of inference and actors come and go, and inference is renewed, by docker-compose while training goes on."""

import itertools
import os
import re
import subprocess

import pytest

from seedbed.services.tools.cli.plan import usable_cores
from tests.support.compose_stack import docker, inspect
from tests.support.deployment import PATIENCE, wait_until

MAX_GAP_S = 3.0
LOOK = """
import json, time, urllib.request
while True:
    try:
        address = json.load(open("/tmp/status.json"))["metrics"]
        lines = urllib.request.urlopen(f"http://{address}/metrics", timeout=2).read().decode().splitlines()
        steps = sum(float(line.split()[-1]) for line in lines if line.startswith("seedbed_actor_steps_total"))
        print(time.monotonic(), steps)
    except OSError:
        pass
    time.sleep(0.1)
"""


class ContainerSteps:
    """The steps of one actor's environments, asked for ten times a second in its container. A context manager."""

    def __init__(self, container, folder):
        self._file = folder / "steps"
        with self._file.open("w") as file:
            self._asking = subprocess.Popen(["docker", "exec", container, "python", "-u", "-c", LOOK], stdout=file)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._asking.kill()
        self._asking.wait()

    def samples(self):
        """(seconds, steps) since it was entered."""
        lines = self._file.read_text().split("\n")[:-1]
        return [tuple(float(number) for number in line.split()) for line in lines]

    def judge(self, capsys):
        """No gap over three seconds; more where others use the processor."""
        seen: dict[float, float] = {}  # steps → when they were first seen
        for at, steps in self.samples():
            seen.setdefault(steps, at)
        longest_s = max(after - before for before, after in itertools.pairwise([*seen.values(), self.samples()[-1][0]]))
        with capsys.disabled():
            print(f"\nthe longest time without a step: {longest_s:.2f} s")
        share = max(1.0, os.getloadavg()[0] / (2 * usable_cores()))
        assert longest_s < MAX_GAP_S * PATIENCE * share


def starts(stack):
    """When each container was started, and how often the engine did it again; `keys` is at each `up`, and ends."""
    once = stack.containers("keys")
    seen = {item: inspect(item) for item in stack.all_containers() if item not in once}
    return {item: (state["State"]["StartedAt"], state["RestartCount"]) for item, state in seen.items()}


def environments(stack):
    """Lanes of each replica of inference, as the monitor was told."""
    lines = [line for line in stack.fetch("/metrics")[1].splitlines() if line.startswith("seedbed_lanes{")]
    return sorted(float(line.split()[-1]) for line in lines)


def said_when_it_left(log):
    """What a replica counted at its end: (acknowledged unrolls, complete lanes that the learner had not received)."""
    return tuple(int(number) for number in re.search(r"inference_left .*?acked=(\d+).*?lost_lanes=(\d+)", log).groups())


@pytest.fixture
def watched(training, tmp_path):
    """The deployment, and the steps of its first actor."""
    with ContainerSteps(training.the("actor"), tmp_path) as flow:
        wait_until(flow.samples, "its steps are seen")
        yield training, flow


def test_scaling_up_and_down_loses_nothing_and_restarts_nobody(watched, capsys, tmp_path):
    """Actors 1 → 4 → 1 and inference 1 → 2 → 1; who leaves has handed over every complete unroll."""
    stack, flow = watched
    before = starts(stack)
    first = stack.the("inference")
    stack.up("--scale", "actor=4", "--scale", "inference=2")
    (second,) = set(stack.containers("inference")) - {first}
    wait_until(lambda: len(environments(stack)) == 2 and all(environments(stack)), "both replicas act")
    log = tmp_path / "second.log"
    with (
        log.open("w") as file,
        subprocess.Popen(["docker", "logs", "--follow", second], stdout=file, stderr=file) as following,
    ):
        stack.up("--scale", "actor=1", "--scale", "inference=1")
        following.wait(60)
    acked, lost = said_when_it_left(log.read_text())
    assert acked > 0
    assert lost == 0
    stack.wait_trained("cartpole", 10_000)
    assert starts(stack) == before
    wait_until(lambda: len(environments(stack)) == 1, "the page forgets the replica that left")
    flow.judge(capsys)


def test_inference_is_renewed_one_by_one(watched, capsys):
    """As docs/deployment.md says: a new replica beside the old one, which then stops. Nobody else is restarted."""
    stack, flow = watched
    old = stack.the("inference")
    before = {item: start for item, start in starts(stack).items() if item != old}
    stack.up("--no-deps", "--no-recreate", "--scale", "inference=2", "inference")
    stack.wait_healthy("inference")
    wait_until(lambda: len(environments(stack)) == 2 and all(environments(stack)), "both replicas act")
    docker("stop", old)
    assert inspect(old)["State"]["ExitCode"] == 0
    assert said_when_it_left(docker("logs", old))[1] == 0
    docker("rm", old)
    trained = stack.trained_steps("cartpole")
    wait_until(lambda: stack.trained_steps("cartpole") > trained + 10_000, "training goes on")
    assert starts(stack).items() >= before.items()
    flow.judge(capsys)
