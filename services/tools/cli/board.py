"""What a run looks like now: figures of all services, drawn from the samples of their /metrics pages.

Pure: takes samples and `now`. Counters are turned into rates over the last seconds, process by process, so that a
restarted service does not show as a negative rate.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticFigures:
    """The means of one of the environment's own statistics; None where nobody knows yet."""

    name: str
    mean: float | None  # over the last training episodes
    eval_mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFigures:
    """What is known of one of a run's tasks."""

    name: str
    weight: float  # its share of a batch as configured
    share: float | None  # of the lane-unrolls that were trained on
    acted_steps_per_s: float | None
    episodes: float
    return_mean: float | None
    eval_return_mean: float | None
    statistics: tuple[StatisticFigures, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """The run; None where nobody has said anything yet."""

    state: RunState
    seconds: float | None
    env_steps: float
    trained_steps: float
    updates: float
    acted_steps_per_s: float | None
    trained_steps_per_s: float | None
    return_mean: float | None
    return_curve: tuple[float, ...]
    episodes: float
    eval_return_mean: float | None
    lag_mean: float | None
    lag_max: float | None
    batch_fill: float | None  # lanes in a forward pass
    lanes: float | None  # of all groups
    queue_wait_ms: float | None
    forward_ms: float | None
    update_ms: float | None
    dropped_steps: float
    eval_played: float = 0.0  # episodes of the evaluation under way
    eval_asked: float = 0.0  # 0: none is under way
    awaited_groups: float = 0.0  # of a deterministic run, that keep all others waiting
    tasks: tuple[TaskFigures, ...] = ()
    statistics: tuple[StatisticFigures, ...] = ()


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
        """The newest value of a sample, or None if there was none."""
        return self.history[-1][1].get(name) if self.history else None

    def known(self, name: str) -> float | None:
        """Return the newest value of a sample, or None if there was none or it is NaN."""
        value = self.last(name)
        return None if value is None or math.isnan(value) else value

    def values_of(self, name: str) -> list[str]:
        """The values that the newest sample has of its label, in their order."""
        begin = labelled(name, "").removesuffix("}")
        samples = self.history[-1][1] if self.history else ()
        return [sample.removeprefix(begin).removesuffix("}") for sample in samples if sample.startswith(begin)]

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
    """Owned by the launcher's loop. Memory: some seconds of samples for each service."""

    def __init__(self, roles: Mapping[str, str]) -> None:
        """`roles`: service name → "learner", "inference" or "actor"."""
        self._processes = {name: _Process(role) for name, role in roles.items()}
        self._returns: deque[float] = deque(maxlen=RETURN_POINTS)
        self.progress = 0  # rises whenever a step was acted or trained, whoever made it

    def observe(self, name: str, samples: Samples, now: float) -> None:
        """Take in what one service's /metrics said at `now`."""
        # What a learner restored from its checkpoint is no step: its first page counts for nothing.
        self.progress += self._processes[name].add(samples, now)
        if self._processes[name].role == "learner":
            value = samples.get(learner.RETURN_MEAN.sample)
            if value is not None and value == value and samples.get(learner.EPISODES.sample):
                self._returns.append(value)

    def forget(self, name: str) -> None:
        """Forget a service whose process is gone."""
        self._processes[name].leave()

    @property
    def acted_steps(self) -> float:
        """Training steps that the present inference processes have acted."""
        return sum(process.last(inference.ACTED_STEPS.sample) or 0.0 for process in self._of("inference"))

    def cpu_seconds(self, role: str) -> float:
        """Processor time that the present processes of a role have used, seconds, without processes of their own."""
        return sum(process.last("process_cpu_seconds_total") or 0.0 for process in self._of(role))

    @property
    def state(self) -> RunState:
        """Where the run is, as the learner said last."""
        value = self._learner(learner.STATE)
        return RunState(int(value)) if value is not None else RunState.STARTING

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

    def run(self) -> RunFigures:
        """The figures that the table shows of the whole run."""
        evaluated, episodes = self._learner(learner.EVALUATIONS), self._learner(learner.EPISODES) or 0.0
        acted = self._sum(process.rate(inference.ACTED_STEPS.sample) for process in self._of("inference"))
        trained = self._sum(process.rate(learner.TRAINED_STEPS.sample) for process in self._of("learner"))
        update = learner.UPDATE_SECONDS.family
        update_s = self._ratio("learner", f"{update}_sum", f"{update}_count")
        rounds = [
            (process.last(inference.EVAL_PLAYED.sample) or 0.0, process.last(inference.EVAL_ASKED.sample) or 0.0)
            for process in self._of("inference")
        ]
        eval_played, eval_asked = max(rounds, default=(0.0, 0.0))
        return RunFigures(
            state=self.state,
            seconds=self._learner(learner.SECONDS),
            env_steps=self._learner(learner.ENV_STEPS) or 0.0,
            trained_steps=self._learner(learner.TRAINED_STEPS) or 0.0,
            updates=self._learner(learner.UPDATES) or 0.0,
            acted_steps_per_s=acted,
            trained_steps_per_s=trained,
            return_mean=self._learner(learner.RETURN_MEAN) if episodes else None,
            return_curve=tuple(self._returns),
            episodes=episodes,
            eval_return_mean=self._learner(learner.EVAL_RETURN_MEAN) if evaluated else None,
            lag_mean=self._learner(learner.LAG_MEAN),
            lag_max=self._learner(learner.LAG_MAX),
            batch_fill=self._mean(inference.BATCH_FILL),
            lanes=self._sum(
                process.last(inference.LANES.sample) for process in self._of("inference") if not process.is_gone
            ),
            queue_wait_ms=self._mean(inference.QUEUE_WAIT),
            forward_ms=self._mean(inference.FORWARD),
            update_ms=None if update_s is None else 1e3 * update_s,
            dropped_steps=self._learner(learner.DROPPED_STEPS) or 0.0,
            eval_played=eval_played,
            eval_asked=eval_asked,
            awaited_groups=self._sum(
                process.last(inference.AWAITED_GROUPS.sample)
                for process in self._of("inference")
                if not process.is_gone
            )
            or 0.0,
            tasks=self._tasks(),
            statistics=self._statistics(learner.STATISTIC, learner.EVAL_STATISTIC),
        )

    def _statistics(self, training: Metric, evaluation: Metric, *task: str) -> tuple[StatisticFigures, ...]:
        """Every statistic of the environment's own that the learner names, of the run or of a task."""
        process = next((process for process in self._of("learner") if process.history), None)
        if process is None:
            return ()
        return tuple(
            StatisticFigures(
                name=name,
                mean=process.known(labelled(training.sample, *task, name)),
                eval_mean=process.known(labelled(evaluation.sample, *task, name)),
            )
            for name in process.values_of(learner.STATISTIC.sample)
        )

    def _tasks(self) -> tuple[TaskFigures, ...]:
        """Every task that the learner names, in its order."""
        process = next((process for process in self._of("learner") if process.history), None)
        if process is None:
            return ()
        names = process.values_of(learner.TASK_WEIGHT.sample)
        lanes = {name: process.last(labelled(learner.TASK_TRAINED_LANES.sample, name)) or 0.0 for name in names}
        total = sum(lanes.values())

        def last(metric: Metric, task: str) -> float | None:
            return process.known(labelled(metric.sample, task))

        return tuple(
            TaskFigures(
                name=name,
                weight=last(learner.TASK_WEIGHT, name) or 0.0,
                share=lanes[name] / total if total else None,
                acted_steps_per_s=process.rate(labelled(learner.TASK_ENV_STEPS.sample, name)),
                episodes=last(learner.TASK_EPISODES, name) or 0.0,
                return_mean=last(learner.TASK_RETURN_MEAN, name),
                eval_return_mean=last(learner.TASK_EVAL_RETURN_MEAN, name),
                statistics=self._statistics(learner.TASK_STATISTIC, learner.TASK_EVAL_STATISTIC, name),
            )
            for name in names
        )

    def _of(self, role: str) -> list[_Process]:
        return [process for process in self._processes.values() if process.role == role]

    def _last(self, role: str, name: str) -> float | None:
        """A sample of the only service with this role that has it."""
        return next((value for process in self._of(role) if (value := process.last(name)) is not None), None)

    def _learner(self, metric: Metric) -> float | None:
        """A figure of the learner, or None before its first answer."""
        return self._last("learner", metric.sample)

    def _mean(self, quotient: Quotient) -> float | None:
        """A mean over the window, of all inference services together, in its column's unit."""
        ratio = self._ratio("inference", quotient.total.sample, quotient.count.sample)
        return None if ratio is None else quotient.scale * ratio

    def _ratio(self, role: str, total: str, count: str) -> float | None:
        """What one counter rose for each one of another over the window, all processes of a role together."""
        gained = self._sum(process.gain(total) for process in self._of(role))
        times = self._sum(process.gain(count) for process in self._of(role))
        return gained / times if gained is not None and times else None

    @staticmethod
    def _sum(values: Iterable[float | None]) -> float | None:
        """The sum of what is known, None if nothing is."""
        known = [value for value in values if value is not None]
        return sum(known) if known else None
