"""An environment's own statistics: their valid names, their columns in metrics.csv, and conditions on their means.

An environment names them in HELLO, after `return` and `length`, and reports a number for each when an episode ends.
A name becomes part of columns and labels, so it holds nothing that a CSV file, TensorBoard or Prometheus would misread.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

GIVEN = ("return", "length")  # statistics of every environment
RESERVED = (*GIVEN, "normalised", "normalised_capped")  # names whose columns have another meaning
NAME_RULE = "use a letter, then at most 63 letters, digits, '_', '-' or '.'"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_TRAINING = re.compile(rf"episode_({_NAME.pattern})_mean")  # the form of `training_column`
_CONDITION = re.compile(rf"\s*({_NAME.pattern})\s*(>=|<=)\s*(\S+)\s*")

Means = Mapping[str, float | None]  # name of a statistic → its mean over some episodes; None if unknown


def name_problem(names: Sequence[str]) -> str | None:
    """Return what is wrong with the names of an environment's own statistics; None if nothing is."""
    for place, name in enumerate(names):
        if not _NAME.fullmatch(name):
            return f"a statistic cannot be named {name!r}: {NAME_RULE}"
        if name in RESERVED:
            return f"a statistic cannot be named {name!r}, which every run has already: give it another name"
        if name in names[:place]:
            return f"the statistic {name!r} is named twice: name each once"
    return None


def training_column(name: str) -> str:
    """Return the column of the mean over the last training episodes, in metrics.csv and summary.json."""
    return f"episode_{name}_mean"


def evaluation_column(name: str) -> str:
    """Return the column of the mean over the episodes of an evaluation."""
    return f"eval_{name}_mean"


def own_statistics(columns: Iterable[str]) -> list[str]:
    """Return the names of an environment's own statistics among a run's columns, or the keys of its summary."""
    found = (_TRAINING.fullmatch(column) for column in columns)
    return [match[1] for match in found if match and match[1] not in RESERVED]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the mean of a statistic."""

    statistic: str
    sign: str  # ">=" or "<="
    bound: float

    def holds(self, means: Means) -> bool:
        """Whether these means meet the condition; an unknown mean does not."""
        mean = means.get(self.statistic)
        if mean is None:
            return False
        return mean >= self.bound if self.sign == ">=" else mean <= self.bound


def read_condition(text: str) -> Condition:
    """Read a condition such as "success >= 0.9". Raises: ValueError that says how one is written."""
    found = _CONDITION.fullmatch(text)
    try:
        bound = float(found[3]) if found else float("nan")
    except ValueError:
        bound = float("nan")
    if found is None or not abs(bound) < float("inf"):
        raise ValueError("a statistic, >= or <=, and a number are expected, as in 'success >= 0.9'")
    return Condition(found[1], found[2], bound)
