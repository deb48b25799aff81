"""Draw what `python -m cluster.simulate --speed A B C ... --json FILE` found, load by load.

    pip install matplotlib
    python -m benchmarks.plot_simulation FILE [FILE ...] --out docs/images/simulation.svg

A column for each file: the share of the offered requests that met their targets, and for each class
the 95th percentile of the time to first token, over the offered load.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

COLOURS = {
    "ours": "#d1495b",
    "prefix_only": "#2e86ab",
    "least_loaded": "#6a994e",
    "least_requests": "#a7c957",
    "round_robin": "#8d99ae",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    # The same figures give the same file, so that a redrawn plot is no change.
    mpl.rcParams.update({"svg.hashsalt": "shoal", "font.size": 9, "axes.spines.top": False})
    draw([json.loads(file.read_text()) for file in options.files], options.out)


def draw(studies: list[dict[str, Any]], out: Path) -> None:
    rows = 1 + len(studies[0]["figures"][0]["classes"])
    size = (4.4 * len(studies), 2.2 * rows)
    figure, axes = plt.subplots(rows, len(studies), figsize=size, sharex="col", squeeze=False)
    for column, study in enumerate(studies):
        draw_study(study, [row[column] for row in axes])
    axes[0][0].set_ylabel("met their targets, %")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


def draw_study(study: dict[str, Any], axes: list[Any]) -> None:
    """A line for each policy: first what met its targets, then a class in each row."""
    met, *latencies = axes
    for policy, points in by_policy(study).items():
        loads = [point["offered_per_s"] for point in points]
        shares = [100 * point["every"]["met"] / point["every"]["offered"] for point in points]
        style = {"label": policy, "color": COLOURS[policy], "marker": ".", "linewidth": 1.2}
        met.plot(loads, shares, **style)
        for axis, name in zip(latencies, sorted(points[0]["classes"]), strict=True):
            axis.plot(loads, [point["classes"][name]["ttft_s"][1] for point in points], **style)
            axis.set(yscale="log", ylabel=f"{name}: TTFT p95, s")
    met.axhline(95, color="black", linewidth=0.5, linestyle=":")
    met.set(title=f"{study['command']['shards']} shards", ylim=(0, 101))
    latencies[-1].set_xlabel("offered requests/s")


def by_policy(study: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The figures of each policy in order of load."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for point in sorted(study["figures"], key=lambda point: float(point["offered_per_s"])):
        found[point["policy"]].append(point)
    return found


if __name__ == "__main__":
    main()
