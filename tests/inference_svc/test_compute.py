"""Where batches run, and what their results may rely on."""

import asyncio
import math
import threading

import pytest

from seedbed.inference_svc.compute import Compute, Pace
from seedbed.inference_svc.config import InferenceConfig
from seedbed.inference_svc.engine import Engine


class Lanes:
    """What stands for a group's lanes."""

    count, uses_frozen_weights = 4, False


def make_compute(inline_ms: float) -> Compute:
    """A compute thread on the CPU."""
    config = InferenceConfig(device="cpu", inline_ms=inline_ms, max_compute_s=60.0)
    return Compute(config, report=lambda _seconds: None)


@pytest.fixture
def ran(monkeypatch):
    """An engine that notes in which thread it acts."""
    threads = []

    def act(_engine, groups):
        threads.append(threading.current_thread().name)
        return [[b""] for _ in groups]

    monkeypatch.setattr(Engine, "act", act)
    return threads


@pytest.mark.parametrize(("inline_s", "places"), [(60.0, ["compute", "MainThread"]), (0.0, ["compute", "compute"])])
def test_a_short_batch_runs_in_the_loop_and_its_result_comes_later_all_the_same(ran, inline_s, places):
    """The first goes to the thread, for nobody knows how long it takes; no result comes from within the call."""

    async def act_twice():
        compute = make_compute(inline_ms=1e3 * inline_s)
        try:
            for _ in range(2):
                answer = asyncio.get_running_loop().create_future()
                compute.act([[Lanes(), Lanes()]], lambda *result, answer=answer: answer.set_result(result))
                assert not answer.done()
                payloads, versions, seconds = await answer
                assert (payloads, len(versions)) == ([[b""], [b""]], 2)
                assert seconds >= 0
        finally:
            compute.close()

    asyncio.run(act_twice())
    assert [name if name == "MainThread" else "compute" for name in ran] == places


def test_what_a_job_raises_is_seen(monkeypatch):
    """The service awaits it beside its work."""

    def fail(_engine, _groups):
        raise ArithmeticError("broken")

    monkeypatch.setattr(Engine, "act", fail)

    async def act():
        compute = make_compute(inline_ms=0.0)
        try:
            compute.act([[Lanes()]], lambda *_result: None)
            with pytest.raises(ArithmeticError, match="broken"):
                await compute.failed
        finally:
            compute.close()

    asyncio.run(act())


def test_a_batch_is_expected_to_take_what_the_newest_took_or_more_if_it_is_larger() -> None:
    """Nothing is known of the first; a small one may have been as long for other reasons than its lanes."""
    pace = Pace()
    assert pace.seconds(1) == math.inf
    pace.ran(64, 0.5)
    assert [pace.seconds(lanes) for lanes in (1, 64, 128)] == [0.5, 0.5, 1.0]
