"""The actor as a service, over real sockets, against an inference service without a policy."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from seedbed.actor_svc.config import ActorConfig, ActorSettings
from seedbed.actor_svc.service import run
from seedbed.shared.errors import RejectedError
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.runtime.config import EnvConfig, RuntimeConfig
from seedbed.shared.runtime.service import Service, run_service
from tests.support.inference_double import InferenceDouble

RUNTIME = RuntimeConfig(metrics_address="", log_level="error")


class Corridor(gymnasium.Env[Any, Any]):
    """Ten steps, whatever one does; it observes how many observations it has given in its life."""

    observation_space = gymnasium.spaces.Box(0.0, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    given = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 10
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self._observe(), 1.0, self.left == 0, False, {}

    def _observe(self) -> Any:
        self.given += 1
        return np.full(1, self.given, np.float32)


class Broken(Corridor):
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no display")


def settings(*addresses: str, **actor: Any) -> ActorSettings:
    """Two groups of three lanes."""
    config = ActorConfig(upstream=list(addresses), groups=actor.pop("groups", 2), lanes=3, **actor)
    return ActorSettings(env=EnvConfig(id="corridor"), actor=config, runtime=RUNTIME)


def served(test: Callable[[Service, Reactor], Awaitable[None]], *, is_uvloop: bool = True) -> int:
    """Run a test inside a service, with a reactor for the doubles; the exit code."""

    async def main(service: Service) -> int:
        with Reactor() as reactor:
            async with asyncio.timeout(60.0):
                await test(service, reactor)
        return 0

    return run_service(main, RUNTIME.model_copy(update={"uvloop": is_uvloop}), "actor")


def started(service: Service, config: ActorSettings, make: Callable[[], Any] = Corridor) -> asyncio.Task[int]:
    """The actor, beside the test."""
    return asyncio.create_task(run(config, service, make=make))


def test_each_mode_has_its_groups() -> None:
    """An evaluation has one group of `eval.lanes`; who plays has one lane, unless more are asked for."""

    def lanes(**actor: Any) -> list[int]:
        return ActorSettings(env=EnvConfig(id="corridor"), actor=ActorConfig(**actor)).group_lanes()

    assert lanes() == [64, 64]
    assert lanes(groups=3, lanes=5) == [5, 5, 5]
    assert lanes(mode="eval", groups=3, lanes=5) == [20]
    assert lanes(mode="play") == [1]
    assert lanes(mode="play", lanes=5) == [5]
    assert lanes(mode="play", groups=3, lanes=5) == [5, 5, 5]


@pytest.mark.parametrize(("is_uvloop", "inline_ms"), [(True, 0.0), (False, 1.0), (True, 1000.0)])
def test_groups_step_until_the_actor_is_stopped(is_uvloop: bool, inline_ms: float) -> None:
    """Every group steps; SIGTERM's way out is a BYE for all sessions and success."""

    async def test(service: Service, reactor: Reactor) -> None:
        double = InferenceDouble(reactor)
        actor = started(service, settings(double.address, inline_ms=inline_ms))
        await double.until(lambda: len(double.firsts) > 400)
        assert {hello.group for hello in double.hellos} == {0, 1}
        assert len({session.seed for session in double.table.sessions.values()}) == 2
        service.stop("test")
        assert await actor == 0
        await double.until(lambda: bool(double.byes))
        assert [(bye.session, bye.reason) for bye in double.byes] == [(0, "stopped")]
        assert not double.table.sessions

    assert served(test, is_uvloop=is_uvloop) == 0


def test_environments_are_reset_once_though_inference_restarts() -> None:
    """The same address, another life: groups say HELLO to it and go on where they were."""

    async def test(service: Service, reactor: Reactor) -> None:
        with Reactor() as first_life:
            first = InferenceDouble(first_life)
            actor = started(service, settings(first.address, groups=1))
            await first.until(lambda: len(first.firsts) > 24)
        second = InferenceDouble(reactor, first.address, epoch=2)
        await second.until(lambda: len(second.firsts) > 24)
        assert second.values[0] - first.values[-1] in (0, 1), "the outstanding observation is sent again"
        for double in (first, second):
            assert double.values == list(range(int(double.values[0]), int(double.values[-1]) + 1))
        firsts = dict(zip(first.values + second.values, first.firsts + second.firsts, strict=True))
        assert all(is_first == ((value - first.values[0]) % 11 == 0) for value, (_, is_first) in firsts.items())
        service.stop("test")
        await actor

    assert served(test) == 0


def test_groups_move_when_inference_drains() -> None:
    """BYE(draining) from one service: its groups go on at the other within a moment."""

    async def test(service: Service, reactor: Reactor) -> None:
        doubles = [InferenceDouble(reactor, epoch=epoch) for epoch in (1, 2)]
        actor = started(service, settings(*(double.address for double in doubles)))
        for double in doubles:
            await double.until(lambda double=double: len(double.firsts) > 5)
        leaving, staying = doubles
        leaving.say_bye("draining")
        leaving.table.drain()
        await staying.until(lambda: len(staying.table.sessions) == 2)
        service.stop("test")
        await actor

    assert served(test) == 0


def test_a_finished_run_ends_the_actor_with_success() -> None:
    """BYE(run_finished)."""

    async def test(service: Service, reactor: Reactor) -> None:
        double = InferenceDouble(reactor)
        actor = started(service, settings(double.address))
        await double.until(lambda: len(double.firsts) > 5)
        double.say_bye("run_finished")
        assert await actor == 0

    assert served(test) == 0


def test_a_refusal_for_good_ends_the_actor_with_its_cause() -> None:
    """RejectedError, exit code 78: the launcher does not restart it."""

    async def test(service: Service, reactor: Reactor) -> None:
        double = InferenceDouble(reactor, refusal=("spec", False))
        with pytest.raises(RejectedError, match=r"spec: a/0 differs \(change it\)") as caught:
            await started(service, settings(double.address))
        assert caught.value.exit_code == 78

    assert served(test) == 0


def test_a_refusal_for_now_is_waited_for() -> None:
    """HELLO again, in process."""

    async def test(service: Service, reactor: Reactor) -> None:
        double = InferenceDouble(reactor, refusal=("capacity", True))
        actor = started(service, settings(double.address, groups=1))
        await double.until(lambda: len(double.hellos) >= 4)
        assert len({hello.nonce for hello in double.hellos}) <= 2, "one for the first HELLO, one for the connection"
        service.stop("test")
        assert await actor == 0

    assert served(test) == 0


def test_an_actor_without_inference_waits_and_can_be_stopped() -> None:
    """It dials for as long as it takes, and leaves when told to."""

    async def test(service: Service, reactor: Reactor) -> None:
        actor = started(service, settings("tcp://127.0.0.1:9"))
        while not service.is_ready:
            await asyncio.wait((actor,), timeout=0.01)
        service.stop("test")
        assert await actor == 0

    assert served(test) == 0


def test_inference_can_ask_for_fresh_episodes() -> None:
    """ACT's reset bit: the next rows are all `first`, with the announced capability."""

    async def test(service: Service, reactor: Reactor) -> None:
        double = InferenceDouble(reactor, reset_at=4)
        actor = started(service, settings(double.address, groups=1))
        await double.until(lambda: len(double.firsts) > 8)
        assert [is_first for _, is_first in double.firsts[:8]] == [True, *[False] * 4, True, False, False]
        assert double.hellos[0].capabilities == ("reset", "boundary")
        service.stop("test")
        await actor

    assert served(test) == 0


def test_beats_carry_load_figures() -> None:
    """Steps per second, share of time in environments, mean wait."""

    async def test(service: Service, reactor: Reactor) -> None:
        double = InferenceDouble(reactor)
        actor = started(service, settings(double.address))
        await double.until(lambda: double.load.get("steps_per_s", 0.0) > 0)
        assert 0 < double.load["env_busy"] <= 1.5
        assert double.load["act_wait_ms"] > 0
        service.stop("test")
        await actor

    assert served(test) == 0


def test_an_actor_that_waits_for_ever_holds_one_step_per_group() -> None:
    """No reply, no next step; PONGs that show it pending cause no resend."""

    async def test(service: Service, reactor: Reactor) -> None:
        double = InferenceDouble(reactor, is_mute=True)
        actor = started(service, settings(double.address))
        await double.until(lambda: bool(double.load) and len(double.firsts) == 2)
        double.load = {}
        await double.until(lambda: bool(double.load))
        assert len(double.firsts) == 2
        assert double.num_resent == 0
        service.stop("test")
        await actor

    assert served(test) == 0


def test_environments_that_cannot_be_made_end_the_actor(capfd: pytest.CaptureFixture[str]) -> None:
    """With the cause on stderr."""

    async def main(service: Service) -> int:
        return await run(settings("tcp://127.0.0.1:9"), service, make=Broken)

    assert run_service(main, RUNTIME, "actor") != 0
    assert "no display" in capfd.readouterr().err


def test_the_command_line_reads_an_experiment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An unknown key is named, with exit code 78."""
    from seedbed.actor_svc.__main__ import main

    experiment = tmp_path / "x.toml"
    experiment.write_text('[env]\nid = "CartPole-v1"\n[actor]\nlane = 3\n')
    assert main([str(experiment)]) == 78
    assert "lanes" in capfd.readouterr().err
