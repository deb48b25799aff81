"""Steps of decodes as CUDA graphs: captured once for each of a few batch sizes, then replayed.

Layer by layer a small step is hundreds of kernels, each of which the host starts, and the GPU waits
for the host. A graph starts all of them at once. It always computes the same number of rows on the
same memory: a step of fewer rows is filled up with rows that write to the page that nobody owns,
and its numbers are copied to where the graph looks for them.

Where a row must come out the same whatever stands beside it (`InPlace.RAGGED_ROWS`), every step
goes this way, be it captured or not: matrix products of one size round each row alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from actors.engine.batch import Paths, StepBatch, find_step, lay_out, slots_of
from actors.engine.exactness import prove_steps
from actors.engine.fitting import Fitted
from actors.engine.kv_cache import KVCache
from actors.engine.layouts import Ints, Layout
from actors.engine.runner import Forward, PagedModel
from actors.engine.uploads import refill, upload
from actors.engine.varlen import pack, packed_size, table_of, unpack
from cluster.config import DETERMINISTIC_ROWS, ModelConfig
from cluster.errors import UnsupportedModel

Run = Callable[[], Tensor]
"""A step's computation on the numbers that its memory holds now; what it gives is good until the
next run."""

Capture = Callable[[Run], Run]
"""Makes of a computation one that does the same at once."""

WARM_UPS = 2
"""Runs before a capture: in the first ones libraries choose kernels and take memory."""

MIB = 2**20

logger = logging.getLogger(__name__)


def bucket_sizes(most: int) -> tuple[int, ...]:
    """Numbers of rows that have a graph each, rising: powers of two below `most`, and `most`."""
    return (*(2**power for power in range((most - 1).bit_length())), most)


def bucket_of(rows: int, sizes: Iterable[int]) -> int | None:
    """The first of `sizes`, which rise, that holds so many rows."""
    return next((size for size in sizes if rows <= size), None)


class FixedStep:
    """A step of `size` rows whose numbers are always at the same places in memory.

    Each row is a sequence with a table of `width` pages.
    """

    def __init__(self, forward: Forward, cache: KVCache, size: int, width: int) -> None:
        self._cache, self._size = cache, size
        self._batch = lay_out(_nothing(cache, size), cache, range(size))
        first = (self._batch.tokens[0], self._batch.positions[0], self._batch.slots)
        self._rows = torch.stack(first)
        self._batch.tokens, self._batch.positions = self._rows[:1], self._rows[1:2]
        self._batch.slots = self._rows[2]
        numbers = torch.zeros(packed_size(size, width), dtype=torch.int32, device=cache.device)
        most_keys = width * cache.block_size
        part = unpack(numbers, size, slice(0, size), 1, most_keys)
        self._batch.parts = (part,)
        self._table, self._sums = part.table, numbers[: packed_size(size, 0)]
        self._kept = torch.arange(size, device=cache.device)
        self._run: Run = partial(self._compute, forward)
        self.fill(self._batch.layout.tokens, self._batch.paths)

    def capture(self, capture: Capture) -> None:
        """From now on compute by what `capture` makes of the computation."""
        self._run = capture(self._run)

    def __call__(self, step: StepBatch, kept: Tensor) -> Tensor:
        """The logits of `step` after its rows `kept`; of neither more than `size`.

        Good until the next call. Rows kept beyond are those of the call before: some or other.
        """
        self.fill(step.layout.tokens, step.paths)
        self._kept[: len(kept)] = kept
        return self._run()[: len(kept)]

    def fill(self, tokens: Ints, paths: Paths) -> None:
        """Put the numbers of these rows, and of those that fill up, where the computation is.

        A table's columns beyond the longest sequence's are what they were: nobody looks there.
        """
        block_size = self._cache.block_size
        filled = fill_up(paths, self._size, self._cache.spare)
        lengths = filled.positions + 1
        table = table_of(filled.tables, filled.first_page, lengths, block_size)
        rows = (_longer(tokens, self._size, 0), filled.positions, slots_of(filled, block_size))
        refill(self._rows, np.stack(rows))
        refill(self._sums, pack(table[:, :0], lengths, np.ones_like(lengths)))
        self._table[:, : table.shape[1]] = upload(table, self._cache.device)

    def _compute(self, forward: Forward) -> Tensor:
        batch = self._batch
        return forward(batch.tokens, batch.positions, self._kept, batch.number)


def fill_up(paths: Paths, size: int, spare: int) -> Paths:
    """`size` ways: behind those of `paths`, ways to the first token of the page `spare`."""
    return Paths(
        np.append(paths.tables, spare),
        _longer(paths.first_page, size, len(paths.tables)),
        _longer(paths.positions, size, 0),
    )


def _longer(numbers: Ints, size: int, value: int) -> Ints:
    return np.pad(numbers, (0, size - len(numbers)), constant_values=value)


def _nothing(cache: KVCache, size: int) -> Layout:
    """Of rows that only fill up."""
    zeros, ones = np.zeros(size, dtype=np.int64), np.ones(size, dtype=np.int64)
    return Layout(zeros[:0], zeros, ones, ones, zeros, ones * cache.spare)


class FixedSteps:
    """A `Forward` that computes steps of single rows as fixed ones of the next size.

    All others by `forward`, but where rows are computed by themselves: there none is another.
    """

    def __init__(self, forward: Forward, by_row: bool, steps: Mapping[int, FixedStep]) -> None:
        """`steps` by their sizes, which rise."""
        self._forward = forward
        self._by_row = by_row
        self._steps = steps

    def __call__(self, tokens: Tensor, positions: Tensor, kept: Tensor, step: Tensor) -> Tensor:
        batch = find_step(step)
        size = bucket_of(max(tokens.shape[1], len(kept)), self._steps)
        if size is None or not (self._by_row or int(batch.layout.counts.max()) == 1):
            return self._forward(tokens, positions, kept, step)
        return self._steps[size](batch, kept)


def fixed_steps(loaded: PreTrainedModel, fitted: Fitted, model: ModelConfig) -> FixedSteps | None:
    """Fixed steps for `loaded`, captured and proved; None where pages are not read by torch's
    kernel, and, logged, where the model is not to be captured.

    Raises UnsupportedModel for a deterministic model whose steps cannot be fixed. What the pages
    hold is lost.
    """
    cache = fitted.cache
    if not cache.in_place.ragged or (model.compile == "off" and not model.deterministic):
        return None
    sizes = (DETERMINISTIC_ROWS,) if model.deterministic else bucket_sizes(fitted.batching.places)
    width = -(-fitted.capacity.max_model_len // cache.block_size)
    try:
        return _proved(loaded, cache, sizes, width)
    except (UnsupportedModel, RuntimeError) as error:  # torch's, where a kernel waits for the host
        if model.deterministic:
            raise UnsupportedModel(f"deterministic needs fixed steps: {error}") from error
        logger.warning("serving without CUDA graphs: %s", error)
        return None


@torch.inference_mode()
def _proved(
    loaded: PreTrainedModel, cache: KVCache, sizes: tuple[int, ...], width: int
) -> FixedSteps:
    forward, by_row = PagedModel(loaded), cache.in_place.repeats
    steps = {size: FixedStep(forward, cache, size, width) for size in sizes}
    if cache.device.type == "cuda":
        _capture(steps, cache.device)
    else:
        for step in steps.values():
            step.capture(_again)
    for size, step in steps.items():
        program = FixedSteps(forward, by_row, {size: step})
        prove_steps(loaded, cache, program, f"as a fixed step of {size} rows")
    return FixedSteps(forward, by_row, steps)


def _capture(steps: Mapping[int, FixedStep], device: torch.device) -> None:
    """All, the largest first: the others then find the memory that they need."""
    free, _ = torch.cuda.mem_get_info(device)
    graphs, ours = _Graphs(), torch.cuda.current_stream(device)
    try:
        for size in sorted(steps, reverse=True):
            steps[size].capture(graphs)
    finally:
        torch.cuda.set_stream(ours)  # a capture that fails leaves us in its own
    left, _ = torch.cuda.mem_get_info(device)
    logger.info("CUDA graphs of %s rows take %d MiB", list(steps), (free - left) // MIB)


def _again(run: Run) -> Run:
    """A `Capture` where there are no graphs: what it gives is overwritten by the next run, too."""
    logits = run()
    return lambda: logits.copy_(run())


class _Graphs:
    """A `Capture` by CUDA graphs that share their memory, since they run one after the other."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        self._warm_up(run)
        graph = torch.cuda.CUDAGraph()
        # Another thread of the process may ask the device for something meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = run()
        return partial(_replay, graph, logits)

    @staticmethod
    def _warm_up(run: Run) -> None:
        """In a stream of its own, as torch asks for."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(stream)


def _replay(graph: torch.cuda.CUDAGraph, logits: Tensor) -> Tensor:
    graph.replay()
    return logits
