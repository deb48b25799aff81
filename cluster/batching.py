"""Continuous batching for one shard: which tokens of which sequences the next step computes.

A sequence knows some tokens and has KV for a prefix of them; each step lets computed catch up with
known. Prefill, decode, forks and recompute after preemption are all that one line. Who is in a step
is decided in `drafting`, what comes of it in `harvest`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from cluster.batching_config import BatchingConfig
from cluster.block_tables import BlockTables, check_room
from cluster.blocks import BlockPool, page_hashes, root_hash
from cluster.drafting import Drafter
from cluster.drafts import Draft
from cluster.errors import ContextTooLong, InvalidRequest, LedgerBroken
from cluster.harvest import Harvest
from cluster.messages import Assignment, PageHash, RequestFailed, TokenDelta
from cluster.pacing import WORTHWHILE
from cluster.promises import Promises
from cluster.reports import NO_PREFILLING, HeldRequest, Prefilling
from cluster.roster import Roster
from cluster.sequences import Family, track
from cluster.steps import StepPlan, StepResult
from cluster.watermark import OFF, Watermark


@dataclass(frozen=True, slots=True)
class Progress:
    """Ids of the requests whose first delta went out, and of those that ended, oldest first.

    `produced` are the output tokens of each that ended, all its choices together; `prefilling` is
    how fast prompts were computed.
    """

    started: tuple[str, ...]
    ended: tuple[str, ...]
    produced: tuple[int, ...]
    prefilling: Prefilling = NO_PREFILLING


@dataclass(frozen=True, slots=True)
class BatcherStats:
    """Sequences now, and totals since the start. `prefix_hit_tokens` needed no computing. Of
    `tokens_guessed` so many were `guesses_right`.

    Those that are paused or preempted are among the `waiting`.
    """

    running: int
    waiting: int
    steps: int
    pauses: int
    preemptions: int
    tokens_computed: int
    tokens_sampled: int
    prefix_hit_tokens: int
    tokens_guessed: int
    guesses_right: int


class Batcher:
    """Plans steps and settles their results; the one door to the sequences of a shard.

    Lower classes keep below the `watermark`, by default out of reach. A step that computes anything
    brings at most `loads` pages back from host memory beside it. A prompt of which it computes
    `worth` tokens anyway, for another one, waits for these (`coming`). Raises ConfigError where the
    pool is too small for one sequence of `max_model_len` tokens.
    """

    def __init__(
        self,
        pool: BlockPool,
        config: BatchingConfig,
        max_model_len: int,
        watermark: Watermark = OFF,
        loads: float = math.inf,
        worth: int = WORTHWHILE,
    ) -> None:
        check_room(pool, max_model_len)
        self._pool = pool
        tables = BlockTables(pool)
        self._roster = Roster(tables, config.places)
        reserve = max(1, pool.num_blocks // 100)
        self._promises = Promises(config.max_batch_tokens, config.ttft_share)
        self._drafter = Drafter(
            tables,
            self._roster,
            self._promises,
            config,
            reserve,
            watermark,
            loads,
            worth,
            max_model_len,
        )
        self._harvest = Harvest(tables, self._roster, max_model_len)
        self._max_model_len = max_model_len
        self._arrivals = 0
        self._unsettled: list[tuple[StepPlan, Draft]] = []
        self._prefilling = NO_PREFILLING
        self._steps = 0

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
        self._promises.came(assignment.lease.rank, assignment.lease.ttft_s)
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
        """The next step, in which some sequence moves on. None where there is no work, or where all
        wait for pages that are being read from files."""
        draft = self._drafter.draft()
        if not draft.chunks:
            return None
        plan = draft.plan(self._pool.drain_moves())
        self._unsettled.append((plan, draft))
        return plan

    def settle(
        self, plan: StepPlan, result: StepResult, took_s: float | None = None
    ) -> list[TokenDelta]:
        """Enter what the step gave; what it gave for sequences cancelled meanwhile is dropped.

        `took_s` is how long the step took, where somebody looked at the clock.

        Raises LedgerBroken where result and plan, or plan and sequences, do not fit together, and
        DeviceFault where the shard computes nothing that can be used.
        """
        unsettled = next((each for each in self._unsettled if each[0] == plan), None)
        if unsettled is None:
            raise LedgerBroken("a step that was not planned here, or is settled already")
        self._steps += 1
        deltas = self._harvest.enter(plan, result)
        self._unsettled.remove(unsettled)
        if took_s is not None:
            self._time(*unsettled, took_s)
        return deltas

    def held(self) -> tuple[HeldRequest, ...]:
        """All requests that are here, oldest first."""
        return tuple(family.held() for family in self._roster.families.values())

    def with_pages(self) -> frozenset[str]:
        """Ids of the requests that have a page which can be found, whatever became of its owner."""
        families = self._roster.families.items()
        return frozenset(name for name, family in families if self._is_found(family))

    def computing(self) -> tuple[str, ...]:
        """Ids of the requests in steps that were planned and are not settled."""
        chunks = (chunk for plan, _ in self._unsettled for chunk in plan.chunks)
        return tuple(dict.fromkeys(chunk.sequence.request.request_id for chunk in chunks))

    def drain_progress(self) -> Progress:
        """Requests that started and that ended since the last call, and how fast it went."""
        ended = self._roster.drain_ended()
        ids = tuple(family.request.request_id for family in ended)
        produced = tuple(family.produced for family in ended)
        prefilling, self._prefilling = self._prefilling, NO_PREFILLING
        return Progress(self._harvest.drain_started(), ids, produced, prefilling)

    def drain_refused(self) -> tuple[RequestFailed, ...]:
        """The requests that ended for flaws in what was computed of them, since the last call."""
        return self._harvest.drain_refused()

    def stats(self) -> BatcherStats:
        living = sum(len(family.members) for family in self._roster.families.values())
        running = len(self._roster.running)
        return BatcherStats(
            running=running,
            waiting=living - running,
            steps=self._steps,
            pauses=self._roster.pauses,
            preemptions=self._roster.preemptions,
            tokens_computed=self._harvest.computed,
            tokens_sampled=self._harvest.sampled,
            prefix_hit_tokens=self._drafter.hit_tokens,
            tokens_guessed=self._harvest.guessed,
            guesses_right=self._harvest.right,
        )

    def verify(self) -> None:
        """Raise LedgerBroken unless lines, states, block tables and the pool agree."""
        self._roster.verify()

    def _is_found(self, family: Family) -> bool:
        return any(self._pool.reach(one.hashes[:1]) for one in family.members.values())

    def _time(self, plan: StepPlan, draft: Draft, took_s: float) -> None:
        """A step in which prompts were held back says nothing of how fast they can be computed,
        and one that waited for pages from host memory says nothing at all."""
        if plan.loads:
            return
        self._promises.learn(draft.bounds, took_s)
        if draft.prefill and not draft.held_back:
            self._prefilling += Prefilling(draft.prefill, took_s)

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
