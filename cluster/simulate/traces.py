"""Readers of public traces: what arrived when, how long it was, and which prefix pages it had."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cluster.errors import InvalidRequest

BLOCK_TOKENS = 512
"""Tokens of a Mooncake prefix block; the Azure trace is cut into blocks of the same size."""

MOONCAKE_TICK_S = 3.0
"""Mooncake's arrival times are whole multiples of this."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace. Equal block ids mean equal prefixes up to there.

    `arrival_s` counts from the first row; the true arrival is up to `blur_s` later.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    blur_s: float = 0.0


def read_trace(path: Path) -> tuple[TraceRow, ...]:
    """A Mooncake trace (`.jsonl`) or an Azure LLM inference trace (`.csv`), in arrival order.

    Raises InvalidRequest for another suffix, and for a file without a row.
    """
    readers = {".jsonl": read_mooncake, ".csv": read_azure}
    reader = readers.get(path.suffix)
    if reader is None:
        raise InvalidRequest(f"{path}: a trace is one of {sorted(readers)}", "trace")
    with path.open(encoding="utf-8") as lines:
        rows = sorted(reader(lines), key=lambda row: row.arrival_s)
    if not rows:
        raise InvalidRequest(f"{path} has no rows", "trace")
    return tuple(rows)


def read_mooncake(lines: Iterable[str]) -> Iterator[TraceRow]:
    """Rows of `timestamp` (ms), `input_length`, `output_length` and `hash_ids`, as JSON lines."""
    for line in lines:
        row = json.loads(line)
        yield TraceRow(
            arrival_s=row["timestamp"] / 1000.0,
            prompt_tokens=row["input_length"],
            output_tokens=row["output_length"],
            blocks=tuple(row["hash_ids"]),
            blur_s=MOONCAKE_TICK_S,
        )


def read_azure(lines: Iterable[str]) -> Iterator[TraceRow]:
    """Rows of `TIMESTAMP`, `ContextTokens` and `GeneratedTokens`.

    The trace says nothing of content, so no two rows share a block: all that caching could gain is
    missing from it.
    """
    start: datetime | None = None
    fresh = 0
    for row in csv.DictReader(lines):
        # Seven digits of a second, of which datetime reads six.
        at = datetime.fromisoformat(row["TIMESTAMP"][:26])
        start = start or at
        prompt = int(row["ContextTokens"])
        count = -(-prompt // BLOCK_TOKENS)
        blocks = tuple(range(fresh, fresh + count))
        fresh += count
        yield TraceRow((at - start).total_seconds(), prompt, int(row["GeneratedTokens"]), blocks)
