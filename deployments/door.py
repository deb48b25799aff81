"""The door: where a client's request meets the cluster, and its tokens come back.

A door asks the router for a lease, hands the request to the leased shard over the channel that it
keeps open there, and yields what the shard computes. Whatever ends the request early, the door
says so, since nobody else can know that a client has gone. A shard that dies costs the client
nothing but time: prompt and transcript are all the state there is, so the door asks for another
lease, and the next shard goes on from them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from actors.token_stream import TokenStream
from cluster.blocks import page_hashes
from cluster.config import ShoalConfig
from cluster.errors import (
    BudgetExhausted,
    CapacityError,
    DeadlineExceeded,
    Drained,
    InvalidRequest,
    NotReady,
    QueueFull,
    ShoalError,
)
from cluster.failover import Recovery, Transcript, attempt_id
from cluster.messages import (
    Assignment,
    Decision,
    Lease,
    Refusal,
    RefusalKind,
    Request,
    ShardRef,
    Submission,
    TokenDelta,
)
from deployments.auth import tenant_salt

logger = logging.getLogger(__name__)

_CAPACITY_ERRORS: dict[RefusalKind, type[CapacityError]] = {
    RefusalKind.QUEUE_FULL: QueueFull,
    RefusalKind.NOT_READY: NotReady,
    RefusalKind.DEADLINE: DeadlineExceeded,
    RefusalKind.QUEUE_TIMEOUT: CapacityError,
    RefusalKind.OVER_BUDGET: BudgetExhausted,
    RefusalKind.ABANDONED: CapacityError,
}


class LeaseSource(Protocol):
    """Where leases come from: the routing deployment, as a door sees it."""

    async def place(self, submission: Submission) -> Decision:
        """A lease or a refusal, once the scheduler has decided; cancelling it withdraws."""

    def withdraw(self, request_id: str) -> None:
        """The request, or the lease it got, is no longer wanted."""


class ShardStreams(Protocol):
    """The way to the shards, as a door sees it: `actors.channel.Channels`."""

    def open(self, assignment: Assignment, held: bool = False) -> TokenStream:
        """Send the request where its lease says, at the stream's `send` where it is `held` back,
        and listen for its tokens."""
        ...

    async def close(self) -> None:
        """Cancel what is open and leave every shard."""


@dataclass(slots=True)
class _Flight:
    """One request on its way through any number of attempts; `stream` is that of the present, and
    `source` the shard that let it go and still has its pages."""

    request: Request
    recovery: Recovery
    transcript: Transcript
    attempts: int = 0
    stream: TokenStream | None = None
    source: ShardRef | None = None
    source_until: float = -math.inf

    def let_go(self, by: ShardRef, until: float) -> None:
        """The first that let it go has its pages, until then; those after it have hardly any."""
        if self.source is None:
            self.source, self.source_until = by, until

    def source_at(self, now: float) -> ShardRef | None:
        if now >= self.source_until:
            self.source = None
        return self.source

    def next_attempt(self, now: float) -> Request:
        """The request as it is asked for now. Each attempt has an id of its own: the scheduler
        may still hold the one before, and what a shard says of that one is heard by nobody."""
        number, self.attempts = self.attempts, self.attempts + 1
        name = attempt_id(self.request.request_id, number)
        return replace(self.request, request_id=name, deadline_s=self.recovery.deadline_s(now))

    def stop(self, choice: int) -> None:
        self.transcript.close(choice)
        if self.stream is not None:
            self.stream.cancel(choice)


class Door:
    """One process's way into the cluster, for any number of requests at once."""

    def __init__(
        self,
        leases: LeaseSource,
        channels: ShardStreams,
        config: ShoalConfig,
        uniform: Callable[[], float],
    ) -> None:
        """`uniform` gives numbers from [0, 1): chance, for pauses that differ."""
        self._leases = leases
        self._channels = channels
        self._config = config.failover
        self._hand_over_s = config.fleet.hand_over_s
        self._uniform = uniform
        self._block_size = {model.name: model.cache.block_size for model in config.models}
        self._unwatched = {model.name: asyncio.Lock() for model in config.models}
        self._trials = {model.name: asyncio.Lock() for model in config.models}
        self._flights: dict[str, _Flight] = {}

    async def generate(self, request: Request) -> AsyncGenerator[TokenDelta, None]:
        """The deltas of every choice of `request`, those of one choice in order, each once.

        Closing the generator cancels what is not finished. Raises InvalidRequest or CapacityError
        when refused, FaultError when the cluster failed it for longer than `failover` allows.
        """
        clock = asyncio.get_running_loop().time
        flight = self._flights[request.request_id] = self._flight(request, clock())
        try:
            while flight.transcript:
                try:
                    async with aclosing(self._attempt(flight)) as deltas:
                        async for delta in deltas:
                            yield delta
                    return
                except ShoalError as error:
                    lost = error
                if flight.transcript:
                    await self._pause(flight, lost, clock())
        finally:
            del self._flights[request.request_id]

    def stop(self, request_id: str, choice: int) -> None:
        """This choice needs no more tokens: the text layer found a stop string."""
        flight = self._flights.get(request_id)
        if flight is not None:
            flight.stop(choice)

    async def close(self) -> None:
        """Leave every shard; their sequences of this door are cancelled."""
        await self._channels.close()

    def _flight(self, request: Request, now: float) -> _Flight:
        deadline_at = math.inf if request.deadline_s is None else now + request.deadline_s
        recovery = Recovery(request.request_id, self._config, self._uniform, deadline_at)
        return _Flight(request, recovery, Transcript(request.choices))

    async def _pause(self, flight: _Flight, lost: ShoalError, now: float) -> None:
        pause_s = flight.recovery.pause_s(lost, now)
        logger.info("%s asks for another shard: %s", flight.request.request_id, lost.message)
        await asyncio.sleep(pause_s)

    async def _attempt(self, flight: _Flight) -> AsyncGenerator[TokenDelta, None]:
        """One lease and its deltas; leaving early tells the shard, or the scheduler.

        Suspects of a model are tried one at a time, each until its first token. One that has a
        shard to watch does so while the others are tried. Of those that have not, only one at a
        time asks for a lease, since more would keep places that they cannot use yet.
        """
        clock = asyncio.get_running_loop().time
        async with AsyncExitStack() as trial:
            if flight.recovery.is_suspect and not flight.recovery.watch_s(clock()):
                await self._enter(self._unwatched, flight, trial)
            assignment = await self._assignment(flight, flight.next_attempt(clock()))
            request_id = assignment.request.request_id
            stream = flight.stream = self._channels.open(assignment, held=assignment.suspect)
            try:
                if assignment.suspect:
                    await self._send_in_turn(flight, stream, trial)
                async for delta in stream:
                    if flight.recovery.progressed():
                        flight.source = None
                        await trial.aclose()
                    if flight.transcript.enter(delta):
                        yield delta
            except ShoalError as error:
                if isinstance(error, Drained):
                    until = clock() + self._hand_over_s
                    flight.let_go(assignment.lease.shard, until)
                # The shard may not hold it, and would then never report its end.
                self._leases.withdraw(request_id)
                raise
            finally:
                flight.stream = None
                if not stream.cancel():
                    self._leases.withdraw(request_id)

    async def _send_in_turn(
        self, flight: _Flight, stream: TokenStream, trial: AsyncExitStack
    ) -> None:
        """Let the request leave once its shard has lived through the watch and the trial is its
        own. A stream that is over by then is not sent, and says why when it is read."""
        watch_s = flight.recovery.watch_s(asyncio.get_running_loop().time())
        with suppress(TimeoutError):
            async with asyncio.timeout(watch_s):
                await stream.ended()
        if not stream.is_over:
            # After the lease: whoever has the trial never waits for a place that another suspect,
            # which waits for the trial, has.
            await self._enter(self._trials, flight, trial)
        if not stream.is_over:
            stream.send()

    async def _enter(
        self, locks: dict[str, asyncio.Lock], flight: _Flight, trial: AsyncExitStack
    ) -> None:
        """Raises DeadlineExceeded where it passed by the time it was the request's turn."""
        await trial.enter_async_context(locks[flight.request.model])
        if flight.recovery.deadline_s(asyncio.get_running_loop().time()) == 0.0:
            raise DeadlineExceeded("its deadline passed while other suspects were tried", 1.0)

    async def _assignment(self, flight: _Flight, asked: Request) -> Assignment:
        salt = tenant_salt(asked.tenant)
        lease = await self._lease(self._submission(flight, asked, salt))
        flight.recovery.leased()
        emitted = flight.transcript.emitted() if flight.attempts > 1 else ()
        suspect = flight.recovery.is_suspect
        source = flight.source_at(asyncio.get_running_loop().time())
        return Assignment(lease, asked, salt, emitted, suspect, source)

    async def _lease(self, submission: Submission) -> Lease:
        decision = await self._leases.place(submission)
        if isinstance(decision, Refusal):
            raise _refused(decision)
        return decision

    def _submission(self, flight: _Flight, asked: Request, salt: bytes) -> Submission:
        """The measure of what is left: what is out counts as prompt, that of the longest choice,
        which is also the one whose pages may be cached somewhere."""
        block_size = self._block_size[asked.model]
        fresh = submission_of(asked, block_size, salt, flight.transcript.longest())
        return replace(fresh, choices=len(flight.transcript), goes_on=flight.recovery.is_admitted)


def submission_of(
    request: Request, block_size: int, salt: bytes, output: tuple[int, ...] = ()
) -> Submission:
    """The measure of a request of which `output` is there already, in pages of `block_size`."""
    known = request.prompt + output
    return Submission(
        request_id=request.request_id,
        router="",  # the router signs when it passes the submission on
        model=request.model,
        tenant=request.tenant,
        sla=request.sla,
        prompt_tokens=len(known),
        max_tokens=request.stopping.max_tokens - len(output),
        choices=request.choices,
        page_hashes=page_hashes(known, block_size, salt),
        deadline_s=request.deadline_s,
    )


def _refused(refusal: Refusal) -> ShoalError:
    if refusal.kind is RefusalKind.NEVER_FITS:
        return InvalidRequest(refusal.message, param="max_tokens")
    return _CAPACITY_ERRORS[refusal.kind](refusal.message, refusal.retry_after_s)
