"""Is the engine exact on this GPU, and how near does it come to what the card allows?

    python -m benchmarks.gpu --json gpu.json
    python -m benchmarks.gpu --device cpu --shape tiny --batches 1,2

No network and no Ray. First come the checks of exactness, and nothing is timed where one fails.
Then each shape, with random weights in bfloat16, is served by the engine and by transformers' own
continuous batching: prompts all at once, greedily, each its own. Prompt tokens a second are counted
until the last request has its first token, output tokens while all requests are getting theirs.
Beside them stand the most that is possible by the card's memory and products, as measured in
this run. On a CPU, where the GPU's kernel is replaced by a slow one of the same contract, the
figures mean nothing: it shows that the way up to the device works.

Exit status 1 where a check failed, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from transformers.utils.logging import set_verbosity_error

from benchmarks.floor import Limits, measure_limits
from benchmarks.gpu.exact import Check, checks
from benchmarks.gpu.flash_on_cpu import flash_on_cpu
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.speed import Figure, bench_of, ours, release, theirs
from benchmarks.records import machine
from benchmarks.report import markdown_row

DTYPE = torch.bfloat16

COLUMNS = (
    *("shape", "at once", "server"),
    *("prompt tok/s", "of the limit", "output tok/s", "of the limit", "in forward passes"),
)


def main() -> int:
    options = _options()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here; --device cpu --shape tiny tries out the way up to it")
        return 2
    set_verbosity_error()
    device = torch.device(options.device)
    with ExitStack() as stack:
        if device.type == "cpu":
            stack.enter_context(flash_on_cpu())
        checked = list(_told(checks(device, quick=device.type == "cpu")))
        if not all(check.passed for check in checked):
            return _save(options.json, device, checked, None, [])
        limits = measure_limits(DTYPE, device)
        print(
            f"\n{_name(device)}: streams {limits.bytes_s / 1e9:.0f} GB/s,"
            f" multiplies {limits.flop_s / 1e12:.1f} TFLOP/s in {DTYPE}\n"
        )
        figures = list(_figures(options, device, limits))
    return _save(options.json, device, checked, limits, figures)


def _told(found: Iterable[Check]) -> Iterator[Check]:
    """As they come, since the next one may take a while."""
    for check in found:
        print(f"{'ok    ' if check.passed else 'FAILED'} {check.name}: {check.detail}", flush=True)
        yield check


def _figures(options: argparse.Namespace, device: torch.device, limits: Limits) -> Iterator[Figure]:
    """A row each, at once. Nothing more is begun when the time is over."""
    end = monotonic() + 60 * options.minutes
    print(markdown_row(*COLUMNS), markdown_row(*["---"] * len(COLUMNS)), sep="\n")
    for name in options.shape:
        for served in (ours, theirs) if options.peer else (ours,):
            bench = bench_of(name, SHAPES[name], DTYPE, device, limits)
            for figure in served(bench, options.batches):
                print(_row(figure), flush=True)
                yield figure
                if monotonic() > end:
                    print(f"\n{options.minutes:g} minutes are over: the rest is left out")
                    return
            del bench
            release()


def _row(figure: Figure) -> str:
    if figure.problem:
        return markdown_row(figure.shape, str(figure.batch), figure.server, figure.problem)
    return markdown_row(
        figure.shape,
        str(figure.batch),
        figure.server,
        *_cells(figure.prefill_tok_s, figure.prefill_limit),
        *_cells(figure.decode_tok_s, figure.decode_limit),
        "" if figure.forward_share is None else f"{figure.forward_share:.0%}",
    )


def _cells(rate: float | None, limit: float | None) -> tuple[str, str]:
    if rate is None or limit is None:
        return "never all at once", ""
    return f"{rate:,.0f}", f"{rate / limit:.0%}"


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _save(
    path: Path | None,
    device: torch.device,
    checked: list[Check],
    limits: Limits | None,
    figures: list[Figure],
) -> int:
    """Returns the exit status."""
    content: dict[str, Any] = {
        "machine": machine() | {"device": _name(device), "cuda": torch.version.cuda},
        "limits": None if limits is None else asdict(limits),
        "checks": [asdict(check) for check in checked],
        "figures": [asdict(figure) for figure in figures],
    }
    if path is not None:
        path.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if all(check.passed for check in checked) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--shape",
        type=lambda text: text.split(","),
        default=["1b", "8b"],
        help=f"of {', '.join(SHAPES)}",
    )
    parser.add_argument(
        "--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 32, 256]
    )
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="Shoal alone")
    parser.add_argument(
        "--minutes", type=float, default=6.0, help="after which nothing more is begun"
    )
    parser.add_argument("--json", type=Path, help="file for all figures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
