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
