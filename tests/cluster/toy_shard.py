"""A batcher on a modelled device, stepped by hand, whose books tests close at their end."""

from __future__ import annotations

import math
from collections.abc import Callable

from cluster.batching import Batcher
from cluster.batching_config import BatchingConfig
from cluster.blocks import BlockPool
from cluster.folder_tier import FolderTier
from cluster.host_tier import HostTier
from cluster.messages import FinishReason, TokenDelta
from cluster.pacing import WORTHWHILE
from cluster.steps import StepPlan
from cluster.watermark import OFF, Watermark
from tests.cluster.paged_memory import PagedMemory, alone, assignment

MAX_MODEL_LEN = 32
BLOCK_SIZE = 4

MakeShard = Callable[..., "ToyShard"]
Output = tuple[tuple[int, ...], FinishReason | None]


class ToyShard:
    """`pages` of 4 tokens, `slots` of host memory and `files`; `context` is the most of a sequence.

    Files are written and read when `work_on_files` says so.
    """

    def __init__(
        self,
        pages: int = 64,
        seqs: int = 8,
        budget: int = 64,
        prefix_caching: bool = True,
        context: int = MAX_MODEL_LEN,
        slots: int = 0,
        watermark: Watermark = OFF,
        files: int = 0,
        loads: float = math.inf,
        guesses: int = 0,
        worth: int = WORTHWHILE,
    ) -> None:
        host = HostTier(slots, FolderTier(files))
        self.pool = BlockPool(pages, BLOCK_SIZE, prefix_caching, host)
        config = BatchingConfig(
            max_num_seqs=seqs, max_batch_tokens=budget, prompt_lookup_tokens=guesses
        )
        self.batcher = Batcher(self.pool, config, context, watermark, loads, worth)
        self.memory = PagedMemory(BLOCK_SIZE)
        self.deltas: list[TokenDelta] = []

    def plan(self) -> StepPlan:
        plan = self.batcher.plan()
        assert plan is not None
        return plan

    def step(self) -> list[tuple[str, int, int]]:
        """One step; its chunks as (request, choice, tokens)."""
        plan = self.plan()
        self.settle(plan)
        return [(c.sequence.request.request_id, c.sequence.choice, c.count) for c in plan.chunks]

    def settle(self, plan: StepPlan) -> list[TokenDelta]:
        deltas = self.batcher.settle(plan, self.memory.compute(plan))
        self.deltas += deltas
        self.batcher.verify()
        return deltas

    def work_on_files(self, goes_well: bool = True) -> None:
        """All that is ordered up to now."""
        for order in self.pool.drain_orders():
            self.pool.settle(self.memory.work_on(order, goes_well))

    def finish(self) -> None:
        while self.batcher.has_work:
            self.step()

    def output(self, request_id: str, choice: int = 0) -> Output:
        mine = [d for d in self.deltas if (d.request_id, d.choice) == (request_id, choice)]
        tokens = tuple(token for delta in mine for token in delta.tokens)
        return tokens, mine[-1].finish if mine else None

    def first_delta(self, request_id: str, choice: int = 0) -> TokenDelta:
        mine = [d for d in self.deltas if (d.request_id, d.choice) == (request_id, choice)]
        return mine[0]

    def close(self) -> None:
        """End all there is; raise LedgerBroken unless the books balance and nobody holds pages."""
        for held in self.batcher.held():
            self.batcher.cancel(held.request_id)
        self.batcher.verify()
        self.pool.verify([])


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple((seed * 7 + position * position) % 11 for position in range(length))


def expected(
    prompt: tuple[int, ...], choice: int = 0, max_tokens: int = 4, context: int = MAX_MODEL_LEN
) -> Output:
    request = assignment("alone", prompt, max_tokens).request
    return alone(request, choice, context)
