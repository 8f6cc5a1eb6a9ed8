"""What a run looks like now: figures of all services, drawn from the samples of their /metrics pages.

Pure: takes samples and `now`. Counters are turned into rates over the last seconds, process by process, so that a
restarted service does not show as a negative rate.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from seedbed.services.tools.cli.scrape import labelled
from seedbed.shared.figures import inference, learner
from seedbed.shared.figures import service as any_service
from seedbed.shared.figures.declare import Metric, Quotient
from seedbed.shared.protocol.messages import RunState

WINDOW_S = 5.0  # rates and means are over this long
RETURN_POINTS = 60  # of the little curve

STEP_COUNTERS = (inference.ACTED_STEPS.sample, learner.TRAINED_STEPS.sample)

Samples = Mapping[str, float]  # sample name → value, summed over labels


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFigures:
    """What is known of one service's process."""

    cpu_percent: float | None
    loop_lag_ms: float | None
    memory_bytes: float | None


@dataclass(slots=True)
class _Process:
    """The last samples of one process life."""

    role: str
    is_gone: bool = False
    history: deque[tuple[float, Samples]] = field(default_factory=deque)

    def add(self, samples: Samples, now: float) -> bool:
        """Newest samples; older than the window go, but one to measure from stays. Whether a step was made since."""
        start = "process_start_time_seconds"
        if self.is_gone or (self.history and self.history[-1][1].get(start) != samples.get(start)):
            self.history.clear()
            self.is_gone = False
        before = self.history[-1][1] if self.history else samples if self.role == "learner" else {}
        self.history.append((now, samples))
        has_stepped = any(samples.get(name, 0.0) > before.get(name, 0.0) for name in STEP_COUNTERS)
        while len(self.history) > 2 and self.history[1][0] <= now - WINDOW_S:
            self.history.popleft()
        return has_stepped

    def leave(self) -> None:
        """The process is gone: its last figures stay, its rates do not."""
        self.is_gone = True
        while len(self.history) > 1:
            self.history.popleft()

    def last(self, name: str) -> float | None:
        """The newest value of a sample, or None if there was none or it is NaN."""
        value = self.history[-1][1].get(name) if self.history else None
        return None if value is None or math.isnan(value) else value

    def values_of(self, name: str) -> tuple[str, ...]:
        """The values that the newest sample has of its label, in their order."""
        begin = labelled(name, "").removesuffix("}")
        samples = self.history[-1][1] if self.history else ()
        return tuple(sample.removeprefix(begin).removesuffix("}") for sample in samples if sample.startswith(begin))

    def gain(self, name: str) -> float | None:
        """How much a counter rose over the window."""
        if len(self.history) < 2 or name not in self.history[-1][1]:
            return None
        return self.history[-1][1][name] - self.history[0][1].get(name, 0.0)

    def rate(self, name: str) -> float | None:
        """A counter's rise per second over the window."""
        gain = self.gain(name)
        return None if gain is None else gain / (self.history[-1][0] - self.history[0][0])


class Board:
    """A run's figures, each asked for by its declaration; `labels`: a task, a statistic, or a task and a statistic.

    Owned by the launcher's loop. Memory: some seconds of samples for each service.
    """

    def __init__(self, roles: Mapping[str, str]) -> None:
        """`roles`: service name → "learner", "inference" or "actor"."""
        self._processes = {name: _Process(role) for name, role in roles.items()}
        self._returns: deque[float] = deque(maxlen=RETURN_POINTS)
        self.progress = 0  # rises whenever a step was acted or trained, whoever made it

    def observe(self, name: str, samples: Samples, now: float) -> None:
        """Take in what one service's /metrics said at `now`."""
        # What a learner restored from its checkpoint is no step: its first page counts for nothing.
        process = self._processes[name]
        self.progress += process.add(samples, now)
        if (value := process.last(learner.RETURN_MEAN.sample)) is not None:
            self._returns.append(value)

    def forget(self, name: str) -> None:
        """Forget a service whose process is gone."""
        self._processes[name].leave()

    def last(self, gauge: Metric, *labels: str) -> float | None:
        """The newest value of a gauge that one service has; it stays while that service restarts. None before it."""
        return next(self._each(gauge, labels), None)

    def now(self, gauge: Metric) -> float | None:
        """The sum of a gauge over the services that are up; None if none of them has it."""
        return _sum(process.last(gauge.sample) for process in self._processes.values() if not process.is_gone)

    def total(self, counter: Metric, *labels: str) -> float:
        """What the newest processes of all services have counted, those that are gone too; 0 before any page."""
        return sum(self._each(counter, labels))

    def rate(self, counter: Metric, *labels: str) -> float | None:
        """What all services count in a second, over the window; None before their second pages."""
        return _sum(process.rate(labelled(counter.sample, *labels)) for process in self._processes.values())

    def mean(self, quotient: Quotient) -> float | None:
        """A mean over the window, of all services together, in its column's unit; None if nothing was counted."""
        gained = _sum(process.gain(quotient.total.sample) for process in self._processes.values())
        times = _sum(process.gain(quotient.count.sample) for process in self._processes.values())
        return quotient.scale * (gained / times) if gained is not None and times else None

    @property
    def state(self) -> RunState:
        """Where the run is, as the learner said last. Raises: ValueError if this version does not know that state."""
        return RunState(int(self.last(learner.STATE) or RunState.STARTING))

    @property
    def return_curve(self) -> tuple[float, ...]:
        """The mean return of each of the last pages."""
        return tuple(self._returns)

    @property
    def evaluated_return(self) -> float | None:
        """The mean return of the last evaluation that the present learner has finished."""
        return self.last(learner.EVAL_RETURN_MEAN) if self.total(learner.EVALUATIONS) else None

    @property
    def evaluation(self) -> tuple[float, float]:
        """Episodes played and asked for of the evaluation under way, as who has played most says; asked for 0: none."""
        rounds = (
            (process.last(inference.EVAL_PLAYED.sample) or 0.0, process.last(inference.EVAL_ASKED.sample) or 0.0)
            for process in self._processes.values()
        )
        return max(rounds, default=(0.0, 0.0))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that the learner names, in its order; none in a run with one environment."""
        return self._values_of(learner.TASK_WEIGHT)

    @property
    def statistics(self) -> tuple[str, ...]:
        """The statistics of the environment's own that the learner names."""
        return self._values_of(learner.STATISTIC)

    def share_of(self, task: str) -> float | None:
        """A task's share of the lane-unrolls that were trained on; None before there are any."""
        lanes = self.total(learner.TASK_TRAINED_LANES)
        return self.total(learner.TASK_TRAINED_LANES, task) / lanes if lanes else None

    def cpu_seconds(self, role: str) -> float:
        """Processor time that the present processes of a role have used, seconds, without processes of their own."""
        processes = (process for process in self._processes.values() if process.role == role)
        return sum(process.last("process_cpu_seconds_total") or 0.0 for process in processes)

    def service(self, name: str) -> ServiceFigures:
        """The figures that the table shows of one service."""
        process = self._processes[name]
        if process.is_gone:
            return ServiceFigures(cpu_percent=None, loop_lag_ms=None, memory_bytes=None)
        cpu = process.rate("process_cpu_seconds_total")
        lag = process.last(any_service.LOOP_LAG.sample)
        return ServiceFigures(
            cpu_percent=None if cpu is None else 100.0 * cpu,
            loop_lag_ms=None if lag is None else 1e3 * lag,
            memory_bytes=process.last("process_resident_memory_bytes"),
        )

    def _each(self, metric: Metric, labels: Iterable[str]) -> Iterator[float]:
        """The newest value of each service that has this metric: no two kinds of services share one."""
        name = labelled(metric.sample, *labels)
        return (value for process in self._processes.values() if (value := process.last(name)) is not None)

    def _values_of(self, metric: Metric) -> tuple[str, ...]:
        """The values of a metric's label, as the service that has it says them."""
        found = (process.values_of(metric.sample) for process in self._processes.values())
        return next(filter(None, found), ())


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of what is known, None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
