"""Frozen dataclasses to JSON text and back, exactly: enums by name, tuples as lists."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_json(value: Any, indent: int | None = None) -> str:
    """The text of a dataclass that is made of dataclasses, tuples, enums and scalars."""
    return json.dumps(_plain(value), indent=indent)


def from_json(kind: type[T], text: str) -> T:
    """The `kind` that was written as `text`. Raises ValueError naming the field that is wrong."""
    value: T = _build(kind, json.loads(text), kind.__name__)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _build(kind: Any, data: Any, path: str) -> Any:
    """`data` as a value of type `kind`; what has no field, or the wrong type, is refused."""
    if isinstance(kind, UnionType):
        inner = [part for part in get_args(kind) if part is not NoneType]
        return None if data is None else _build(inner[0], data, path)
    if get_origin(kind) is tuple:
        return _build_tuple(get_args(kind), _checked(list, data, path), path)
    if is_dataclass(kind):
        return _build_fields(kind, _checked(dict, data, path), path)
    if issubclass(kind, Enum):
        return _member(kind, data, path)
    return _checked(kind, data, path)


def _build_tuple(kinds: tuple[Any, ...], data: list[Any], path: str) -> tuple[Any, ...]:
    each: Iterable[Any] = [kinds[0]] * len(data) if kinds[-1] is Ellipsis else kinds
    pairs = zip(each, data, strict=True)
    return tuple(_build(kind, item, f"{path}[{i}]") for i, (kind, item) in enumerate(pairs))


def _build_fields(kind: Any, data: dict[str, Any], path: str) -> Any:
    hints = get_type_hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ValueError(f"{path} has no field {unknown[0]!r}; it has {', '.join(hints)}")
    try:
        return kind(**{name: _build(hints[name], data[name], f"{path}.{name}") for name in data})
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from None


def _member(kind: type[Enum], data: Any, path: str) -> Enum:
    if data not in kind.__members__:
        raise ValueError(f"{path} must be one of {', '.join(kind.__members__)}, got {data!r}")
    return kind[data]


def _checked(kind: type[T], data: Any, path: str) -> T:
    if type(data) is not kind:
        raise ValueError(f"{path} must be {kind.__name__}, got {data!r}")
    return data
