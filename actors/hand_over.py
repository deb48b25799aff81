"""Sequences move: their new shard fetches what the old one has computed of them.

What is fetched becomes cached pages of the new shard before the request reaches its engine, where
it finds them as it would any prefix. So whatever goes wrong on the way costs time and nothing else:
what did not come is computed. All of this lives on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ray.exceptions import RayError

from actors.engine_thread import EngineThread, Outcome
from actors.naming import ActorAddress
from actors.parcels import Layout, Parcel, intact, pack
from cluster.config import ModelConfig
from cluster.errors import LedgerBroken, ShoalError
from cluster.failover import original_id
from cluster.hand_over import LONGEST_S, Worth, wanted_pages
from cluster.messages import Assignment, PageHash, ShardRef
from cluster.stats import HandOverStats

if TYPE_CHECKING:  # importing the engine imports torch, which the shard's owner has no use for
    from actors.engine.engine import Engine
    from actors.engine.transfer import PageTransfer

T = TypeVar("T")

Ask = Callable[[Layout, tuple[PageHash, ...]], Awaitable[Parcel]]
"""Asks the shard that leaves for these pages."""

PARCEL_BYTES = 32 * 2**20
"""At most in one parcel, and so at once in a step's way: an engine keeps 2.4 GB in a second."""

PARCELS_AT_ONCE = 4
"""On their way to one shard; further ones wait."""

logger = logging.getLogger(__name__)


class Intake:
    """Takes requests in at the engine; those that come from a shard that leaves, with their pages.

    However a fetch ends, the request is then at the engine, and there only: a cancel ends it early.
    """

    def __init__(self, model: ModelConfig, namespace: str, engine: EngineThread) -> None:
        self._hands_over = model.hands_over
        self._block_size = model.cache.block_size
        self._namespace = namespace
        self._engine = engine
        self._worth = Worth()
        self._fetches: dict[str, tuple[Assignment, asyncio.Task[None]]] = {}
        self._on_their_way = asyncio.Semaphore(PARCELS_AT_ONCE)
        self._stats = HandOverStats()

    def admit(self, assignment: Assignment) -> None:
        """The engine gets it at once, or when its pages are here or will not come."""
        if assignment.source is None or not self._hands_over:
            self._engine.admit(assignment)
            return
        request_id = assignment.request.request_id
        task = asyncio.create_task(self._fetch(assignment, assignment.source))
        self._fetches[request_id] = assignment, task
        task.add_done_callback(lambda _: self._pass_on(request_id))

    def cancel(self, request_id: str, choice: int | None) -> None:
        """End one choice of a request, or all."""
        self._pass_on(request_id)
        self._engine.cancel(request_id, choice)

    def let_go(self, request_ids: Iterable[str]) -> asyncio.Future[frozenset[str]]:
        """End these; the future tells all requests that had a page which is of use elsewhere."""
        useful = self._engine.ask(lambda engine: engine.with_pages())
        for request_id in request_ids:
            self.cancel(request_id, None)
        return asyncio.wrap_future(useful)

    def fetching(self) -> frozenset[str]:
        """The requests that are here and not at the engine yet."""
        return frozenset(self._fetches)

    async def give(self, layout: Layout, hashes: tuple[PageHash, ...]) -> Parcel:
        """Those of these pages that are here; none in another layout."""
        names, data = await self._ask(lambda pages: pages.give(layout, hashes))
        given = self._stats.pages_given + len(names)
        self._stats = replace(self._stats, pages_given=given)
        return await asyncio.to_thread(pack, layout, names, data)

    def enter(self, outcome: Outcome) -> None:
        """What a turn of the engine tells of its speed."""
        prefilling = outcome.progress.prefilling
        if prefilling.tokens:
            self._worth.prefilled(prefilling.tokens, prefilling.seconds)

    def stats(self) -> HandOverStats:
        return replace(self._stats, fetching=len(self._fetches))

    def verify(self, at_doors: frozenset[str]) -> None:
        """Raise LedgerBroken where something is fetched that no door waits for."""
        unowned = self.fetching() - at_doors
        if unowned:
            raise LedgerBroken(f"pages of {len(unowned)} requests are fetched for nobody")

    def _pass_on(self, request_id: str) -> None:
        """The engine gets it now, unless it has it."""
        assignment, task = self._fetches.pop(request_id, (None, None))
        if assignment is not None and task is not None:
            task.cancel()
            self._engine.admit(assignment)

    async def _fetch(self, assignment: Assignment, source: ShardRef) -> None:
        request_id = original_id(assignment.request.request_id)
        try:
            async with asyncio.timeout(LONGEST_S):
                shard = await ActorAddress(source.actor, self._namespace).look_up()
                try:
                    pages = partial(shard.pages.remote, source.incarnation)
                    await self._fetch_from(pages, assignment)
                finally:
                    shard.handed_over.remote(source.incarnation, (request_id,))
        except (RayError, ShoalError, TimeoutError) as error:
            why = str(error) or "it took longer than to compute them"
            logger.warning("pages of %s do not come from %s: %s", request_id, source.shard, why)

    async def _fetch_from(self, ask: Ask, assignment: Assignment) -> None:
        """Raises TimeoutError where the pages, all together, take too long."""
        chain = wanted_pages(assignment, self._block_size)
        layout, lacking = await self._ask(lambda pages: (pages.layout, pages.lacking(chain)))
        async with asyncio.timeout(self._worth.patience_s(len(lacking), layout.size)):
            while await self._fetch_parcel(ask, layout, chain):
                pass

    async def _fetch_parcel(self, ask: Ask, layout: Layout, chain: tuple[PageHash, ...]) -> bool:
        """The next pages of `chain`, where that pays; whether all these are here then.

        What is lacking is asked when it is its turn, since others fetch, and compute, what this
        request shares with theirs.
        """
        clock = asyncio.get_running_loop().time
        async with self._on_their_way:
            lacking = await self._ask(lambda pages: pages.lacking(chain))
            if not self._worth.pays(len(lacking), layout.size, clock()):
                return False
            names = lacking[: self._worth.at_once(PARCEL_BYTES, layout.size, clock())]
            parcel = await self._timed(ask, layout, names)
            sound = await asyncio.to_thread(intact, parcel, layout)
            hashes, data = parcel.hashes[:sound], parcel.data[:sound]
            kept, absent = await self._ask(
                lambda pages: (pages.take(chain, hashes, data), pages.lacking(names))
            )
        self._count(parcel, sound, kept)
        return not absent

    async def _timed(self, ask: Ask, layout: Layout, names: tuple[PageHash, ...]) -> Parcel:
        """These pages, or those of them that are there, and how long it took noted."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            parcel = await ask(layout, names)
        except asyncio.CancelledError:  # mostly since they take too long
            self._worth.gave_up(len(names) * layout.size.nbytes, clock() - began, clock())
            raise
        if parcel.hashes:
            self._worth.fetched(parcel.data.nbytes, clock() - began, clock())
        return parcel

    def _count(self, parcel: Parcel, sound: int, kept: int) -> None:
        refused, stats = len(parcel.hashes) - sound, self._stats
        if refused and not stats.pages_refused:
            logger.error("pages arrived that are not what they were; they are computed again")
        self._stats = replace(
            stats,
            pages_received=stats.pages_received + kept,
            pages_refused=stats.pages_refused + refused,
            bytes_received=stats.bytes_received + parcel.data.nbytes,
        )

    async def _ask(self, question: Callable[[PageTransfer], T]) -> T:
        """Of the engine's pages, between two steps."""
        return await asyncio.wrap_future(self._engine.ask(lambda one: question(_transfer(one))))


def _transfer(engine: Engine) -> PageTransfer:
    if engine.transfer is None:
        raise LedgerBroken("pages were asked of an engine that hands none over")
    return engine.transfer
