"""Draw what `python -m benchmarks.pareto --json FILE` found: tokens a second against the p99.

python -m benchmarks.plot_pareto FILE --out docs/images/pareto.svg # needs the `bench` extra
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

PANELS = {"tpot_p99_s": "chat, TPOT p99 ms", "ttft_p99_s": "chat, TTFT p99 ms"}


def draw(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """A panel for each latency, a line for each curve."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, len(PANELS), sharey=True)
    for axis, (name, title) in zip(axes, PANELS.items(), strict=True):
        for label, points in found.items():
            late = [1000 * point[name] for point in points]
            axis.plot(late, [point["tokens_s"] for point in points], marker="o", label=label)
        axis.set(xscale="log", xlabel=title)
        axis.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("tokens/s, prompts and outputs")
    axes[0].legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.plot_pareto", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("points", type=Path, help="JSON that `pareto --json` wrote")
    parser.add_argument("--out", type=Path, required=True, help="a .png or .svg to write")
    options = parser.parse_args()
    mpl.rcParams["svg.hashsalt"] = "shoal"  # the same figures give the same file
    figure = draw(json.loads(options.points.read_text()))
    figure.savefig(options.out, metadata={"Date": None} if options.out.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
