"""Runs the policy in a thread, or in the loop if the thread is idle and the batch is short.

Loading or freezing weights and zeroing policy state are jobs of the same thread, so they happen between two batches.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from seedbed.inference_svc.config import InferenceConfig
from seedbed.inference_svc.engine import Engine, LaneBlock
from seedbed.inference_svc.padded_passes import choose_padding
from seedbed.shared.policy.devices import choose_device, device_of_number
from seedbed.shared.policy.weights import Manifest
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.runtime.watchdog import Watchdog
from seedbed.shared.runtime.worker import Worker

Result = tuple[list[list[bytes]], list[int], float]  # payloads and versions in the groups' order, seconds
OnActed = Callable[[list[list[bytes]], list[int], float], None]


class Pace:
    """Predicts a batch's time from the newest one, as if it were proportional to lanes, which is an upper bound."""

    def __init__(self) -> None:
        self._lanes, self._seconds = 1, math.inf

    def ran(self, lanes: int, seconds: float) -> None:
        """Note how long a batch of this many lanes took."""
        self._lanes, self._seconds = lanes, seconds

    def seconds(self, lanes: int) -> float:
        """Return the predicted time of a batch of this many lanes; infinite before the first batch."""
        return self._seconds * max(1.0, lanes / self._lanes)


class Compute:
    """The engine and its thread. Owned by the loop; results arrive in a later callback of it, never within the call.

    Args:
      config: its `inline_ms` says which batches run in the loop on a CPU, where a handover to the thread would cost
        more. 32 groups of 64 lanes with an empty policy took 80 µs of processor time for a STEP, and 103 with the
        thread. Other devices always use the thread, which only waits for them. After `max_compute_s` a job ends the
        process; the first batch, and the jobs before it, have no limit.
      report: called with a job's running time before the process ends.
      report_uncaptured: called with the reason if the policy cannot be captured as a CUDA graph; in the thread.
    """

    def __init__(
        self, config: InferenceConfig, *, report: Callable[[float], None],
        report_uncaptured: Callable[[str], None] = lambda _reason: None,
    ) -> None:  # fmt: skip
        device = choose_device(device_of_number(config.device, config.gpu))
        self._engine = Engine(device, choose_padding(config, device), report=report_uncaptured)
        self._worker = Worker("compute")
        self._inline_s = config.inline_ms / 1e3 if device.type == "cpu" else 0.0
        self._watchdog = Watchdog(lambda: self.busy_s() if self._has_acted else 0.0, config.max_compute_s, report)
        self._pace = Pace()
        self._has_acted = False

    def set_replica(self, replica: int) -> None:
        """Tell acting rules a number that no other inference of the run has; before the first weights are loaded."""
        self._engine.replica = replica

    @property
    def record(self) -> RecordSpec:
        """The record specification of the policy that acts now. Use it only after the first `load`."""
        return self._engine.live.record

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that the policy tells apart. Use it only after the first `load`."""
        return self._engine.policy.tasks

    def act(self, batches: Sequence[Sequence[LaneBlock]], done: OnActed) -> None:
        """Run the batches one after the other, then call `done(payloads, versions, seconds)`."""
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
            versions += [engine.frozen_version if lanes[0].uses_frozen_weights else engine.version] * len(lanes)
        return payloads, versions, time.perf_counter() - started

    def load(self, version: int, manifest: Manifest | None, buffer: bytes, done: Callable[[], None]) -> None:
        """Act with these weights from the next batch on; None as manifest means that the policy stays the same."""
        self._worker.submit(lambda: self._engine.load(version, manifest, buffer), lambda _none: done())

    def freeze(self, done: Callable[[int], None]) -> None:
        """Freeze a copy of the live weights for evaluations, then call `done` with their version."""
        self._worker.submit(self._engine.freeze, done)

    def freeze_former(self, version: int, manifest_digest: str, buffer: bytes, done: Callable[[int], None]) -> None:
        """Freeze these older weights for evaluations, then call `done` with their version; 0 if of another policy."""
        self._worker.submit(lambda: self._engine.freeze_former(version, manifest_digest, buffer), done)

    def forget(self, lanes: LaneBlock) -> None:
        """Zero a new group's policy state, before its first batch."""
        self._worker.submit(lambda: self._engine.forget(lanes))

    def busy_s(self) -> float:
        """Return how long the thread's present job has been running, seconds; 0 if it is idle."""
        return self._worker.busy_s()

    def pet(self) -> None:
        """Tell the watchdog that the loop runs, and end the process if a job hangs. Call it every second."""
        self._watchdog.pet()

    @property
    def failed(self) -> asyncio.Future[None]:
        """A future that raises the first exception of a job."""
        return self._worker.failed

    def close(self) -> None:
        """Run the queued jobs, then end the compute thread and its watchdog."""
        self._watchdog.close()
        self._worker.close()
