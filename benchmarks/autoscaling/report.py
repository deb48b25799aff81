"""A run for a person to read: a table of its windows, and what became of its shards."""

from __future__ import annotations

from benchmarks.autoscaling.findings import WINDOW_S, Bounds, Findings, Targets, WarmUp, Window
from benchmarks.report import markdown_row


def lines(findings: Findings, targets: Targets, bounds: Bounds) -> list[str]:
    """Also what is not as promised, last."""
    return [
        markdown_row("from s", "requests/s", "tokens/s", "shards", "TTFT p95 s", "TPOT p95 ms", ""),
        markdown_row(*["---"] * 7),
        *(markdown_row(*_cells(findings, window)) for window in findings.windows),
        "",
        f"{findings.requests} requests, {len(findings.failed)} failed",
        f"targets: TTFT p95 {targets.ttft_s:g} s, TPOT p95 {1000 * targets.tpot_s:g} ms",
        f"shards: {_shards(findings)}; turns: {findings.turns}",
        *(_warm_up(one, bounds) for one in findings.warm_ups),
        *(findings.faults(bounds) or ["all as promised"]),
    ]


def _cells(findings: Findings, window: Window) -> tuple[str, ...]:
    until_s = window.at_s + WINDOW_S
    counts = {one.shards for one in findings.samples if window.at_s <= one.at_s < until_s}
    return (
        f"{window.at_s:.0f}",
        f"{window.requests / WINDOW_S:.1f}",
        f"{window.tokens / WINDOW_S:.0f}",
        ", ".join(map(str, sorted(counts))),
        "" if window.ttft_p95 is None else f"{window.ttft_p95:.2f}",
        "" if window.tpot_p95 is None else f"{1000 * window.tpot_p95:.1f}",
        "late" if window.late else "",
    )


def _shards(findings: Findings) -> str:
    told, last = [], None
    for sample in findings.samples:
        if sample.shards != last:
            told.append(f"{sample.shards} at {sample.at_s:.0f} s")
        last = sample.shards
    return ", ".join(told)


def _warm_up(one: WarmUp, bounds: Bounds) -> str:
    served = (
        "no shard came" if one.served_at_s is None else f"a shard came at {one.served_at_s:.0f} s"
    )
    judged = "within" if one.keeps(bounds.warm_up_s) else "not within"
    return (
        f"late from {one.from_s:.0f} s until {one.late_until_s:.0f} s, {served}:"
        f" {judged} a warm-up of {bounds.warm_up_s:g} s"
    )
