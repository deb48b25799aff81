"""A configuration that is refused, in words: every wrong field, and what may stand there."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError

from cluster.errors import ConfigError
from cluster.frozen import Frozen

M = TypeVar("M", bound=Frozen)


def parsed(kind: type[M], data: Any, root: str) -> M:
    """`data` as a `kind`; what is wrong in it is told by its path, which begins with `root`.

    Raises ConfigError that lists every wrong field, and what is allowed there.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problems = _root_causes(error.errors(include_url=False))
        lines = [f"  {_path(root, p['loc'])}: {p['msg']}{_allowed(kind, p)}" for p in problems]
        raise ConfigError(
            "the configuration is refused:\n" + "\n".join(lines), _path(root, problems[0]["loc"])
        ) from None


def _root_causes(problems: list[Any]) -> list[Any]:
    """Without the problems that only repeat, of a whole, that a part of it was wrong."""
    places = [problem["loc"] for problem in problems]

    def repeats(loc: tuple[int | str, ...]) -> bool:
        return any(len(other) > len(loc) and other[: len(loc)] == loc for other in places)

    return [problem for problem in problems if not repeats(problem["loc"])]


def _path(root: str, loc: tuple[int | str, ...]) -> str:
    return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)


def _allowed(kind: type[Frozen], problem: Any) -> str:
    """For an unknown field, the fields that would have been known there."""
    if problem["type"] != "extra_forbidden":
        return f" (got {problem['input']!r})"
    model: Any = kind
    for part in problem["loc"][:-1]:
        model = _descend(model, part)
    return f" (allowed: {', '.join(sorted(model.model_fields))})"


def _descend(model: Any, part: int | str) -> Any:
    if isinstance(part, int):
        return model
    annotation = model.model_fields[part].annotation
    inner = [arg for arg in getattr(annotation, "__args__", ()) if hasattr(arg, "model_fields")]
    return inner[0] if inner else annotation
