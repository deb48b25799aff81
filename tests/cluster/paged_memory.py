"""A model of the device for planner tests: pages that hold what was written, and a toy model.

Host memory and files are modelled too, by what they hold of a page.

The toy model's next token depends on every token before it and on the choice, so output is right
only if nothing was lost, repeated or mixed up. Mostly it repeats what it said three tokens ago, so
that guesses are right, but not always. A slot of a page holds the tenant and the whole
prefix that its KV would depend on, so reading a page of another, or a stale one, is noticed.
"""

from __future__ import annotations

from hashlib import blake2b

from cluster.folder_tier import FileDone, FileOrder, PageRead, Read, Written
from cluster.messages import (
    Assignment,
    FinishReason,
    Lease,
    Reason,
    Request,
    Sampling,
    ShardRef,
    Stopping,
    TokenLogprob,
)
from cluster.steps import Chunk, PageCopy, PageLoad, PageSave, StepPlan, StepResult

VOCABULARY = 5

Prefix = tuple[int, ...]
Held = tuple[str, Prefix]
"""What a slot holds: whose it is and all the tokens that its KV depends on."""


class PagedMemory:
    """Runs step plans. Copies are done in order, or all read before any is written."""

    def __init__(self, block_size: int, gather_copies: bool = False) -> None:
        self._block_size = block_size
        self._gather_copies = gather_copies
        self._slots: dict[tuple[int, int], Held] = {}
        self._host: dict[int, dict[int, Held]] = {}
        self._files: dict[int, dict[int, Held]] = {}

    def compute(self, plan: StepPlan) -> StepResult:
        """Save, copy and load, then write all chunks' KV, then read it as attention does."""
        self._save(plan.saves)
        self._copy(plan.copies)
        self._load(plan.loads)
        for chunk in plan.chunks:
            for position in range(chunk.start, chunk.start + chunk.rows):
                self._slots[self._slot(chunk, position)] = _held(chunk, position)
        for chunk in plan.chunks:
            for position in range(chunk.start + chunk.rows):
                held = self._slots.get(self._slot(chunk, position))
                assert held == _held(chunk, position), (chunk, position, held)
        return StepResult(
            tuple(_sample(chunk) for chunk in plan.chunks if chunk.samples),
            tuple(_scores(chunk) for chunk in plan.chunks if chunk.score_prompt),
        )

    def work_on(self, order: FileOrder, goes_well: bool) -> FileDone:
        """What a thread does; a file that is not read well comes to nothing."""
        if isinstance(order, PageRead):
            self._host[order.slot] = self._files[order.file] if goes_well else {}
            return Read(order.content, goes_well)
        for file in order.dropped:
            del self._files[file]
        if not goes_well:
            return Written(order.content, None)
        self._files[order.file] = self._host[order.slot]
        return Written(order.content, 1)

    def _copy(self, copies: tuple[PageCopy, ...]) -> None:
        assert len({copy.target for copy in copies}) == len(copies)
        batches = [copies] if self._gather_copies else [(copy,) for copy in copies]
        for batch in batches:
            read = [(copy.target, self._page(copy.source)) for copy in batch]
            for target, page in read:
                self._slots.update({(target, offset): held for offset, held in page.items()})

    def _save(self, saves: tuple[PageSave, ...]) -> None:
        assert len({save.slot for save in saves}) == len(saves)
        for save in saves:
            self._host[save.slot] = self._page(save.page)

    def _load(self, loads: tuple[PageLoad, ...]) -> None:
        assert len({load.page for load in loads}) == len(loads)
        for load in loads:
            held = self._host[load.slot]
            self._slots.update({(load.page, offset): one for offset, one in held.items()})

    def _page(self, page: int) -> dict[int, Held]:
        slots = ((offset, self._slots.get((page, offset))) for offset in range(self._block_size))
        return {offset: held for offset, held in slots if held is not None}

    def _slot(self, chunk: Chunk, position: int) -> tuple[int, int]:
        page = chunk.sequence.blocks[position // self._block_size]
        return page, position % self._block_size


def next_token(tokens: Prefix, choice: int) -> int:
    digest = blake2b(repr((tokens, choice)).encode(), digest_size=4).digest()
    number = int.from_bytes(digest, "little")
    if number % 4 and len(tokens) > 2:
        return tokens[-3]
    return number // 4 % VOCABULARY


def alone(request: Request, choice: int, max_model_len: int) -> tuple[Prefix, FinishReason]:
    """The output of one choice, computed by itself without any batching."""
    stopping = request.stopping
    output: Prefix = ()
    while len(output) < stopping.max_tokens:
        output += (next_token(request.prompt + output, choice),)
        if output[-1] in stopping.stop_token_ids:
            return output, FinishReason.STOP
        if len(request.prompt) + len(output) >= max_model_len:
            break
    return output, FinishReason.LENGTH


def prompt_scores(prompt: Prefix) -> tuple[TokenLogprob | None, ...]:
    return None, *(_score(prompt[: position + 1]) for position in range(1, len(prompt)))


def assignment(
    request_id: str,
    prompt: Prefix,
    max_tokens: int = 4,
    choices: int = 1,
    stop: Prefix = (),
    prompt_logprobs: int | None = None,
    logprobs: int | None = None,
    salt: bytes = b"tenant",
    rank: int = 0,
    tpot_s: float | None = None,
    ttft_s: float | None = None,
) -> Assignment:
    request = Request(
        request_id=request_id,
        model="toy",
        tenant=salt.decode(),
        sla="P1",
        prompt=prompt,
        sampling=Sampling(prompt_logprobs=prompt_logprobs, logprobs=logprobs),
        stopping=Stopping(max_tokens=max_tokens, stop_token_ids=stop),
        choices=choices,
    )
    shard = ShardRef("toy-0", "toy", "shard:toy-0", "first")
    lease = Lease(request_id, 1, shard, 0, Reason(0.0, ()), rank, tpot_s, ttft_s)
    return Assignment(lease, request, salt)


def _held(chunk: Chunk, position: int) -> Held:
    return chunk.sequence.request.tenant, _computed(chunk)[: position + 1]


def _prefix(chunk: Chunk, position: int) -> Prefix:
    return tuple(chunk.sequence.tokens[: position + 1])


def _computed(chunk: Chunk) -> Prefix:
    """All that has KV after the chunk, guesses too."""
    return (*chunk.sequence.tokens[: chunk.start + chunk.count], *chunk.guesses)


def _sample(chunk: Chunk) -> tuple[TokenLogprob, ...]:
    known, computed = len(chunk.sequence.tokens), _computed(chunk)
    assert chunk.start + chunk.count == known
    ends = range(known, len(computed) + 1)
    return tuple(
        TokenLogprob(next_token(computed[:end], chunk.sequence.choice), -1.0) for end in ends
    )


def _scores(chunk: Chunk) -> tuple[TokenLogprob, ...]:
    last = min(chunk.start + chunk.count, chunk.sequence.prompt_len - 1)
    return tuple(_score(_prefix(chunk, at)) for at in range(chunk.start + 1, last + 1))


def _score(tokens: Prefix) -> TokenLogprob:
    return TokenLogprob(tokens[-1], -float(next_token(tokens, 0)))
