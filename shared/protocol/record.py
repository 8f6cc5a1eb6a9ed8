"""A decorator for records that are made for every tick of every group."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Make a dataclass with slots that is frozen for type checkers only.

    A truly frozen one sets each field through `object.__setattr__`, which takes three times as long.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
