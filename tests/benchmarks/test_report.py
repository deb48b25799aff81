"""Runs are kept whole and compared pair by pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accounting import Usage
from benchmarks.metrics import Timeline, summarize
from benchmarks.records import Record, load, save
from benchmarks.report import number, spread, tables

FIGURES = summarize([Timeline(0.0, (1.0, 2.0), 2, 2)], wall_s=2.0)
USAGE = Usage(9.0, 1.0, 0.5, 0.0, 0.0, 4.0, 2.0, {"shard": 9.0, "raylet": 1.0})


def record(server: str, run: int, tok_s: float, workload: str = "W1") -> Record:
    return Record(server, workload, run, replace(FIGURES, output_tok_s=tok_s), USAGE)


def cells(table: str, measure: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {measure} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_saved_records_are_loaded_as_they_were(tmp_path: Path) -> None:
    kept = [record("shoal", 1, 10.0), replace(record("vllm", 1, 20.0), usage=None)]
    save(tmp_path / "runs.json", kept)
    assert load(tmp_path / "runs.json") == kept


def test_a_cell_is_the_median_with_the_least_and_the_most() -> None:
    table = tables([record("shoal", run, tok_s) for run, tok_s in ((1, 10), (2, 30), (3, 14))])
    assert cells(table, "output tok/s") == ["14 (10 - 30)"]


def test_ours_over_theirs_is_taken_within_pairs_of_the_same_run() -> None:
    ours = [record("shoal", 1, 20), record("shoal", 2, 10)]
    theirs = [record("vllm", 2, 5), record("vllm", 1, 20)]
    table = tables([*ours, *theirs])
    assert cells(table, "output tok/s")[-1] == "1.5 (1 - 2)"


def test_a_run_without_its_pair_has_no_ratio() -> None:
    table = tables([record("shoal", 1, 20), record("vllm", 2, 5)])
    assert cells(table, "output tok/s") == ["20", "5", "-"]


def test_each_workload_has_a_table_of_its_own() -> None:
    table = tables([record("shoal", 1, 20), record("shoal", 1, 30, "W5")])
    assert [line for line in table.splitlines() if line.startswith("| W")] == [
        "| W1 | shoal |",
        "| W5 | shoal |",
    ]


def test_the_framework_share_is_of_the_servers_cpu_time() -> None:
    assert cells(tables([record("shoal", 1, 20)]), "framework share %") == ["10"]


def test_the_busiest_processes_are_named_under_the_table() -> None:
    assert "shoal, CPU s: shard 9, raylet 1" in tables([record("shoal", 1, 20)])


def test_what_was_not_measured_is_a_dash() -> None:
    table = tables([replace(record("shoal", 1, 20), usage=None)])
    assert cells(table, "peak RSS GiB") == ["-"]
    assert spread([]) == "-"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.01234, "0.0123"), (9.876, "9.88"), (98.76, "98.8"), (1234.5, "1234")],
)
def test_numbers_have_three_figures_that_count(value: float, text: str) -> None:
    assert number(value) == text
