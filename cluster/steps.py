"""What the planner tells the engine to compute in one step, and what the engine answers.

A sequence knows some tokens and has KV for a prefix of them; a step lets computed catch up with
known. Prefill, chunked prefill, decode and recompute after preemption are all this one line.
These objects stay within one process: the engine reads sequences, only the planner changes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cluster.errors import LedgerBroken, ShoalError
from cluster.messages import Request, TokenLogprob


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request on one shard.

    `tokens` are the known tokens: the prompt, then what was sampled. KV exists for
    `tokens[:computed]`, in the pages of `blocks` (the block table: page `i` holds positions
    `[i * block_size, (i + 1) * block_size)`).
    """

    request: Request
    choice: int
    tokens: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt)

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute `sequence.tokens[start : start + count]`; sample the next token after it if asked.

    `guesses` of the tokens after it are computed too, and the next one after each is sampled.
    `score_prompt` asks for the log probabilities of the prompt tokens at positions
    `start + 1 .. start + count` (as far as the prompt goes), which this chunk's logits give.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool
    score_prompt: bool = False
    guesses: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Tokens computed."""
        return self.count + len(self.guesses)

    @property
    def silent(self) -> bool:
        """Whether nothing is asked of what comes after its tokens: neither a sample nor a score."""
        scores_last = self.score_prompt and self.start + self.count < self.sequence.prompt_len
        return not self.samples and not scores_last


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy-on-write: the engine copies page `source` to `target` before the step computes."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class PageSave:
    """The engine copies `page` of the device to `slot` of host memory."""

    page: int
    slot: int


@dataclass(frozen=True, slots=True)
class PageLoad:
    """The engine copies `slot` of host memory to `page` of the device."""

    slot: int
    page: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass: saves first, then copies, then loads, then all chunks as one ragged batch.

    A page is saved because somebody else writes there now, be it by a copy, a load or a chunk; and
    what was saved may be loaded at once. A copy's source is of a sequence that ran before, so
    no load brings it, but once it is copied a load may take its place. A plan that was made is
    executed: books and bytes are one only then.
    """

    chunks: tuple[Chunk, ...]
    copies: tuple[PageCopy, ...] = ()
    saves: tuple[PageSave, ...] = ()
    loads: tuple[PageLoad, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the forward pass gave.

    For each chunk with `samples`, in the plan's order, `sampled` holds what comes after its tokens
    and after each of its guesses, and for each with `score_prompt` `prompt_scores` holds one tuple.
    `flaws` says of chunks, by their number in the plan, why nothing of that means anything, nor
    the KV that they wrote. Each chunk is looked at, those that are silent too.
    """

    sampled: tuple[tuple[TokenLogprob, ...], ...]
    prompt_scores: tuple[tuple[TokenLogprob, ...], ...] = ()
    flaws: Mapping[int, ShoalError] = field(default_factory=dict)


def _widths(plan: StepPlan) -> list[int]:
    """How many are to be sampled for each chunk that samples."""
    return [1 + len(chunk.guesses) for chunk in plan.chunks if chunk.samples]


def pair(
    plan: StepPlan, result: StepResult
) -> Iterator[tuple[Chunk, tuple[TokenLogprob, ...], tuple[TokenLogprob, ...]]]:
    """Each chunk with what was sampled for it and its prompt scores, () if not asked for.

    Raises LedgerBroken where plan and result do not fit together.
    """
    asked = _widths(plan), sum(c.score_prompt for c in plan.chunks)
    given = [len(sampled) for sampled in result.sampled], len(result.prompt_scores)
    if asked != given:
        raise LedgerBroken(f"samples and prompt scores asked {asked}, given {given}")
    sampled, scores = iter(result.sampled), iter(result.prompt_scores)
    for chunk in plan.chunks:
        yield (
            chunk,
            next(sampled) if chunk.samples else (),
            next(scores) if chunk.score_prompt else (),
        )
