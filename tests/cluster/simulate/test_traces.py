"""Readers of public traces, on the cuts that the benchmarks use."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.errors import InvalidRequest
from cluster.simulate.traces import BLOCK_TOKENS, TraceRow, read_azure, read_mooncake, read_trace

DATA = Path(__file__).parents[3] / "benchmarks" / "data"


def test_a_mooncake_row_keeps_its_lengths_and_its_blocks() -> None:
    line = '{"timestamp": 3000, "input_length": 1000, "output_length": 7, "hash_ids": [0, 4]}'

    assert list(read_mooncake([line])) == [TraceRow(3.0, 1000, 7, (0, 4), blur_s=3.0)]


def test_azure_rows_count_from_the_first_and_share_no_block() -> None:
    lines = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,513,44",
        "2023-11-16 18:15:48.1805900,20,109",
    ]

    assert list(read_azure(lines)) == [
        TraceRow(0.0, 513, 44, (0, 1)),
        TraceRow(1.5, 20, 109, (2,)),
    ]


@pytest.mark.parametrize("name", ["mooncake_conversation.jsonl", "azure_conversation.csv"])
def test_a_cut_has_its_rows_in_order_with_a_block_for_each_part_of_the_prompt(name: str) -> None:
    rows = read_trace(DATA / name)

    assert len(rows) == 3000
    assert [row.arrival_s for row in rows] == sorted(row.arrival_s for row in rows)
    assert all(len(row.blocks) == -(-row.prompt_tokens // BLOCK_TOKENS) for row in rows)


def test_a_trace_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"\.csv"):
        read_trace(tmp_path / "trace.parquet")


def test_a_trace_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()

    with pytest.raises(InvalidRequest, match="no rows"):
        read_trace(tmp_path / "empty.jsonl")
