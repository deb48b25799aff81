"""From the rows of a trace to an offered load: faster, wider, in classes and of tenants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from cluster.messages import PageHash, Submission
from cluster.simulate.draws import draw
from cluster.simulate.traces import BLOCK_TOKENS, TraceRow

MODEL = "simulated"
ROUTER = "router"


@dataclass(frozen=True, slots=True)
class Shape:
    """How a trace becomes a load.

    `speed`: arrivals come so many times as fast. `copies`: so many independent copies of the trace
    run beside each other, each with pages of its own and rotated in time, so that the locality
    within a copy stays. `page_tokens`: tokens of a page, which stands for one block of the trace;
    lengths of prompts and outputs are scaled with it. `classes`: the share of sessions of each SLA
    class. `tenants` differ in size as 1, 1/2, 1/3, ... `tide`: the share of the sessions that come
    in each of so many equal parts of the time.
    """

    seed: int = 0
    speed: float = 1.0
    copies: int = 1
    page_tokens: int = BLOCK_TOKENS
    classes: Mapping[str, float] = field(default_factory=lambda: {"P0": 0.3, "P1": 0.5, "P2": 0.2})
    tenants: int = 8
    tide: Sequence[float] = (1.0,)


@dataclass(frozen=True, slots=True)
class Offered:
    """One request as it arrives: what the scheduler is told of it, and what comes out later."""

    arrival_s: float
    submission: Submission
    output_tokens: int


def offered_load(rows: Sequence[TraceRow], shape: Shape) -> tuple[Offered, ...]:
    """The whole load in arrival order; the same for the same arguments."""
    longest = _scaled(max(row.output_tokens for row in rows), shape.page_tokens)
    every = [one for copy in range(shape.copies) for one in _copy(rows, shape, copy, longest)]
    return tuple(sorted(every, key=lambda one: (one.arrival_s, one.submission.request_id)))


def _copy(rows: Sequence[TraceRow], shape: Shape, copy: int, longest: int) -> Iterator[Offered]:
    """No client knows how long its answer will be: each allows the longest of the trace."""
    length_s = rows[-1].arrival_s + max(rows[-1].blur_s, 1.0)
    shift_s = length_s * draw(shape.seed, "shift", copy) if copy else 0.0
    for number, (at, row) in enumerate(_sharpened(rows, shape.seed, copy)):
        part = (at + shift_s) % length_s / length_s
        if not _comes(row, shape, copy, number, part):
            continue
        arrival_s = part * length_s / shape.speed
        submission = _submission(row, shape, f"{copy}-{number}", copy, longest)
        yield Offered(arrival_s, submission, _scaled(row.output_tokens, shape.page_tokens))


def _comes(row: TraceRow, shape: Shape, copy: int, number: int, part: float) -> bool:
    """Whether the tide is high enough for its session at that part of the time."""
    level = shape.tide[int(part * len(shape.tide))]
    if level >= 1.0:
        return True
    return draw(shape.seed, "tide", copy, _session(row, f"{copy}-{number}")) < level


def _sharpened(rows: Sequence[TraceRow], seed: int, copy: int) -> Iterator[tuple[float, TraceRow]]:
    """Arrivals that the trace blurs into one moment, spread over it; their order stays."""
    for at, together in groupby(rows, key=lambda row: row.arrival_s):
        members = list(together)
        places = sorted(draw(seed, "arrival", copy, at, place) for place in range(len(members)))
        for place, row in zip(places, members, strict=True):
            yield at + place * row.blur_s, row


def _submission(row: TraceRow, shape: Shape, name: str, copy: int, longest: int) -> Submission:
    prompt = _scaled(row.prompt_tokens, shape.page_tokens)
    session = _session(row, name)
    full = row.blocks[: prompt // shape.page_tokens]
    return Submission(
        request_id=name,
        router=ROUTER,
        model=MODEL,
        tenant=_tenant(shape, copy, session),
        sla=_class(shape, copy, session),
        prompt_tokens=prompt,
        max_tokens=longest,
        choices=1,
        page_hashes=tuple([_page(copy, block) for block in full]),
    )


def _scaled(tokens: int, page_tokens: int) -> int:
    return max(1, round(tokens * page_tokens / BLOCK_TOKENS))


def _session(row: TraceRow, name: str) -> str:
    """Turns of one conversation share their second block; the first is everybody's preamble."""
    return str(row.blocks[1]) if len(row.blocks) > 1 else name


def _class(shape: Shape, copy: int, session: str) -> str:
    point = draw(shape.seed, "class", copy, session) * sum(shape.classes.values())
    for name, share in shape.classes.items():
        point -= share
        if point < 0:
            return name
    return name


def _tenant(shape: Shape, copy: int, session: str) -> str:
    sizes = [1.0 / rank for rank in range(1, shape.tenants + 1)]
    point = draw(shape.seed, "tenant", copy, session) * sum(sizes)
    for rank, size in enumerate(sizes):
        point -= size
        if point < 0:
            return f"tenant-{rank}"
    return f"tenant-{shape.tenants - 1}"


def _page(copy: int, block: int) -> PageHash:
    return copy.to_bytes(8, "big") + block.to_bytes(8, "big")
