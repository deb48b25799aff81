"""The doors that stand at a shard: which request belongs to whom, and who has stopped listening."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Iterable

from actors.outbox import Delta, Outbox
from cluster.audit import Doubts
from cluster.errors import LedgerBroken, ShardLost
from cluster.messages import DeltaBatch, RequestFailed

REMEMBERED = 4096
"""Requests a door may have sent since one whose `assign` it repeats; doors that are gone."""


class Door:
    """One listener: its outbox, its living requests, and when it was last heard."""

    def __init__(self, now: float) -> None:
        self.outbox = Outbox()
        self.requests: set[str] = set()
        self.last_heard = now
        self.polling = 0
        self.unwanted = Doubts()
        self.unknown = Doubts()
        self.news = asyncio.Event()
        self.fetched = asyncio.Event()
        self._seen: OrderedDict[str, None] = OrderedDict()

    def is_new(self, request_id: str) -> bool:
        """Whether the request was never sent before; remembers that it was now."""
        if request_id in self._seen:
            return False
        self._seen[request_id] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return True

    def put(self, delta: Delta) -> None:
        self.outbox.put(delta)
        self.news.set()


class Doors:
    """Routes each delta to the door whose request it is; lives on the event loop.

    A door that has not asked for `timeout_s` seconds, or lets more than `max_backlog` deltas lie,
    is gone. `now` is a monotonic clock reading in seconds.
    """

    def __init__(self, timeout_s: float, max_backlog: int) -> None:
        self._timeout_s = timeout_s
        self._max_backlog = max_backlog
        self._doors: dict[str, Door] = {}
        self._door_of: dict[str, Door] = {}
        self._left = asyncio.Event()
        self._gone: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._doors)

    def enter(self, name: str, request_id: str, now: float) -> bool:
        """Note that the request is the door's. False where it is known: a repeated message."""
        door = self._heard(name, now)
        if request_id in self._door_of or not door.is_new(request_id):
            return False
        door.requests.add(request_id)
        self._door_of[request_id] = door
        return True

    def owns(self, name: str, request_id: str) -> bool:
        door = self._doors.get(name)
        return door is not None and request_id in door.requests

    def requests(self) -> frozenset[str]:
        """All that any door waits for."""
        return frozenset(self._door_of)

    def compare(self, name: str, wanted: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
        """What is here for a door that wants only these, and what of these is not here, where both
        was so when it last said it."""
        door = self._doors.get(name)
        if door is None:
            return frozenset(), frozenset()
        unwanted = door.unwanted.confirmed(door.requests - wanted)
        # Of what has just ended it may not have heard yet.
        missing = wanted - door.requests if door.outbox.is_empty else frozenset()
        return unwanted, door.unknown.confirmed(missing)

    def leave(self, request_ids: Iterable[str]) -> None:
        """These requests are over; nothing more is delivered for them."""
        for request_id in request_ids:
            door = self._door_of.pop(request_id, None)
            if door is not None:
                door.requests.discard(request_id)
                self._left.set()

    def deliver(self, deltas: Iterable[Delta]) -> None:
        """Put each where its door will find it. What nobody waits for any more is dropped."""
        for delta in deltas:
            door = self._door_of.get(delta.request_id)
            if door is not None:
                door.put(delta)
            if isinstance(delta, RequestFailed):
                self.leave((delta.request_id,))

    def refuse(self, name: str, failure: RequestFailed, now: float) -> None:
        """Tell a door of a request that was never taken in."""
        self._heard(name, now).put(failure)

    def fail_all(self, kind: str, message: str) -> None:
        """Every request is over, for this reason."""
        self.fail(tuple(self._door_of), kind, message)

    def fail(self, request_ids: Iterable[str], kind: str, message: str) -> None:
        self.deliver([RequestFailed(one, kind, message) for one in request_ids])

    async def idle(self, within_s: float) -> None:
        """Wait until no door has a request here, `within_s` seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._door_of:
                    self._left.clear()
                    await self._left.wait()

    async def heard(self) -> None:
        """Wait until every door that is not gone has fetched and acknowledged all there was for
        it."""
        for name, door in tuple(self._doors.items()):
            while name in self._doors and not door.outbox.is_empty:
                door.fetched.clear()
                await door.fetched.wait()

    async def poll(self, name: str, acknowledged: int, wait_s: float) -> DeltaBatch:
        """Everything since batch `acknowledged`, as soon as there is some, or an empty batch.

        Raises ShardLost where the door was taken for gone, and its requests with it.
        """
        clock = asyncio.get_running_loop().time
        door = self._heard(name, clock())
        door.outbox.acknowledge(acknowledged)
        door.fetched.set()
        door.polling += 1
        try:
            if not door.outbox.has_news(acknowledged):
                door.news.clear()
                async with asyncio.timeout(wait_s):
                    await door.news.wait()
        except TimeoutError:
            pass
        finally:
            door.polling -= 1
            door.last_heard = clock()
        return door.outbox.take(acknowledged)

    def sweep(self, now: float) -> tuple[str, ...]:
        """Forget the doors that are gone; returns the requests that nobody waits for now."""
        gone = [name for name, door in self._doors.items() if self._is_gone(door, now)]
        popped = [self._doors.pop(name) for name in gone]
        for door in popped:
            door.fetched.set()
        orphans = [one for door in popped for one in door.requests]
        self.leave(orphans)
        self._gone.update(dict.fromkeys(gone))
        while len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)
        return tuple(orphans)

    def verify(self) -> None:
        """Raise LedgerBroken unless the doors' requests and the index say the same."""
        listed = {(one, id(door)) for door in self._doors.values() for one in door.requests}
        indexed = {(one, id(door)) for one, door in self._door_of.items()}
        if listed != indexed:
            raise LedgerBroken(f"doors hold {len(listed)} requests, the index {len(indexed)}")

    def _heard(self, name: str, now: float) -> Door:
        """A name that is gone never comes back rightly: a door takes a new one for each channel."""
        if name in self._gone:
            raise ShardLost("the door was silent for too long and has been forgotten")
        door = self._doors.setdefault(name, Door(now))
        door.last_heard = now
        return door

    def _is_gone(self, door: Door, now: float) -> bool:
        silent = not door.polling and now - door.last_heard > self._timeout_s
        return silent or door.outbox.backlog > self._max_backlog
