"""Draw throughput and latency over the number of clients, from a sweep that `compare` kept.

python -m benchmarks.compare --peer vllm --workloads sweep --json sweep.json
python -m benchmarks.plot sweep.json docs/images/concurrency.png        # needs the `bench` extra
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.records import Record, load
from benchmarks.report import MEASURES

PANELS = ("output tok/s", "TPOT mean ms")


def draw(records: Sequence[Record]) -> Figure:
    """One panel a measure, one line a server: the medians, and the spread of the runs as a band."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    sweep = [record for record in records if clients(record) is not None]
    for panel, measure in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        for server in dict.fromkeys(record.server for record in sweep):
            _line(panel, server, _points([r for r in sweep if r.server == server], measure))
        _dress(panel, measure)
    return figure


def clients(record: Record) -> int | None:
    """How many at once, if the record is of a sweep."""
    name, count = record.workload[:1], record.workload[1:]
    return int(count) if name == "C" else None


def _points(records: Sequence[Record], measure: str) -> dict[int, list[float]]:
    """All values measured at each number of clients, fewest clients first."""
    points: dict[int, list[float]] = {}
    for record in sorted(records, key=lambda record: clients(record) or 0):
        value = MEASURES[measure](record)
        if value is not None:
            points.setdefault(clients(record) or 0, []).append(value)
    return points


def _line(panel: Axes, server: str, points: dict[int, list[float]]) -> None:
    counts = list(points)
    panel.plot(counts, [median(values) for values in points.values()], marker="o", label=server)
    lows, highs = [min(v) for v in points.values()], [max(v) for v in points.values()]
    panel.fill_between(counts, lows, highs, alpha=0.2)


def _dress(panel: Axes, measure: str) -> None:
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter("{x:.0f}")
    panel.set_ylim(bottom=0)
    panel.set_xlabel("clients at once")
    panel.set_ylabel(measure)
    panel.grid(alpha=0.3)
    panel.legend()


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.plot", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("records", type=Path, help="JSON that `compare --json` wrote")
    parser.add_argument("image", type=Path, help="a .png or .svg to write")
    options = parser.parse_args()
    draw(load(options.records)).savefig(options.image, dpi=144)


if __name__ == "__main__":
    main()
