"""What a figure can be: a metric at /metrics, a column of metrics.csv, or both by a quotient of two counters."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType

PREFIX = "seedbed_"  # of every metric


class Kind(StrEnum):
    """What Prometheus calls the type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a service's /metrics.

    Args:
      name: without prefix, and without the "_total" of a counter.
      meaning: a sentence for people, Prometheus' help text.
      labels: its labels' names, of which there must be few values.
      loss: of what should not happen, what is counted, in words for people; empty otherwise.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    loss: str = ""

    @property
    def sample(self) -> str:
        """Its name as a scrape has it."""
        return PREFIX + self.name + ("_total" if self.kind is Kind.COUNTER else "")

    @property
    def family(self) -> str:
        """Its name without what its kind adds, as Prometheus' libraries want it."""
        return PREFIX + self.name


def counter(name: str, meaning: str, *labels: str, loss: str = "") -> Metric:
    """A figure that only rises."""
    return Metric(name, Kind.COUNTER, meaning, labels, loss)


def gauge(name: str, meaning: str, *labels: str) -> Metric:
    """A figure that rises and falls."""
    return Metric(name, Kind.GAUGE, meaning, labels)


def histogram(name: str, meaning: str) -> Metric:
    """How often a figure lay in which range."""
    return Metric(name, Kind.HISTOGRAM, meaning)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of metrics.csv.

    Args:
      unit: empty for a plain number.
      meaning: for the table of docs/figures.md, in Markdown.
    """

    name: str
    unit: str
    meaning: str

    def of(self, task: str) -> str:
        """The name of the same column of one of a run's tasks."""
        return f"{self.name}/{task}"


@dataclass(frozen=True, slots=True)
class Quotient:
    """The rise of one counter for each one of another: a mean over whatever time lies between two looks.

    Args:
      scale: from the counters' unit to the column's.
    """

    total: Metric
    count: Metric
    column: Column
    scale: float = 1.0


class Combine(StrEnum):
    """How the values of several inference services become one."""

    SUM = "sum"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Load:
    """What an inference service tells the learner with each PING, and how those of several become a column."""

    column: Column
    combine: Combine

    @property
    def name(self) -> str:
        """The name under which it travels in PING."""
        return self.column.name.removeprefix("inference_")


def declared(module: ModuleType) -> tuple[Metric, ...]:
    """The metrics that a module declares, in its order, those of its quotients included."""
    found: dict[Metric, None] = {}
    for value in vars(module).values():
        found |= dict.fromkeys(_metrics(value))
    return tuple(found)


def _metrics(value: object) -> Iterable[Metric]:
    if isinstance(value, Metric):
        return (value,)
    return (value.total, value.count) if isinstance(value, Quotient) else ()
