"""Draw what `python -m cluster.simulate --autoscale MIN MAX ... --json FILE` found, over time.

    pip install matplotlib
    python -m benchmarks.plot_scaling FILE --out docs/images/scaling.svg

Above the offered load, then the shards that were wanted and that served, then how late requests
were: the 95th percentile of the time over its target, where 1 is just in time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

RED, BLUE, GREY = "#d1495b", "#2e86ab", "#8d99ae"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    # The same figures give the same file, so that a redrawn plot is no change.
    mpl.rcParams.update({"svg.hashsalt": "shoal", "font.size": 9, "axes.spines.top": False})
    [run] = json.loads(options.file.read_text())["scaled"]
    draw(run["moments"], options.out)


def draw(moments: list[dict[str, Any]], out: Path) -> None:
    minutes = [moment["at_s"] / 60 for moment in moments]
    figure, (load, shards, late) = plt.subplots(3, 1, figsize=(8, 6), sharex=True)
    load.plot(minutes, [moment["offered_per_s"] for moment in moments], color=GREY)
    load.set(ylabel="offered requests/s", ylim=(0, None))
    for name, colour in (("wanted", BLUE), ("serving", RED)):
        counts = [moment[name] for moment in moments]
        shards.step(minutes, counts, where="post", color=colour, label=name)
    shards.set(ylabel="shards", ylim=(0, None))
    shards.legend(frameon=False, loc="lower center")
    late.plot(minutes, [moment["late"] for moment in moments], color=RED)
    late.axhline(1, color="black", linewidth=0.5, linestyle=":")
    late.set(ylabel="p95 over its target", yscale="log", xlabel="minutes")
    late.set_yticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"], minor=False)
    late.minorticks_off()
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main()
