"""The thread beside the loop."""

import asyncio
import threading

from seedbed.shared.runtime.worker import Worker


def test_jobs_run_in_order_and_it_is_idle_once_the_loop_has_their_results() -> None:
    """What jobs use may be used in the loop while it is idle, and not a moment before."""

    async def test() -> None:
        worker, results, may_go = Worker("test"), [], threading.Event()
        assert worker.is_idle
        worker.submit(may_go.wait, results.append)
        worker.submit(threading.current_thread, results.append)
        assert not worker.is_idle
        may_go.set()
        async with asyncio.timeout(10.0):
            while not worker.is_idle:
                assert len(results) < 2
                await asyncio.sleep(0)
        waited, thread = results
        assert (waited, thread.name) == (True, "test")
        assert worker.close()

    asyncio.run(test())


def test_a_result_waits_until_the_next_job_has_begun_to_compute() -> None:
    """It is not later than that job's end; without another job it comes at once."""

    async def test() -> None:
        worker, may_begin, may_go, may_end = Worker("test"), *(threading.Event() for _ in range(3))
        taken = [asyncio.Event() for _ in range(3)]

        has_begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def second() -> None:
            loop.call_soon_threadsafe(has_begun.set)
            may_go.wait()
            worker.hand_back()
            may_end.wait()

        worker.submit(may_begin.wait, lambda _: taken[0].set())
        worker.submit(second, lambda _: taken[1].set(), hands_back=True)
        worker.submit(lambda: None, lambda _: taken[2].set(), hands_back=True)
        may_begin.set()
        async with asyncio.timeout(10.0):
            await has_begun.wait()
            assert not taken[0].is_set()
            may_go.set()
            await taken[0].wait()
            assert not taken[1].is_set()
            may_end.set()
            await taken[1].wait()
            await taken[2].wait()
        assert worker.close()

    asyncio.run(test())
