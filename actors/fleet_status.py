"""What the fleet tells of itself: who is wanted, who is there, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from actors.lifecycle import Member, State


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One actor: `for_s` seconds in its state; `message`: what last went wrong, until READY."""

    name: str
    model: str | None
    state: State
    for_s: float
    losses: int
    message: str


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """The fleet at one moment. `tick_age_s`: seconds since the loop last looked, or was due to look
    for the first time."""

    wanted: Mapping[str, int]
    members: tuple[MemberStatus, ...]
    tick_age_s: float


def status_of(
    wanted: Mapping[str, int], members: Iterable[Member], looked_at: float, now: float
) -> FleetStatus:
    return FleetStatus(
        wanted=dict(wanted),
        members=tuple(
            MemberStatus(m.name, m.model, m.state, now - m.since, m.losses, m.message)
            for m in members
        ),
        tick_age_s=max(0.0, now - looked_at),
    )
