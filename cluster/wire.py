"""What messages between processes are: frozen dataclasses that are cheap to pickle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def message(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots that is pickled as its class and the values of its fields.

    What `dataclass` itself gives such a class looks its fields up anew for each object, in Python.
    A batch of 16 tokens took 36 us to pickle and 37 to read that way, 16 and 17 this way.
    """
    made = dataclass(frozen=True, slots=True)(cls)
    names = [field.name for field in fields(made)]  # type: ignore[arg-type]

    def reduce(self: T) -> tuple[Callable[..., T], tuple[Any, ...]]:
        return made, tuple([getattr(self, name) for name in names])

    made.__reduce__ = reduce  # type: ignore[assignment, method-assign]
    return made
