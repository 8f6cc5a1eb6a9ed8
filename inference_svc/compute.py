"""Where the policy runs: in a thread, or in the loop while the thread has nothing to do and batches are short.

Weights, evaluations' frozen copies and zeroed states are jobs of the thread like the batches, so they change between
them.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from seedbed.inference_svc.engine import Engine, LaneBlock
from seedbed.shared.policy.devices import choose_device
from seedbed.shared.policy.weights import Manifest
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.runtime.watchdog import Watchdog
from seedbed.shared.runtime.worker import Worker

Result = tuple[list[list[bytes]], list[int], float]  # payloads and versions in the groups' order, seconds
Acted = Callable[[list[list[bytes]], list[int], float], None]


class Pace:
    """How long a batch will take, by how long the newest one took. Pessimistic: as if each lane cost as much again."""

    def __init__(self) -> None:
        self._lanes, self._seconds = 1, math.inf

    def ran(self, lanes: int, seconds: float) -> None:
        """A batch of so many lanes took so long."""
        self._lanes, self._seconds = lanes, seconds

    def seconds(self, lanes: int) -> float:
        """What one of so many lanes will take; infinite before the first."""
        return self._seconds * max(1.0, lanes / self._lanes)


class Compute:
    """The engine and its thread. Owned by the loop, to which every result is handed, never from within a call.

    Args:
      device: as in `inference.device`.
      inline_s: batches expected to be this short run in the loop, on a CPU: there the handover costs more than it
        hides. 32 groups of 64 lanes with an empty policy took 80 µs of processor time for a STEP, and 103 with the
        thread. A thread that waits for another device holds nobody up.
      max_s: a job that takes longer ends the process, after `report` was told for how long it has been running; the
        first batch, and what comes before it, may take as long as it likes.
    """

    def __init__(self, device: str, *, inline_s: float, max_s: float, report: Callable[[float], None]) -> None:
        self._engine = Engine(choose_device(device))
        self._worker = Worker("compute")
        self._inline_s = inline_s if self._engine.device.type == "cpu" else 0.0
        self._watchdog = Watchdog(lambda: self.busy_s() if self._has_acted else 0.0, max_s, report)
        self._pace = Pace()
        self._has_acted = False

    def set_replica(self, replica: int) -> None:
        """Tell acting rules a number that no other inference of the run has; before the first weights are loaded."""
        self._engine.replica = replica

    @property
    def record(self) -> RecordSpec:
        """What is recorded of the policy of the newest weights, once there are any."""
        return self._engine.live.record

    def act(self, batches: Sequence[Sequence[LaneBlock]], done: Acted) -> None:
        """Run the batches one after the other, then call `done` with what they answered."""
        num_lanes = sum(lanes.count for batch in batches for lanes in batch)

        def acted(result: Result) -> None:
            self._has_acted = True
            self._pace.ran(num_lanes, result[2])
            done(*result)

        if self._worker.is_idle and self._pace.seconds(num_lanes) < self._inline_s:
            asyncio.get_running_loop().call_soon(acted, self._run(batches))
        else:
            self._worker.submit(lambda: self._run(batches), acted)

    def _run(self, batches: Sequence[Sequence[LaneBlock]]) -> Result:
        started = time.perf_counter()
        engine, payloads, versions = self._engine, list[list[bytes]](), list[int]()
        for lanes in batches:
            payloads += engine.act(lanes)
            versions += [engine.pinned_version if lanes[0].pinned else engine.version] * len(lanes)
        return payloads, versions, time.perf_counter() - started

    def load(self, version: int, manifest: Manifest | None, buffer: bytes, done: Callable[[], None]) -> None:
        """Act with these weights from the next batch on; without a manifest they are of the policy that is there."""
        self._worker.submit(lambda: self._engine.load(version, manifest, buffer), lambda _none: done())

    def pin(self, done: Callable[[int], None]) -> None:
        """Freeze the live weights for evaluations; `done` is told their version."""
        self._worker.submit(self._engine.pin, done)

    def pin_others(self, version: int, manifest_digest: str, buffer: bytes, done: Callable[[int], None]) -> None:
        """Freeze these weights for evaluations; `done` is told their version, or 0 if they are another policy's."""
        self._worker.submit(lambda: self._engine.pin_others(version, manifest_digest, buffer), done)

    def forget(self, lanes: LaneBlock) -> None:
        """Zero a new group's policy state, before its first batch."""
        self._worker.submit(lambda: self._engine.forget(lanes))

    def busy_s(self) -> float:
        """How long the thread's present job has been running, seconds."""
        return self._worker.busy_s()

    def pet(self) -> None:
        """The loop lives; call it every second. Ends the process if a job hangs."""
        self._watchdog.pet()

    @property
    def failed(self) -> asyncio.Future[None]:
        """Raises what a job raised, if one does."""
        return self._worker.failed

    def close(self) -> None:
        """Run what is queued, then end the compute thread and its watchdog."""
        self._watchdog.close()
        self._worker.close()
