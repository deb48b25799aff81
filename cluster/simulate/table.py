"""Figures as a table that fits a terminal and a document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from cluster.simulate.capacity import KEPT_SHARE, REFERENCE, Study
from cluster.simulate.figures import ClassFigures, Figures
from cluster.simulate.scaling import ScaledRun

HEAD = (
    "policy",
    "class",
    "offered/s",
    "met/s",
    "met %",
    "refused",
    "TTFT p50 / p95 / p99 ms",
    "TPOT p50 / p95 / p99 ms",
    "hit %",
    "Jain",
    "decisions/s",
)


def policy_table(figures: Iterable[Figures]) -> str:
    """A row for each policy, and below it one for each class."""
    rows = [row for one in figures for row in _rows(one)]
    return markdown(HEAD, rows)


def capacity_table(study: Study) -> str:
    """The highest load of each policy at which `KEPT_SHARE` of the offered meet their targets."""
    head = (
        f"policy at {KEPT_SHARE:.0%}",
        "speed",
        "offered/s",
        f"times {REFERENCE}",
        "met %",
        "TTFT p50 / p95 / p99 ms",
        "hit %",
    )
    rows = [
        (
            one.figures.policy,
            f"{one.speed:.3g}",
            f"{one.figures.offered_per_s:.1f}",
            f"{one.speed / study.reference.speed:.2f}",
            f"{100 * one.figures.every.met_share:.1f}",
            _milliseconds(one.figures.every.ttft_s),
            f"{100 * one.figures.hit_rate:.1f}",
        )
        for one in study.capacities
    ]
    return markdown(head, rows)


def scaling_table(run: ScaledRun) -> str:
    """A row for all requests and one for each class, then what was decided, and when."""
    head = ("class", "requests", "met %", "refused", "TTFT p50 / p95 / p99 ms")
    rows = [
        (
            name,
            f"{one.offered}",
            f"{100 * one.met_share:.1f}",
            f"{one.refused}",
            _milliseconds(one.ttft_s),
        )
        for name, one in (("all", run.every), *run.classes.items())
    ]
    decided = "".join(f"{at:7.0f} s: {shards} shards, {why}\n" for at, shards, why in run.changes)
    return f"{markdown(head, rows)}\nshard hours: {run.shard_s / 3600:.2f}\n{decided}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell."""
    cells = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = [
        " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in cells
    ]
    rule = "-|-".join("-" * width for width in widths)
    return "".join(f"| {line} |\n" for line in (lines[0], rule, *lines[1:]))


def _rows(one: Figures) -> Iterable[tuple[str, ...]]:
    seconds = one.every.offered / one.offered_per_s
    tail = f"{100 * one.hit_rate:.1f}", f"{one.fairness:.3f}", f"{one.decisions_per_s:,.0f}"
    yield (one.policy, "all", *_class_cells(one.every, seconds), *tail)
    for name, figures in one.classes.items():
        yield ("", name, *_class_cells(figures, seconds), "", "", "")


def _class_cells(figures: ClassFigures, seconds: float) -> tuple[str, ...]:
    return (
        f"{figures.offered / seconds:.1f}",
        f"{figures.met / seconds:.1f}",
        f"{100 * figures.met_share:.1f}",
        f"{figures.refused}",
        _milliseconds(figures.ttft_s),
        _milliseconds(figures.tpot_s),
    )


def _milliseconds(quantiles: Iterable[float]) -> str:
    return " / ".join("-" if math.isinf(each) else f"{1000 * each:.0f}" for each in quantiles)
