"""Draw what `python -m benchmarks.autoscaling --json FILE` found, over time.

    pip install matplotlib
    python -m benchmarks.plot_autoscaling FILE --out docs/images/autoscaling-real.png

Above the requests that came, then the shards that served, then the 95th percentiles by window over
their targets, where 1 is just in time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks.autoscaling.findings import WINDOW_S
from benchmarks.plot_scaling import BLUE, GREY, RED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False})
    draw(json.loads(options.file.read_text()), options.out)


def draw(run: dict[str, Any], out: Path) -> None:
    figure, (load, shards, late) = plt.subplots(3, 1, figsize=(8, 6), sharex=True)
    samples, windows = run["samples"], run["windows"]
    begins = [window["at_s"] for window in windows]
    rates = [window["requests"] / WINDOW_S for window in windows]
    load.step([*begins, begins[-1] + WINDOW_S], [*rates, rates[-1]], where="post", color=GREY)
    load.set(ylabel="offered requests/s", ylim=(0, None))
    counts = [sample["shards"] for sample in samples]
    shards.step([sample["at_s"] for sample in samples], counts, where="post", color=BLUE)
    shards.set(ylabel="shards that serve", ylim=(0, max(counts) + 0.5))
    for name, label, colour in (("ttft", "first token", RED), ("tpot", "further tokens", BLUE)):
        target = run["targets"][f"{name}_s"]
        shares = [(window[f"{name}_p95"] or 0.0) / target for window in windows]
        middles = [at_s + WINDOW_S / 2 for at_s in begins]
        late.plot(middles, shares, color=colour, label=label, marker=".")
    late.axhline(1, color="black", linewidth=0.5, linestyle=":")
    late.set(ylabel="p95 over its target", ylim=(0, None), xlabel="seconds")
    late.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(out, dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    main()
