"""Continuous batching for one shard: which tokens of which sequences the next step computes.

A sequence knows some tokens and has KV for a prefix of them; each step lets computed catch up with
known. Prefill, decode, forks and recompute after preemption are all that one line.

Order is class, within bounds, and then arrival. Sequences one token behind (decodes) go first, then
longer ones in chunks and waiting ones, while budget, places and pages last. A sequence short of
pages takes them from the newest of the lowest class behind it, never from one before it nor from
one that is already in the step; if there is none it stands still for the step. So the first in line
always moves on, and no work is thrown away that an earlier sequence does not need at once.

Where streams have a target for their pace, prompts of lower classes get no more of a step than lets
them keep it, as far as the clock has told (`pacing`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from cluster.block_tables import BlockTables, check_room
from cluster.blocks import BlockPool, page_hashes, root_hash
from cluster.config import BatchingConfig
from cluster.drafts import Draft
from cluster.errors import ContextTooLong, InvalidRequest, LedgerBroken
from cluster.messages import Assignment, FinishReason, PageHash, TokenDelta, TokenLogprob
from cluster.pacing import Pace
from cluster.reports import HeldRequest
from cluster.roster import Roster
from cluster.sequences import LAST, Family, Place, State, Tracked, finish_reason, track
from cluster.steps import Chunk, StepPlan, StepResult, pair


@dataclass(frozen=True, slots=True)
class Progress:
    """Ids of the requests whose first delta went out, and of those that ended, oldest first.

    `produced` are the output tokens of each that ended, all its choices together.
    """

    started: tuple[str, ...]
    ended: tuple[str, ...]
    produced: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatcherStats:
    """Sequences now, and totals since the start. `prefix_hit_tokens` needed no computing."""

    running: int
    waiting: int
    steps: int
    preemptions: int
    tokens_computed: int
    tokens_sampled: int
    prefix_hit_tokens: int


class Batcher:
    """Plans steps and settles their results; the one door to the sequences of a shard.

    Raises ConfigError where the pool is too small for one sequence of `max_model_len` tokens.
    """

    def __init__(self, pool: BlockPool, config: BatchingConfig, max_model_len: int) -> None:
        check_room(pool, max_model_len)
        self._pool = pool
        self._tables = BlockTables(pool)
        self._roster = Roster(self._tables, config.places)
        self._max_batch_tokens = config.max_batch_tokens
        self._pace = Pace(config.max_batch_tokens)
        self._paced: tuple[int, float] = 0, math.inf
        self._max_model_len = max_model_len
        # Left free when one more starts beside others, or their next pages would preempt it.
        self._reserve = max(1, pool.num_blocks // 100)
        self._arrivals = 0
        self._started: list[str] = []
        self._unsettled: list[StepPlan] = []
        self._steps = 0
        self._tokens_computed = 0
        self._tokens_sampled = 0
        self._prefix_hit_tokens = 0

    @property
    def has_work(self) -> bool:
        return bool(self._roster.families)

    def admit(self, assignment: Assignment) -> None:
        """Take a request in.

        Raises, having changed nothing, InvalidRequest for an empty prompt, ContextTooLong for one
        that leaves no room for output, IllegalTransition where its id is here already.
        """
        self._check(assignment)
        hashes = partial(self._hashes, assignment.salt)
        root = root_hash(assignment.salt)
        self._roster.enter(track(assignment, self._arrivals, root, hashes))
        self._arrivals += 1

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        """End one choice, or all of them, and free their pages at once.

        Does nothing where there is nothing to end, since a cancel and an end may cross.
        """
        family = self._roster.families.get(request_id)
        members = list(family.members.values()) if family else []
        for member in members:
            if choice in (None, member.sequence.choice):
                self._roster.end(member)

    def plan(self) -> StepPlan | None:
        """The next step, None where there is no work. Where there is, some sequence moves on."""
        draft = Draft(self._max_batch_tokens, self._pace.allowed)
        decodes = [one for one in self._roster.running if one.behind == 1]
        prefills = [one for one in self._roster.running if one.behind > 1]
        for tracked in decodes:
            self._draft_chunk(draft, tracked)
            draft.guard(tracked)
        for tracked in prefills:
            self._draft_waiting(draft, before=tracked.order)
            self._draft_chunk(draft, tracked)
        self._draft_waiting(draft)
        if not draft.chunks:
            return None
        plan = StepPlan(tuple(draft.chunks), tuple(draft.copies))
        self._paced = self._pace.allowed - draft.beside, draft.target_s
        self._unsettled.append(plan)
        return plan

    def settle(
        self, plan: StepPlan, result: StepResult, took_s: float | None = None
    ) -> list[TokenDelta]:
        """Enter what the step gave; what it gave for sequences cancelled meanwhile is dropped.

        `took_s` is how long the step took, where somebody looked at the clock.

        Raises LedgerBroken where result and plan, or plan and sequences, do not fit together.
        """
        if plan not in self._unsettled:
            raise LedgerBroken("a step that was not planned here, or is settled already")
        self._steps += 1
        deltas: list[TokenDelta] = []
        for chunk, sampled, scores in pair(plan, result):
            tracked = self._roster.living(chunk.sequence)
            if tracked is not None:
                self._advance(tracked, chunk, scores)
                deltas += self._deltas(tracked, sampled)
        self._unsettled.remove(plan)
        if took_s is not None:
            self._pace.record(*self._paced, took_s)
        return deltas

    def held(self) -> tuple[HeldRequest, ...]:
        """All requests that are here, oldest first."""
        return tuple(family.held() for family in self._roster.families.values())

    def computing(self) -> tuple[str, ...]:
        """Ids of the requests in steps that were planned and are not settled."""
        chunks = (chunk for plan in self._unsettled for chunk in plan.chunks)
        return tuple(dict.fromkeys(chunk.sequence.request.request_id for chunk in chunks))

    def drain_progress(self) -> Progress:
        """Requests that started and that ended since the last call."""
        ended = self._roster.drain_ended()
        ids = tuple(family.request.request_id for family in ended)
        progress = Progress(tuple(self._started), ids, tuple(family.produced for family in ended))
        self._started.clear()
        return progress

    def stats(self) -> BatcherStats:
        living = sum(len(family.members) for family in self._roster.families.values())
        running = len(self._roster.running)
        return BatcherStats(
            running=running,
            waiting=living - running,
            steps=self._steps,
            preemptions=self._roster.preemptions,
            tokens_computed=self._tokens_computed,
            tokens_sampled=self._tokens_sampled,
            prefix_hit_tokens=self._prefix_hit_tokens,
        )

    def verify(self) -> None:
        """Raise LedgerBroken unless lines, states, block tables and the pool agree."""
        self._roster.verify()

    def _check(self, assignment: Assignment) -> None:
        request = assignment.request
        if not request.prompt:
            raise InvalidRequest("the prompt has no tokens", "prompt")
        known = len(request.prompt) + max(map(len, assignment.outputs().values()))
        if known + min(1, request.stopping.max_tokens) > self._max_model_len:
            raise ContextTooLong(
                f"there are {known} tokens, which leaves no room for output in the context of"
                f" {self._max_model_len}",
                "prompt",
            )

    def _hashes(self, salt: bytes, tokens: tuple[int, ...]) -> tuple[PageHash, ...]:
        if not self._pool.prefix_caching:
            return ()
        return page_hashes(tokens, self._pool.block_size, salt)

    def _draft_chunk(self, draft: Draft, tracked: Tracked) -> None:
        """Add what budget and pages allow of it, preempting only if not one token fits."""
        wanted = min(tracked.behind, draft.room_for(tracked))
        if not wanted or tracked.state is not State.RUNNING:
            return
        while not (count := self._tables.fits(tracked, wanted)):
            victim = self._roster.victim_behind(tracked, spared=draft.planned)
            if victim is None:
                return
            self._roster.preempt(victim)
        copy = self._tables.extend(tracked, count)
        if copy is not None:
            draft.copies.append(copy)
        draft.take(tracked, count)

    def _draft_waiting(self, draft: Draft, before: Place = LAST) -> None:
        """Let waiting sequences in, as far as there are budget, places and pages to spare."""
        line = self._roster.waiting
        while line and line[0].order < before and draft.room_for(line[0]):
            if self._awaits_verdict():
                return
            tracked = self._roster.start_next(self._reserve)
            if tracked is None:
                return
            self._count_hits(tracked)
            self._draft_chunk(draft, tracked)

    def _awaits_verdict(self) -> bool:
        """Whether the next to start is a suspect, and another one is on trial: a step that fails
        must not leave two to blame."""
        line = self._roster.waiting
        if not line or not line[0].family.on_trial:
            return False
        tried = (one.family for one in self._roster.running if one.family.on_trial)
        return any(family is not line[0].family for family in tried)

    def _count_hits(self, tracked: Tracked) -> None:
        hits = tracked.sequence.computed
        self._prefix_hit_tokens += hits
        if tracked.family.cached_tokens is None:
            tracked.family.cached_tokens = hits

    def _advance(self, tracked: Tracked, chunk: Chunk, scores: tuple[TokenLogprob, ...]) -> None:
        sequence, family = tracked.sequence, tracked.family
        if chunk.start != sequence.computed:
            raise LedgerBroken(f"chunk from {chunk.start} on, but {sequence.computed} computed")
        self._tables.advance(tracked, chunk.count)
        self._tokens_computed += chunk.count
        if family.scores is not None:
            family.scores += scores

    def _deltas(self, tracked: Tracked, sampled: TokenLogprob | None) -> list[TokenDelta]:
        """What clients hear of the step: mostly one token; all ends where no output is wanted."""
        sequence, family = tracked.sequence, tracked.family
        if sequence.request.stopping.max_tokens == 0:
            return self._end_scored(family) if tracked.behind == 0 else []
        if sequence.computed >= sequence.prompt_len and sequence.choice == family.leader:
            self._roster.fork_from(tracked)
        return [self._append(tracked, sampled)] if sampled is not None else []

    def _append(self, tracked: Tracked, sampled: TokenLogprob) -> TokenDelta:
        tracked.sequence.tokens.append(sampled.token)
        self._tokens_sampled += 1
        finish = finish_reason(tracked.sequence, self._max_model_len)
        delta = self._delta(tracked, (sampled,), finish)
        if finish is not None:
            self._roster.end(tracked)
        return delta

    def _end_scored(self, family: Family) -> list[TokenDelta]:
        """The prompt is computed and no output is wanted: all choices are alike, and done."""
        members = list(family.members.values())
        deltas = [self._delta(one, (), FinishReason.LENGTH) for one in members]
        for one in members:
            self._roster.end(one)
        return deltas

    def _delta(
        self, tracked: Tracked, sampled: tuple[TokenLogprob, ...], finish: FinishReason | None
    ) -> TokenDelta:
        sequence, family = tracked.sequence, tracked.family
        if not family.started:
            family.started = True
            self._started.append(sequence.request.request_id)
        first = sequence.choice == 0 and sequence.output_len <= 1
        scores = family.hand_over_scores() if first else ()
        return TokenDelta(
            request_id=sequence.request.request_id,
            choice=sequence.choice,
            tokens=tuple([one.token for one in sampled]),
            logprobs=sampled if sequence.request.sampling.logprobs is not None else (),
            finish=finish,
            cached_tokens=(family.cached_tokens or 0) if first else 0,
            prompt_logprobs=scores,
        )
