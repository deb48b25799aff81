"""The door: where a client's request meets the cluster, and its tokens come back.

A door asks the router for a lease, hands the request to the leased shard over the channel that it
keeps open there, and yields what the shard computes. Whatever ends the request early, the door
says so, since nobody else can know that a client has gone. Until the first token is out, a shard
that dies costs the client nothing but time: the door asks for another lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from actors.channel import TokenStream
from cluster.blocks import page_hashes
from cluster.config import ModelConfig
from cluster.errors import (
    BudgetExhausted,
    CapacityError,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    QueueFull,
    ShardLost,
    ShoalError,
    StaleLease,
)
from cluster.messages import (
    Assignment,
    Decision,
    Lease,
    Refusal,
    RefusalKind,
    Request,
    Submission,
    TokenDelta,
)
from deployments.auth import tenant_salt

PLACEMENT_ATTEMPTS = 5
REPLACE_DELAY_S = 0.2
"""Before a second lease, and doubled before each one after it; the fleet sees a death, and tells
the scheduler, within the first."""

_CAPACITY_ERRORS: dict[RefusalKind, type[CapacityError]] = {
    RefusalKind.QUEUE_FULL: QueueFull,
    RefusalKind.NOT_READY: NotReady,
    RefusalKind.DEADLINE: DeadlineExceeded,
    RefusalKind.QUEUE_TIMEOUT: CapacityError,
    RefusalKind.OVER_BUDGET: BudgetExhausted,
}


class LeaseSource(Protocol):
    """Where leases come from: the routing deployment, as a door sees it."""

    async def place(self, submission: Submission) -> Decision:
        """A lease or a refusal, once the scheduler has decided; cancelling it withdraws."""

    def withdraw(self, request_id: str) -> None:
        """The request, or the lease it got, is no longer wanted."""


class ShardStreams(Protocol):
    """The way to the shards, as a door sees it: `actors.channel.Channels`."""

    def open(self, assignment: Assignment) -> TokenStream:
        """Send the request where its lease says and listen for its tokens."""
        ...

    async def close(self) -> None:
        """Cancel what is open and leave every shard."""


class Door:
    """One process's way into the cluster, for any number of requests at once."""

    def __init__(
        self,
        leases: LeaseSource,
        channels: ShardStreams,
        models: Iterable[ModelConfig],
        replace_delay_s: float = REPLACE_DELAY_S,
    ) -> None:
        self._leases = leases
        self._channels = channels
        self._replace_delay_s = replace_delay_s
        self._block_size = {model.name: model.cache.block_size for model in models}
        self._streams: dict[str, TokenStream] = {}

    async def generate(self, request: Request) -> AsyncGenerator[TokenDelta, None]:
        """The deltas of every choice of `request`, those of one choice in order.

        Closing the generator cancels what is not finished. Raises InvalidRequest or CapacityError
        when refused, FaultError when the cluster failed it.
        """
        lost: ShoalError = ShardLost("no shard was tried")
        for attempt in range(PLACEMENT_ATTEMPTS):
            if attempt:
                await asyncio.sleep(self._replace_delay_s * 2 ** (attempt - 1))
            async with aclosing(self._attempt(request, attempt)) as deltas:
                try:
                    first = await anext(deltas, None)
                except (ShardLost, StaleLease) as error:
                    lost = error
                    continue
                if first is not None:  # else this door was left before there was one
                    yield first
                async for delta in deltas:
                    yield delta
                return
        raise lost

    def stop(self, request_id: str, choice: int) -> None:
        """This choice needs no more tokens: the text layer found a stop string."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.cancel(choice)

    async def close(self) -> None:
        """Leave every shard; their sequences of this door are cancelled."""
        await self._channels.close()

    async def _attempt(self, request: Request, number: int) -> AsyncGenerator[TokenDelta, None]:
        """One lease and its deltas; leaving early tells the shard, or the scheduler."""
        asked = replace(request, request_id=_attempt_id(request, number))
        salt = tenant_salt(request.tenant)
        lease = await self._lease(self._submission(asked, salt))
        stream = self._channels.open(Assignment(lease, asked, salt))
        self._streams[request.request_id] = stream
        try:
            async for delta in stream:
                yield delta
        except ShoalError:  # the shard may not hold it, and would then never report its end
            self._leases.withdraw(asked.request_id)
            raise
        finally:
            del self._streams[request.request_id]
            if not stream.cancel():
                self._leases.withdraw(asked.request_id)

    async def _lease(self, submission: Submission) -> Lease:
        decision = await self._leases.place(submission)
        if isinstance(decision, Refusal):
            raise _refused(decision)
        return decision

    def _submission(self, request: Request, salt: bytes) -> Submission:
        return Submission(
            request_id=request.request_id,
            router="",  # the router signs when it passes the submission on
            model=request.model,
            tenant=request.tenant,
            sla=request.sla,
            prompt_tokens=len(request.prompt),
            max_tokens=request.stopping.max_tokens,
            choices=request.choices,
            page_hashes=page_hashes(request.prompt, self._block_size[request.model], salt),
            deadline_s=request.deadline_s,
        )


def _attempt_id(request: Request, number: int) -> str:
    """Each attempt is a request of its own to the scheduler: it may still hold the one before."""
    return f"{request.request_id}~{number}" if number else request.request_id


def _refused(refusal: Refusal) -> ShoalError:
    if refusal.kind is RefusalKind.NEVER_FITS:
        return InvalidRequest(refusal.message, param="max_tokens")
    return _CAPACITY_ERRORS[refusal.kind](refusal.message, refusal.retry_after_s)
