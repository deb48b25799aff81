"""How one life of an actor goes, from its creation until it is lost: told step by step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from actors.identity import Identity, Pulse
from actors.lifecycle import Event
from actors.tasks import first_to_end
from cluster.errors import ShardLost, ShoalError, StepFailed, Unschedulable
from cluster.messages import ShardRef


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: until a place is found missing, between pings, for one, for one while a shard loads
    (which may keep it from answering), for a step, for the scheduler to hear of a new shard, for a
    shard to let its requests go, for a death.
    """

    place_s: float = 20.0
    ping_every_s: float = 1.0
    ping_s: float = 10.0
    load_ping_s: float = 60.0
    step_s: float = 120.0
    introduction_s: float = 5.0
    let_go_s: float = 2.0
    death_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Life:
    """One life of an actor: its handle, what it asked Ray for, and, of a shard, which it is.

    One that is `loaded`, or was found so, has its beginning behind it.
    """

    handle: Any
    asked: Mapping[str, float]
    shard: ShardRef | None = None
    load_timeout_s: float = 0.0
    loaded: bool = False


Listener = Callable[[Event | None, str], None]
"""Hears how a life goes on: an event, or None where there is only something to say."""


async def live(
    life: Life, patience: Patience, tell: Listener, stands: Callable[[Identity], None]
) -> None:
    """Placed, loaded, then watched until it is lost. Raises what ended it.

    `stands` hears where Ray has put it, before `tell` hears that it has.
    """
    if not life.loaded:
        stands(await _placed(life, patience, tell))
        await _begun(life, patience, tell)
    await first_to_end(_death(life.handle), _progress(life.handle, patience))


@dataclass(frozen=True, slots=True)
class Leave:
    """Seconds that a shard which leaves has to finish what it has begun, and then for other shards
    to fetch what it has computed of the rest."""

    drain_s: float = 0.0
    hand_over_s: float = 0.0

    @property
    def whole_s(self) -> float:
        return self.drain_s + self.hand_over_s


AT_ONCE = Leave()


def leave_of(life: Life, others: Iterable[Life], leave: Leave) -> Leave:
    """What a life has of `leave`: where no other shard of its model is loaded, nobody could fetch
    anything within that time."""
    model = life.shard and life.shard.model
    heirs = (one for one in others if one.loaded and one.shard and one.shard.model == model)
    return leave if any(heirs) else replace(leave, hand_over_s=0.0)


async def hand_back(life: Life, fault: Exception | None, leave: Leave, patience: Patience) -> None:
    """Have a shard that is to be buried finish what ends in time, tell its doors that the rest goes
    on elsewhere, and let that be fetched.

    `fault` is what its life ended with, if with any; a shard that is dead or mute is not asked, nor
    one that has not loaded, which has none.
    """
    speaks = fault is None or isinstance(fault, (RayTaskError, StepFailed))
    if life.shard is not None and life.loaded and speaks:
        with contextlib.suppress(RayError, TimeoutError):
            async with asyncio.timeout(leave.whole_s + patience.let_go_s):
                stuck = isinstance(fault, StepFailed)
                await life.handle.drain.remote(stuck, leave.drain_s, leave.hand_over_s)


async def bury(life: Life, patience: Patience) -> None:
    """See to it that the actor is dead. Ray keeps the name of a dead one until it is killed too."""
    ray.kill(life.handle)
    with contextlib.suppress(RayError, TimeoutError):
        async with asyncio.timeout(patience.death_s):
            await life.handle.ping.remote()


def in_words(error: BaseException) -> str:
    """What an operator should read of an error; of a remote one, its cause and no traceback."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    text = cause.message if isinstance(cause, ShoalError) else str(cause)
    # Ray goes on to list every reason a process ever died of.
    return f"{type(cause).__name__}: {' '.join(text.partition('Some common causes')[0].split())}"


async def _begun(life: Life, patience: Patience, tell: Listener) -> None:
    tell(Event.PLACED, "")
    if life.shard is not None:
        loading = replace(patience, ping_s=patience.load_ping_s)
        await first_to_end(_loaded(life), _progress(life.handle, loading))
        await _introduced(life, patience)
    tell(Event.LOADED, "")


async def _placed(life: Life, patience: Patience, tell: Listener) -> Identity:
    """What it says it is, and where. Ray waits in silence for one that may never come; this says
    what is missing."""
    answer = asyncio.ensure_future(_answer(life.handle.identity.remote()))
    try:
        while not (await asyncio.wait({answer}, timeout=patience.place_s))[0]:
            event = Event.CRAMPED if any(life.asked.values()) else None
            tell(event, await asyncio.to_thread(_what_is_missing, life.asked))
        identity: Identity = answer.result()
    finally:
        answer.cancel()
    return identity


async def _loaded(life: Life) -> None:
    try:
        async with asyncio.timeout(life.load_timeout_s):
            await life.handle.load.remote()
    except TimeoutError:
        raise ShardLost(f"it had not loaded after {life.load_timeout_s:g} s") from None


async def _introduced(life: Life, patience: Patience) -> None:
    """Until it may get leases: an old shard must not go before. A scheduler that is away does not
    hold it up for long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience.introduction_s):
            await life.handle.introduced.remote()


async def _death(handle: Any) -> None:
    """A call that never returns fails at once when its actor dies."""
    await handle.watch.remote()


async def _progress(handle: Any, patience: Patience) -> None:
    """Returns never; raises ShardLost where no answer comes, StepFailed where a step never ends."""
    clock = asyncio.get_running_loop().time
    turns, moved_at = -1, clock()
    while True:
        try:
            async with asyncio.timeout(patience.ping_s):
                pulse = await handle.ping.remote()
        except TimeoutError:
            raise ShardLost(f"it did not answer for {patience.ping_s:g} s") from None
        if not isinstance(pulse, Pulse) or not pulse.busy or pulse.turns != turns:
            turns, moved_at = getattr(pulse, "turns", -1), clock()
        elif clock() - moved_at > patience.step_s:
            raise StepFailed(f"its step has not ended for {patience.step_s:g} s")
        await asyncio.sleep(patience.ping_every_s)


async def _answer(reference: Any) -> Any:
    return await reference


def _what_is_missing(asked: Mapping[str, float]) -> str:
    total, free = ray.cluster_resources(), ray.available_resources()
    wants = [f"{amount:g} {name}" for name, amount in asked.items() if amount]
    has = [
        f"{free.get(name, 0.0):g} of {total.get(name, 0.0):g} {name} free"
        for name, amount in asked.items()
        if amount
    ]
    if not wants:
        return "Ray has not started its process yet"
    asks = f"no node offers {' with '.join(wants)}; in the whole cluster: {', '.join(has)}"
    return in_words(Unschedulable(asks))
