"""The engine of one shard: the books of its sequences and the model that computes them.

`Engine.step` is the loop's body. Everything before it in this file only puts the two together.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NoReturn

import torch
from transformers import PreTrainedModel

from actors.engine.compiled import Wish, program_wish
from actors.engine.exactness import prove_program
from actors.engine.fitting import Fitted, fit
from actors.engine.folder_pages import FolderPages, open_folder
from actors.engine.gang import Gang
from actors.engine.graphs import fixed_steps
from actors.engine.loader import load_model
from actors.engine.lockstep import LeadingForward, follow
from actors.engine.memory import give_back, keep_freed
from actors.engine.pace import ThreadPace
from actors.engine.parts import load_part
from actors.engine.runner import Forward, ModelRunner
from actors.engine.totals import joined
from actors.engine.transfer import PageTransfer, layout_of
from cluster.batching import Batcher, Progress
from cluster.blocks import BlockPool
from cluster.config import ModelConfig
from cluster.errors import InvalidRequest, UnsupportedModel
from cluster.findable import PageEvents
from cluster.host_tier import HostTier
from cluster.messages import Assignment, PageHash, RequestFailed, TokenDelta
from cluster.reports import HeldRequest, ShardCapacity
from cluster.stats import EngineStats
from cluster.watermark import OFF, marks

REST_S = 0.05
"""Seconds to wait for files with nothing else to do, before the inbox is looked at."""

logger = logging.getLogger(__name__)


class Engine:
    """Continuous batching over one model on one device. Not thread-safe: one loop owns it.

    `wish` names the compiled program that should replace the model, if one should. Pages come and
    go by `transfer`, where the model's shards can give each other any, and to files and back by
    `folder`, where it has one.
    """

    def __init__(
        self,
        runner: ModelRunner,
        prove: Callable[[Forward], None],
        pool: BlockPool,
        batcher: Batcher,
        capacity: ShardCapacity,
        transfer: PageTransfer | None = None,
        folder: FolderPages | None = None,
    ) -> None:
        self.capacity = capacity
        self.transfer = transfer
        self.wish: Wish | None = None
        self._runner = runner
        self._prove: Callable[[Forward], None] | None = prove
        self._pool = pool
        self._batcher = batcher
        self._folder = folder

    @property
    def has_work(self) -> bool:
        return self._batcher.has_work

    @property
    def rest_s(self) -> float | None:
        """How long to rest without work before a step, which enters what became of files."""
        return REST_S if self._folder is not None and self._folder.busy else None

    def remove_files(self) -> None:
        """At its end, and for any thread: the step under way may hang."""
        if self._folder is not None:
            self._folder.close()

    def admit(self, assignment: Assignment) -> None:
        """Take a request in.

        Raises, having changed nothing, InvalidRequest for a token the model does not have, since
        on the device it would end everybody's step, and what `Batcher.admit` raises.
        """
        _check_tokens(assignment, self._runner.vocab_size)
        self._batcher.admit(assignment)

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        """End one choice of a request, or all; their pages are free at once."""
        self._batcher.cancel(request_id, choice)

    def step(self) -> tuple[TokenDelta, ...]:
        """Plan, compute, settle. Without work, nothing; where all wait for files, wait a moment.

        If it raises (a device error, or books that do not add up), the engine is finished: pages
        may be half written, so no sequence on it can go on and no prefix may be reused. The shard
        must die; its sequences go on elsewhere, from their tokens.
        """
        plan = self._batcher.plan()
        if plan is None:
            self._exchange_files(REST_S if self.has_work else 0.0)
            return ()
        began = perf_counter()
        result = self._runner.execute(plan)
        deltas = self._batcher.settle(plan, result, perf_counter() - began)
        self._exchange_files()
        return tuple(deltas)

    def computing(self) -> tuple[str, ...]:
        """Ids of the requests in the steps under way; after a step that raised, those in it."""
        return self._batcher.computing()

    def adopt(self, program: Forward) -> None:
        """Compute by `program` from the next step on, and let the model's own weights go.

        Unless its logits are not the model's: then it is left alone, and the log says so.
        """
        self.wish = None
        if self._prove is None:
            return
        try:
            self._prove(program)
        except (UnsupportedModel, RuntimeError) as error:  # torch's, where it cannot run here
            logger.warning("serving without the compiled program: %s", error)
        else:
            self._runner.use(program)
            self._prove = None
            give_back()

    def held(self) -> tuple[HeldRequest, ...]:
        """All requests that are here, oldest first."""
        return self._batcher.held()

    def with_pages(self) -> frozenset[str]:
        """Ids of the requests of which a page could be given away now."""
        return self._batcher.with_pages()

    def findable(self) -> tuple[PageHash, ...]:
        """Hashes of all pages a prompt could reuse now."""
        return self._pool.findable()

    def drain_progress(self) -> Progress:
        """What started and ended since the last call, and how fast prompts were computed."""
        return self._batcher.drain_progress()

    def drain_page_events(self) -> PageEvents:
        """Pages that became findable and that no longer are, since the last call."""
        return self._pool.drain_events()

    def drain_refused(self) -> tuple[RequestFailed, ...]:
        """The requests that ended because they cannot be computed, since the last call."""
        return self._batcher.drain_refused()

    def stats(self) -> EngineStats:
        compiled, device_s = self._prove is None, self._runner.device_s
        return joined(self._batcher.stats(), self._pool.stats(), compiled, device_s)

    def verify(self) -> None:
        """Raise LedgerBroken unless the books of sequences and pages agree."""
        self._batcher.verify()

    def _exchange_files(self, wait_s: float = 0.0) -> None:
        if self._folder is not None:
            self._folder.exchange(self._pool, wait_s)


def load_engine(
    folder: Path,
    model: ModelConfig,
    device: torch.device,
    programs: Path | None = None,
    gang: Gang | None = None,
) -> Engine:
    """Load the weights of `folder` and make an engine that is ready to step.

    A program found in the folder `programs` is adopted, one that is missing there is wished for;
    neither by rank 0 of a `gang`, whose other ranks must be in `follow_engine`.

    Raises ModelUnavailable for weights that cannot be loaded, UnsupportedModel for a family that
    cannot be served exactly, ConfigError for lengths and sizes that do not go together.
    """
    loaded = _load(folder, model, device, gang)
    engine = build_engine(loaded, model, gang)
    may_compile = model.compile == "auto" and not model.deterministic
    if programs is not None and gang is None and may_compile:
        engine.wish = program_wish(folder, loaded, programs)
    if engine.wish is not None and engine.wish.path.exists():
        program = engine.wish.fulfil()
        if program is not None:
            engine.adopt(program)
    return engine


def follow_engine(
    folder: Path, model: ModelConfig, device: torch.device, gang: Gang, threads: Callable[[], int]
) -> NoReturn:
    """Be another rank than 0 of the engine that rank 0 loads: its part of each step, for ever,
    with as many `threads` as there are at the time.

    Raises as `load_engine`, and ShardLost when a rank is lost.
    """
    loaded = _load(folder, model, device, gang)
    follow(loaded, fit(loaded, model, gang).cache, gang, threads)


def _load(
    folder: Path, model: ModelConfig, device: torch.device, gang: Gang | None
) -> PreTrainedModel:
    if gang is not None:
        return load_part(folder, model.dtype, device, gang)
    return load_model(folder, model.dtype, device, attn_implementation="eager")


def build_engine(loaded: PreTrainedModel, model: ModelConfig, gang: Gang | None = None) -> Engine:
    """An engine for a model in memory, in eval mode; the rest as in `load_engine`."""
    fitted = fit(loaded, model, gang)
    runner = ModelRunner(loaded, fitted.cache, _pace(loaded, model, gang))
    if gang is not None:
        runner.use(LeadingForward(loaded, gang))
    elif steps := fixed_steps(loaded, fitted, model):
        runner.use(steps)
    cache, capacity = model.cache, fitted.capacity
    folder = open_folder(model, fitted, runner.host)
    host = HostTier(fitted.host_slots, folder.ledger() if folder else None)
    pool = BlockPool(capacity.total_pages, capacity.block_size, cache.prefix_caching, host)
    watermark = marks(cache, capacity.total_pages) if host.slots else OFF
    transfer = None
    if model.hands_over:
        layout = layout_of(loaded, fitted.layers, model)
        transfer = PageTransfer(pool, fitted.cache, runner.host, layout)
    keep_freed()
    return Engine(
        runner,
        partial(prove_program, loaded, fitted.layers),
        pool,
        Batcher(
            pool, fitted.batching, capacity.max_model_len, watermark, _loads(model, runner, fitted)
        ),
        capacity,
        transfer,
        folder,
    )


def _loads(model: ModelConfig, runner: ModelRunner, fitted: Fitted) -> float:
    """Pages that a step may bring back beside what it computes."""
    if not fitted.host_slots:
        return math.inf
    return runner.host.loads_within(model.batching.max_load_s)


def _pace(loaded: PreTrainedModel, model: ModelConfig, gang: Gang | None) -> ThreadPace | None:
    """None where nothing is gained, or where how a product is shared out must not change.

    Nor is there one in a gang, where a step is as slow as the other ranks, who try nothing.
    """
    alone = loaded.device.type == "cpu" and gang is None
    return ThreadPace() if alone and not model.deterministic else None


def _check_tokens(assignment: Assignment, vocab_size: int) -> None:
    request, outputs = assignment.request, assignment.outputs().values()
    biased = [token for token, _ in request.sampling.logit_bias]
    known = [("prompt", request.prompt), *(("output", output) for output in outputs)]
    for param, tokens in (*known, ("logit_bias", biased)):
        if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
            raise InvalidRequest(f"token ids must be from 0 to {vocab_size - 1}", param)
