"""Runs one step: moves and copies pages, computes all chunks in one forward pass, and samples.

The model is transformers' own; what is ours is the row it computes on (`batch`), its attention
(`attention`), its cache (`kv_cache`) and what is done with its logits (`sampler`, `logprobs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from time import perf_counter

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from actors.engine.attention import PAGED
from actors.engine.batch import StepBatch, build_batch
from actors.engine.device_clock import clock_of
from actors.engine.flaws import unsampled, unscored, unsound
from actors.engine.host_pages import HostPages
from actors.engine.jit import use_threads
from actors.engine.kv_cache import KVCache
from actors.engine.layouts import COMPANY
from actors.engine.logprobs import score_prompt
from actors.engine.memory import Backing
from actors.engine.pace import ThreadPace
from actors.engine.sampler import Sampler
from actors.engine.uploads import indices
from cluster.messages import TokenLogprob
from cluster.steps import Chunk, StepPlan, StepResult

Forward = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Tokens and positions `[1, rows]`, the rows to score `[scored]`, the step's number `[1]`, all
int64, at least one of each: the logits `[scored, vocab]`, float32."""


class PagedModel(nn.Module):
    """A model of transformers as a `Forward`, its attention paged."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        model.set_attn_implementation(PAGED)
        self._model = model

    def forward(self, tokens: Tensor, positions: Tensor, kept: Tensor, step: Tensor) -> Tensor:
        output = self._model(
            input_ids=tokens,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=kept,
            step=step,
        )
        logits: Tensor = output.logits[0].float()
        return logits


class ModelRunner:
    """A model and its pages. `model` must have passed `families.check_family`."""

    def __init__(
        self, model: PreTrainedModel, cache: KVCache, pace: ThreadPace | None = None
    ) -> None:
        """Without a `pace` every step is computed by all threads."""
        self._forward: Forward = PagedModel(model)
        self._pace = pace
        self._device = model.device
        self._cache = cache
        self._backing = Backing(cache.rows())
        self.host = HostPages(cache)
        self._sampler = Sampler()
        self._clock = clock_of(model.device)
        self.vocab_size: int = model.config.get_text_config().vocab_size

    @property
    def device_s(self) -> float:
        """Seconds in forward passes, by the device's own clock; 0 on a CPU."""
        return self._clock.seconds

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Compute `plan`. If it raises, nothing of the plan's pages may be trusted any more."""
        self.host.save(plan.saves)
        self._cache.copy_pages(plan.copies)
        self.host.load(plan.loads)
        batch = build_batch(plan, self._cache)
        sampling = {i: chunk for i, chunk in enumerate(plan.chunks) if chunk.samples}
        scoring = {i: chunk for i, chunk in enumerate(plan.chunks) if chunk.score_prompt}
        silent = {i: chunk for i, chunk in enumerate(plan.chunks) if chunk.silent}
        sampled_rows = [_sampled_rows(chunk, batch.first_row[i]) for i, chunk in sampling.items()]
        scored_rows = [_scored_rows(chunk, batch.first_row[i]) for i, chunk in scoring.items()]
        last_rows = [batch.first_row[i] + chunk.count - 1 for i, chunk in silent.items()]
        with self._backing.writing(int(batch.paths.tables.max())):
            logits = self.logits(batch, [*chain(*sampled_rows, *scored_rows, last_rows)])
        counts = [sum(map(len, sampled_rows)), sum(map(len, scored_rows)), len(last_rows)]
        to_sample, to_score, last = torch.split(logits, counts)
        sampled = self._sample(to_sample, [*sampling.values()])
        scores = _scores(to_score, [*scoring.values()], scored_rows)
        flaws = chain(
            unscored(scoring, scores),
            unsampled(to_sample, sampling, sampled),
            unsound(last, silent),
        )
        return StepResult(sampled, scores, dict(flaws))

    def _sample(
        self, logits: Tensor, chunks: Sequence[Chunk]
    ) -> tuple[tuple[TokenLogprob, ...], ...]:
        """What comes after each chunk's tokens and after each of its guesses, a row for each."""
        wanted = [(c.sequence, i) for c in chunks for i in range(1 + len(c.guesses))]
        sampled = iter(
            self._sampler.sample(
                logits,
                [sequence for sequence, _ in wanted],
                [sequence.output_len + ahead for sequence, ahead in wanted],
            )
        )
        return tuple(tuple(islice(sampled, 1 + len(c.guesses))) for c in chunks)

    def use(self, forward: Forward) -> None:
        """Compute by `forward` from the next step on; the model is let go."""
        self._forward = forward
        self._pace = (
            ThreadPace() if self._pace else None
        )  # what was learned was learned of the model

    @torch.inference_mode()
    def logits(self, batch: StepBatch, rows: Sequence[int]) -> Tensor:
        """Forward pass over the batch; the logits after `rows`, one or more: `[rows, vocab]`."""
        missing = max(0, COMPANY - len(rows)) if batch.cache.in_place.repeats else 0
        kept = indices([*rows, *[rows[0]] * missing], self._device)
        with self._threads(batch.tokens.shape[1]), self._clock.forward_pass():
            logits = self._forward(batch.tokens, batch.positions, kept, batch.number)
        return logits[: len(rows)]

    @contextmanager
    def _threads(self, rows: int) -> Iterator[None]:
        """As many as are good for a step of `rows`, of those that are ours (`torch`'s number)."""
        ours = torch.get_num_threads()
        threads = self._pace.threads(rows, ours) if self._pace else ours
        use_threads(threads)
        begun = perf_counter()
        yield
        if self._pace:
            self._pace.note(rows, threads, perf_counter() - begun)
            use_threads(ours)


def _sampled_rows(chunk: Chunk, first_row: int) -> range:
    """The rows of its last known token and of its guesses."""
    last = first_row + chunk.count - 1
    return range(last, last + 1 + len(chunk.guesses))


def _scored_rows(chunk: Chunk, first_row: int) -> range:
    """The rows whose logits score a prompt token: all that have one after them in the prompt."""
    scored = min(chunk.count, chunk.sequence.prompt_len - 1 - chunk.start)
    return range(first_row, first_row + max(0, scored))


def _scores(
    logits: Tensor, chunks: Sequence[Chunk], rows: Sequence[range]
) -> tuple[tuple[TokenLogprob, ...], ...]:
    parts = torch.split(logits, [len(r) for r in rows])
    return tuple(score_prompt(part, chunk) for part, chunk in zip(parts, chunks, strict=True))
