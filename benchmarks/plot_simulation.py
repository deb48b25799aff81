"""Draw what `python -m cluster.simulate --speed A B C ... --json FILE` found, load by load.

    pip install matplotlib
    python -m benchmarks.plot_simulation FILE [FILE ...] --out docs/images/simulation.svg

A column for each file: above the share of the offered requests that met their targets, below the
95th percentile of the time to first token, both over the offered load.
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
    size = (4.2 * len(studies), 5.6)
    figure, axes = plt.subplots(2, len(studies), figsize=size, sharex="col", squeeze=False)
    for column, study in enumerate(studies):
        met, ttft = axes[0][column], axes[1][column]
        for policy, points in by_policy(study).items():
            loads = [point["offered_per_s"] for point in points]
            every = [point["every"] for point in points]
            style = {"label": policy, "color": COLOURS[policy], "marker": ".", "linewidth": 1.2}
            met.plot(loads, [100 * one["met"] / one["offered"] for one in every], **style)
            ttft.plot(loads, [one["ttft_s"][1] for one in every], **style)
        met.axhline(95, color="black", linewidth=0.5, linestyle=":")
        met.set(title=f"{study['command']['shards']} shards", ylim=(0, 101))
        ttft.set(yscale="log", xlabel="offered requests/s")
    axes[0][0].set_ylabel("met their targets, %")
    axes[1][0].set_ylabel("TTFT p95, s")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


def by_policy(study: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The figures of each policy in order of load."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for point in sorted(study["figures"], key=lambda point: float(point["offered_per_s"])):
        found[point["policy"]].append(point)
    return found


if __name__ == "__main__":
    main()
