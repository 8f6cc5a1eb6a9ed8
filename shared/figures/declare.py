"""Kinds of declarations: a metric at /metrics, a column of metrics.csv, or a quotient of two counters for both.

A column may have a chart of its own, for the web page and Grafana, and a remark, for `seedbed explain`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from types import ModuleType

PREFIX = "seedbed_"  # of every metric


class Kind(StrEnum):
    """The type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a service's /metrics.

    Args:
      name: without the prefix, and without the "_total" of a counter.
      meaning: a sentence, shown as Prometheus' help text.
      labels: names of its labels, which must have few values.
      loss: if it counts something that should not happen, what it counts, in words; else empty.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    loss: str = ""

    @property
    def sample(self) -> str:
        """The name of its samples in a scrape."""
        return PREFIX + self.name + ("_total" if self.kind is Kind.COUNTER else "")

    @property
    def family(self) -> str:
        """The name without the suffix of its kind, as Prometheus' libraries expect it."""
        return PREFIX + self.name


def counter(name: str, meaning: str, *labels: str, loss: str = "") -> Metric:
    """Declare a number that only rises."""
    return Metric(name, Kind.COUNTER, meaning, labels, loss)


def gauge(name: str, meaning: str, *labels: str) -> Metric:
    """Declare a number that rises and falls."""
    return Metric(name, Kind.GAUGE, meaning, labels)


def histogram(name: str, meaning: str) -> Metric:
    """Declare a histogram: how often a number was in each range."""
    return Metric(name, Kind.HISTOGRAM, meaning)


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart that shows one column alone: its title, and under it the unit and a note."""

    title: str
    unit: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What `seedbed explain` says of a run in which a column's mean is outside its limits.

    Args:
      text: what is wrong and what to do; `{}` stands for the mean, with a format as in `str.format`.
    """

    text: str
    least: float = -math.inf
    most: float = math.inf

    def of(self, mean: float) -> str:
        """Return the text with this mean in it; empty if the mean is within the limits."""
        return "" if self.least <= mean <= self.most else self.text.format(mean)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of metrics.csv.

    Args:
      unit: empty for a plain number.
      meaning: for the table of docs/figures.md, in Markdown.
      plot: its own chart on the web page and in Grafana, if it has one.
      remark: when `seedbed explain` has something to say about it, and what.
    """

    name: str
    unit: str
    meaning: str
    plot: Plot | None = field(default=None, kw_only=True)
    remark: Remark | None = field(default=None, kw_only=True)

    def of(self, member: str) -> str:
        """Return the name of the same column for one task or one learner rank of a run."""
        return f"{self.name}/{member}"

    def members(self, names: Iterable[str]) -> list[str]:
        """Return whom these columns have this one of, each once and in their order."""
        begin = self.of("")
        found = (name.removeprefix(begin) for name in names if name.startswith(begin))
        return [member for member in dict.fromkeys(found) if member]


@dataclass(frozen=True, slots=True)
class Quotient:
    """The rise of one counter divided by the rise of another: a mean over the time between two readings.

    Args:
      scale: factor from the counters' unit to the column's.
    """

    total: Metric
    count: Metric
    column: Column
    scale: float = 1.0


class Combine(StrEnum):
    """How the values of several inference services are combined into one."""

    SUM = "sum"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Load:
    """A number that inference sends to the learner in each PING, and how several services' numbers become a column."""

    column: Column
    combine: Combine

    @property
    def name(self) -> str:
        """The name under which PING carries it: the column's, without what all of them begin with."""
        return self.column.name.removeprefix("inference_")


def declared(module: ModuleType) -> tuple[Metric, ...]:
    """Return the metrics that a module declares, in its order, including those of its quotients."""
    found: dict[Metric, None] = {}
    for value in vars(module).values():
        found |= dict.fromkeys(_metrics(value))
    return tuple(found)


def _metrics(value: object) -> Iterable[Metric]:
    if isinstance(value, Metric):
        return (value,)
    return (value.total, value.count) if isinstance(value, Quotient) else ()
