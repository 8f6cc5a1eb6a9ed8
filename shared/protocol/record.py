"""Records that are made for every tick of every group."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """As `dataclass(frozen=True, slots=True)` to type checkers; when it runs nothing guards it.

    A frozen record sets each field through `object.__setattr__`, which makes it three times as dear to make.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
