"""The door's end of the data plane: one multiplexed stream for each (door, shard) pair.

A long poll brings everything the shard has for this door since the last one, one message for all
its requests, and acknowledges what came before. The measurement behind the choice stands
in docs/decisions/0001-token-channel.md. All of this lives on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import uuid4

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

from actors.channel_timing import ChannelTiming
from actors.naming import ActorAddress
from actors.outbox import Delta
from actors.tasks import cancel_all, first_to_end
from actors.token_stream import TokenStream
from cluster.errors import Displaced, FaultError, NotReady, ShardLost
from cluster.messages import Assignment, DeltaBatch, RequestFailed, ShardRef

T = TypeVar("T")

logger = logging.getLogger(__name__)

REMEMBERED = 1024
"""Lives of shards that a door shuns at most."""


class TokenChannel:
    """All requests of one door on one life of one shard.

    Opens and cancels made in one tick of the event loop leave as one message, the next one after
    it was taken in: Ray does not keep the order of calls to an async actor.
    """

    def __init__(self, shard: ShardRef, namespace: str, door: str, timing: ChannelTiming) -> None:
        # Each channel is a door of its own to the shard, so that batch numbers begin anew.
        self._door = f"{door}:{uuid4().hex[:8]}"
        self._address = ActorAddress(shard.actor, namespace)
        self._timing = timing
        self._shard: Any = None
        self._streams: dict[str, TokenStream] = {}
        self._assigns: dict[str, Assignment] = {}
        self._held: set[str] = set()
        self._cancels: list[tuple[str, int | None]] = []
        self._outgoing = asyncio.Event()
        self._sending = asyncio.Lock()
        self.shunned_s = 0.0
        self.closed = False
        self.task = asyncio.get_running_loop().create_task(self._run())

    def open(self, assignment: Assignment, held: bool = False) -> TokenStream:
        """Send the request to the shard, at once unless it is to be `held` back until the stream's
        `send`, and listen for its tokens."""
        stream = TokenStream(assignment, self.cancel, self.send)
        self._streams[stream.request_id] = stream
        self._assigns[stream.request_id] = assignment
        self._held.add(stream.request_id)
        if not held:
            self.send(stream.request_id)
        return stream

    def send(self, request_id: str) -> None:
        """Hold the request back no more."""
        self._held.discard(request_id)
        self._outgoing.set()

    def cancel(self, request_id: str, choice: int | None = None) -> bool:
        """Tell the shard to end one choice, or all, of a request that was opened here.

        False, with nothing to tell, where the request had not left yet.
        """
        if choice is None:
            self._streams.pop(request_id, None)
            self._held.discard(request_id)
            if self._assigns.pop(request_id, None) is not None:
                return False
        self._cancels.append((request_id, choice))
        self._outgoing.set()
        return True

    async def close(self) -> None:
        """Cancel what is open and end the channel; no task is left."""
        for stream in tuple(self._streams.values()):
            stream.cancel()
        if self._shard is not None and not self.closed:
            with contextlib.suppress(RayError, TimeoutError):
                async with asyncio.timeout(self._timing.patience_s):
                    await self._flush()
        await cancel_all(self.task)

    async def _run(self) -> None:
        """Serve until there is nothing to do. What the end means for who is left: the shard died
        with it, unless it has not left for the shard yet, or the shard lives and has forgotten us.
        """
        kind: type[FaultError] = Displaced
        reason = "the channel was closed"
        try:
            self._shard = await self._address.look_up()
            await first_to_end(self._send(), self._poll(), self._audit())
        except NotReady as error:
            reason = error.message
        except RayTaskError as error:
            reason = f"{self._address.name} lets its requests go: {error.cause}"
        except (RayError, TimeoutError) as error:
            kind, reason = ShardLost, f"{self._address.name} is lost"
            self.shunned_s = math.inf if isinstance(error, ActorDiedError) else self._timing.shun_s
            logger.warning("%s: %s", reason, str(error) or "it does not answer")
        finally:
            self.closed = True
            for request_id in tuple(self._streams):
                fault = Displaced if request_id in self._assigns else kind
                self._dispatch(RequestFailed(request_id, fault.__name__, reason))

    async def _send(self) -> None:
        while True:
            await self._outgoing.wait()
            await self._flush()

    async def _flush(self) -> None:
        async with self._sending:
            self._outgoing.clear()
            due = [one for one in self._assigns if one not in self._held]
            if any(self._assigns[one].suspect for one in due):
                # A shard that is lost already would otherwise be laid at its door.
                await self._patiently(lambda: self._shard.identity.remote())
            assigns = tuple(self._assigns.pop(one) for one in due if one in self._assigns)
            cancels = tuple(one for one in self._cancels if one[0] not in self._assigns)
            self._cancels = [one for one in self._cancels if one not in cancels]
            if assigns:
                await self._patiently(lambda: self._shard.assign.remote(self._door, assigns))
            if cancels:
                await self._patiently(lambda: self._shard.cancel.remote(self._door, cancels))

    async def _audit(self) -> None:
        """Say what is wanted, while no request and no cancel is on its way."""
        while True:
            await asyncio.sleep(self._timing.audit_s)
            async with self._sending:
                await self._patiently(self._say_what_is_wanted)

    def _say_what_is_wanted(self) -> Awaitable[None]:
        sent = tuple(one for one in self._streams if one not in self._assigns)
        said: Awaitable[None] = self._shard.wants.remote(self._door, sent)
        return said

    async def _poll(self) -> None:
        """Until there was nothing to listen for during `idle_s`."""
        clock = asyncio.get_running_loop().time
        acknowledged, last_busy = 0, clock()
        while self._streams or clock() - last_busy < self._timing.idle_s:
            if self._streams:
                last_busy = clock()
            batch = await self._next_batch(acknowledged)
            if batch.number > acknowledged:
                acknowledged = batch.number
                for delta in batch.deltas:
                    self._dispatch(delta)
        self.closed = True

    async def _next_batch(self, acknowledged: int) -> DeltaBatch:
        """Raises TimeoutError where the shard is silent: one that is stopped, or whose node is out
        of reach, fails no call for as long as Ray takes it to live."""
        async with asyncio.timeout(self._timing.silence_s):
            return await self._patiently(
                lambda: self._shard.deltas.remote(self._door, acknowledged)
            )

    def _dispatch(self, delta: Delta) -> None:
        stream = self._streams.get(delta.request_id)
        if stream is not None:
            stream.put(delta)
            if stream.is_over:
                del self._streams[delta.request_id]

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call that got no answer; the shard takes each of ours twice without harm."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._timing.patience_s
        while True:
            try:
                return await call()
            except ActorUnavailableError:
                if clock() > deadline:
                    raise
            await asyncio.sleep(self._timing.retry_s)


class Channels:
    """The channels of one door, by shard and life; each begins with its first request.

    A life that was lost is shunned: the scheduler may take a while to hear of it, and a request
    that is leased there again would otherwise be risked, and blamed, for nothing.
    """

    def __init__(self, namespace: str, door: str, timing: ChannelTiming | None = None) -> None:
        self._namespace = namespace
        self._door = door
        self._timing = timing or ChannelTiming()
        self._channels: dict[ShardRef, TokenChannel] = {}
        self._shunned: OrderedDict[ShardRef, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._channels)

    def open(self, assignment: Assignment, held: bool = False) -> TokenStream:
        """Send the request where its lease says and listen for its tokens. One that is `held` back
        leaves at the stream's `send`; a shard that is lost by then never had it."""
        shard = assignment.lease.shard
        if self._shunned.get(shard, 0.0) > asyncio.get_running_loop().time():
            return _displaced(assignment)
        return self._channel(shard).open(assignment, held)

    async def close(self) -> None:
        """Cancel what is open and end every channel."""
        await asyncio.gather(*(channel.close() for channel in tuple(self._channels.values())))

    def _channel(self, shard: ShardRef) -> TokenChannel:
        channel = self._channels.get(shard)
        if channel is None or channel.closed:
            channel = TokenChannel(shard, self._namespace, self._door, self._timing)
            channel.task.add_done_callback(lambda _: self._forget(shard, channel))
            self._channels[shard] = channel
        return channel

    def _forget(self, shard: ShardRef, channel: TokenChannel) -> None:
        if self._channels.get(shard) is channel:
            del self._channels[shard]
        if channel.shunned_s:
            self._shunned[shard] = asyncio.get_running_loop().time() + channel.shunned_s
            self._shunned.move_to_end(shard)
            if len(self._shunned) > REMEMBERED:
                self._shunned.popitem(last=False)


def _displaced(assignment: Assignment) -> TokenStream:
    """The stream of a request that is not sent."""
    stream = TokenStream(assignment, lambda _request_id, _choice: False)
    reason = f"{assignment.lease.shard.shard} was lost a moment ago"
    stream.put(RequestFailed(stream.request_id, Displaced.__name__, reason))
    return stream
