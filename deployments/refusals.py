"""What is wrong with a body, as one sentence that names the field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from cluster.errors import InvalidRequest, UnsupportedField

Location = tuple[int | str, ...]

HALF_A_PAIR = "holds half of a surrogate pair, which is no text"
"""JSON can spell it, and it has no encoding."""

SENTENCES: Mapping[str, str] = {
    "missing": "is missing",
    "string_type": "must be a string",
    "string_unicode": HALF_A_PAIR,
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be {le} or less",
    "too_short": "must have a length of {min_length} or more",
    "too_long": "must have a length of {max_length} or less",
    "string_too_short": "must have a length of {min_length} or more",
    "string_too_long": "must have a length of {max_length} or less",
    "string_pattern_mismatch": "must match {pattern}",
    "literal_error": "must be {expected}",
    "value_error": "{error}",
}
"""What follows the field's name, by pydantic's name of the problem, in terms of its context."""


def refuse(problems: Sequence[Any]) -> InvalidRequest:
    """The first of pydantic's problems, told in the caller's own terms."""
    problem = problems[0]
    param = param_path(problem["loc"])
    if problem["type"] == "extra_forbidden":
        return UnsupportedField(f"`{param}` is not supported here", param)
    # The name of a field may be no text itself; what else has no path is the whole body.
    nameless = "the name of a field" if problem["type"] == "string_unicode" else "the body"
    field = f"`{param}`" if param else nameless
    return InvalidRequest(f"{field} {_sentence(problem)}{_got(problem['input'])}", param)


def refuse_invalid(error: ValidationError) -> InvalidRequest:
    return refuse(error.errors(include_url=False))


def param_path(location: Location) -> str:
    """`messages[0].content`, without the tags of union members, which stand in angle brackets."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith(("<", "[")):
            path += f".{part}" if path else part
    return path


def _sentence(problem: Any) -> str:
    """Our own kinds of problems have their sentence for a message."""
    sentence: str = SENTENCES.get(problem["type"], problem["msg"])
    context = {name: _in_json(value) for name, value in problem.get("ctx", {}).items()}
    return sentence.format(**context)


def _in_json(value: object) -> object:
    """Bounds come as 2.0 and are written as 2, and truth is not written as in Python."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return {"True": "true", "False": "false"}.get(str(value), value)


def _got(value: object) -> str:
    if isinstance(value, str):
        value = value[:80]
    return f" (got {json.dumps(value):.80})" if isinstance(value, str | int | float) else ""
