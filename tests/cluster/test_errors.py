"""Every error crosses processes whole, and stands under whoever has to act."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest

from cluster import errors
from cluster.errors import CapacityError, ConfigError, InvalidRequest, ShoalError

KINDS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ShoalError)
]


def example(kind: type[ShoalError]) -> ShoalError:
    if issubclass(kind, InvalidRequest):
        return kind("the message", param="the.param")
    if issubclass(kind, CapacityError):
        return kind("the message", retry_after_s=1.5)
    if issubclass(kind, ConfigError):
        return kind("the message", path="the.path")
    return kind("the message")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickling_with_its_fields(kind: type[ShoalError]) -> None:
    before = example(kind)
    after = pickle.loads(pickle.dumps(before))
    assert type(after) is kind
    assert str(after) == "the message"
    assert after.__dict__ == before.__dict__


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_copying_with_its_fields(kind: type[ShoalError]) -> None:
    assert copy.copy(example(kind)).__dict__ == example(kind).__dict__


def drawn() -> dict[str, str]:
    """Each error of the drawing in the module's docstring, and the one it hangs from."""
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = [(-1, "Exception")]
    for line in inspect.getdoc(errors).splitlines():  # type: ignore[union-attr]
        if found := re.match(r"(    [|+ -]*)([A-Z]\w+)(?:\s{2,}|$)", line):
            depth = len(found[1])
            above = [entry for entry in above if entry[0] < depth]
            parents[found[2]] = above[-1][1]
            above.append((depth, found[2]))
    return parents


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert drawn() == {kind.__name__: kind.__base__.__name__ for kind in KINDS if kind.__base__}


def test_every_error_has_one_of_four_to_blame() -> None:
    blamed = {errors.RequestError, errors.CapacityError, errors.OperatorError, errors.FaultError}
    for kind in set(KINDS) - {ShoalError}:
        assert len(blamed & set(kind.__mro__)) == 1
