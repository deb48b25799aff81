"""Who bears a name, and whether it lives: only who has died is dead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import ActorUnavailableError, RayTaskError

from actors.adoption import look_at
from actors.identity import Identity
from actors.naming import SCHEDULER, ActorAddress

IDENTITY = Identity("stamp")


@dataclass
class Line:
    """Stands in for Ray's handle of an actor: what comes of each call to it, the last for ever."""

    outcomes: list[Any]
    calls: int = field(default=0)

    @property
    def identity(self) -> Line:
        return self

    async def remote(self) -> Identity:
        outcome = self.outcomes[min(self.calls, len(self.outcomes) - 1)]
        self.calls += 1
        if isinstance(outcome, Exception):
            raise outcome
        found: Identity = outcome
        return found


@dataclass(frozen=True)
class Address(ActorAddress):
    """Of who is at the other end of the line."""

    line: Any = None

    async def look_up(self) -> Any:
        return self.line


def address(*outcomes: Any) -> Address:
    return Address(SCHEDULER, "tests", Line(list(outcomes)))


async def test_who_cannot_be_reached_for_a_while_is_asked_again() -> None:
    found = await look_at(address(ActorUnavailableError("cut off", None), IDENTITY), 60.0)
    assert found is not None
    assert found.identity == IDENTITY


async def test_who_cannot_be_reached_at_all_is_mute() -> None:
    found = await look_at(address(ActorUnavailableError("cut off", None)), 0.0)
    assert found is not None
    assert found.identity is None


async def test_who_answers_with_an_error_is_mute() -> None:
    error = RayTaskError("identity", "a bug", ValueError("a bug"))
    found = await look_at(address(error), 60.0)
    assert found is not None
    assert found.identity is None
