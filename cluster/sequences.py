"""The sequences of a request as one shard tracks them: their states, legal moves and ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.errors import IllegalTransition
from cluster.lookup import Lookup
from cluster.messages import Assignment, FinishReason, PageHash, Request, TokenLogprob
from cluster.reports import HeldRequest
from cluster.steps import Chunk, Sequence


class State(StrEnum):
    """Where a sequence stands; it holds pages only while RUNNING."""

    WAITING = "waiting"
    AWAITING_LEADER = "awaiting_leader"
    RUNNING = "running"
    PAUSED = "paused"
    PREEMPTED = "preempted"
    FINISHED = "finished"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING, State.FINISHED}),
    # To WAITING where it becomes the leader itself, or where no place was left to fork into.
    State.AWAITING_LEADER: frozenset({State.RUNNING, State.WAITING, State.FINISHED}),
    State.RUNNING: frozenset({State.PAUSED, State.PREEMPTED, State.FINISHED}),
    # By the watermark, which also says when it may go on.
    State.PAUSED: frozenset({State.RUNNING, State.FINISHED}),
    # For want of pages: it goes on as soon as there are some.
    State.PREEMPTED: frozenset({State.RUNNING, State.FINISHED}),
    State.FINISHED: frozenset(),
}


Place = tuple[float, int, int]

LAST: Place = (math.inf, 0, 0)
"""Behind everybody."""

OVERTAKERS = 64
"""Later arrivals of the next higher class that may go before a request, and no more: so a shard
that always has some of them starves nobody. But who stands back for the pace of streams, behind a
prompt that has all they leave, is overtaken by any number meanwhile (`drafting`)."""


def place_of(arrival: int, rank: int, choice: int) -> Place:
    """Where a sequence stands in line: by class, within bounds, then by arrival, then by choice."""
    return arrival + OVERTAKERS * rank, arrival, choice


@dataclass(slots=True, eq=False)
class Tracked:
    """One sequence and what batching has to remember of it.

    `order` is its place in both lines (see `place_of`). `hashes` are those of its full
    pages as far as they were needed yet; those of the tokens that it came with are there from the
    start. `lookup` guesses how it goes on, where that is wanted.
    """

    sequence: Sequence
    family: Family
    order: Place
    hashes: list[PageHash]
    state: State = State.WAITING
    lookup: Lookup | None = None

    def move(self, to: State) -> None:
        """Change the state. Raises IllegalTransition, changing nothing, where the table says no."""
        if to not in TRANSITIONS[self.state]:
            name = f"{self.sequence.request.request_id}/{self.sequence.choice}"
            raise IllegalTransition(f"sequence {name} cannot go from {self.state} to {to}")
        self.state = to

    @property
    def behind(self) -> int:
        """Known tokens that have no KV yet."""
        return len(self.sequence.tokens) - self.sequence.computed

    @property
    def owes_scores(self) -> bool:
        """Whether it has yet to deliver the prompt's log probabilities."""
        return self.sequence.choice == 0 and self.family.scores is not None

    def next_chunk(self, count: int) -> Chunk:
        """The next `count` tokens; samples if they are the last known and output is wanted."""
        sequence = self.sequence
        return Chunk(
            sequence=sequence,
            start=sequence.computed,
            count=count,
            samples=count == self.behind and sequence.request.stopping.max_tokens > 0,
            score_prompt=self.owes_scores and sequence.computed + 1 < sequence.prompt_len,
        )


def expendable(tracked: Tracked) -> tuple[int, Place]:
    """Who gives pages up first, as a key: the largest is the newest of the lowest class."""
    return tracked.family.rank, tracked.order


@dataclass(slots=True, eq=False)
class Family:
    """The living sequences of one request, by choice, and what they have in common.

    The `leader` (a choice) computes the prompt, the others fork from it. `scores` are the
    prompt's log probabilities so far, None where nobody asked or they are delivered. `produced`
    counts the output tokens of the choices that have ended. `suspect`: a shard died of it, or of
    what ran beside it. `rank`, `ttft_s` and `tpot_s` are those of its lease.
    """

    request: Request
    root: PageHash
    rank: int = 0
    ttft_s: float | None = None
    tpot_s: float | None = None
    members: dict[int, Tracked] = field(default_factory=dict)
    leader: int = 0
    scores: list[TokenLogprob | None] | None = None
    cached_tokens: int | None = None
    suspect: bool = False
    started: bool = False
    produced: int = 0

    @property
    def on_trial(self) -> bool:
        """Whether it is a suspect that has not shown yet that a step survives it."""
        return self.suspect and not self.started

    @property
    def is_promised(self) -> bool:
        """Whether its class has a target for the first token or for the others."""
        return self.ttft_s is not None or self.tpot_s is not None

    def awaiting(self) -> list[Tracked]:
        """Those that still wait for the leader, by choice."""
        return [one for one in self.members.values() if one.state is State.AWAITING_LEADER]

    def hand_over_scores(self) -> tuple[TokenLogprob | None, ...]:
        """The prompt's log probabilities, once: from then on none are owed."""
        scores, self.scores = tuple(self.scores or ()), None
        return scores

    def held(self) -> HeldRequest:
        """What a scheduler needs to know; `computed_tokens` are those of the furthest member.

        The output that a request came with is part of what it computes before it starts.
        """
        sequences = [one.sequence for one in self.members.values()]
        came_with = max(len(one.tokens) for one in sequences)
        return HeldRequest(
            request_id=self.request.request_id,
            prompt_tokens=len(self.request.prompt) if self.started else came_with,
            computed_tokens=max(one.computed for one in sequences),
            choices=len(self.members),
            tenant=self.request.tenant,
            sla=self.request.sla,
        )


def track(
    assignment: Assignment,
    arrival: int,
    root: PageHash,
    hashes: Callable[[tuple[int, ...]], tuple[PageHash, ...]],
) -> Family:
    """A new family: its leader WAITING, the others AWAITING_LEADER.

    The first delta of choice 0 delivers the prompt's scores, so whoever has one is owed none.
    """
    request, outputs = assignment.request, assignment.outputs()
    owes_scores = request.sampling.prompt_logprobs is not None and outputs.get(0) == ()
    family = Family(
        request,
        root,
        rank=assignment.lease.rank,
        ttft_s=assignment.lease.ttft_s,
        tpot_s=assignment.lease.tpot_s,
        leader=min(outputs),
        scores=[None] if owes_scores else None,
        suspect=assignment.suspect,
    )
    prompt_hashes = hashes(request.prompt)
    for choice, output in outputs.items():
        sequence = Sequence(request, choice, [*request.prompt, *output])
        state = State.WAITING if choice == family.leader else State.AWAITING_LEADER
        known = hashes(request.prompt + output) if output else prompt_hashes
        place = place_of(arrival, family.rank, choice)
        family.members[choice] = Tracked(sequence, family, place, list(known), state)
    return family


def finish_reason(sequence: Sequence, max_model_len: int) -> FinishReason | None:
    """Why the newest token ends the choice, None where it does not; a stop token goes first."""
    stopping = sequence.request.stopping
    if sequence.tokens[-1] in stopping.stop_token_ids:
        return FinishReason.STOP
    full = len(sequence.tokens) >= max_model_len
    return FinishReason.LENGTH if full or sequence.output_len >= stopping.max_tokens else None
