"""What a quicker pace costs: tokens a second of a shard on paper against the p99 of its chats.

    python -m benchmarks.pareto [--device h100] [--json FILE]
    python -m benchmarks.plot_pareto FILE --out docs/images/pareto.svg # needs the `bench` extra

Chats (512 tokens in, 128 out, P0) and batch (2,048 in, 32 out, P2) keep a simulated shard full:
as one ends, the next of its kind comes. One curve goes by the pace that chat is promised
(`tpot_s`), from none to a tight one; the other by the size of all steps (`max_batch_tokens`), with
nothing promised, as servers are tuned that know no classes. The same command gives the same points.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.metrics import percentile
from benchmarks.report import markdown_row
from cluster.messages import Submission
from cluster.simulate.costs import Device, read_device
from cluster.simulate.engine import SimulatedEngine
from cluster.simulate.workload import MODEL, ROUTER, Offered

PAGE_TOKENS = 16
SECONDS, WARM_UP_S = 120.0, 20.0
SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""Tokens of a step, with nothing promised."""

LARGEST = 4096
"""Tokens that a step may hold where the pace that is promised decides how many it does."""

SHARES = (0.7, 0.5, 0.35, 0.25, 0.18, 0.12)
"""Paces that are promised, as shares of the one that chats have where nothing is."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A class as it comes: so many at once, each with so many tokens in and out."""

    name: str
    rank: int
    clients: int
    prompt: int
    output: int


CHAT, BATCH = Kind("chat", 0, 32, 512, 128), Kind("batch", 2, 64, 2048, 32)


@dataclass(frozen=True, slots=True)
class Point:
    """Tokens of all prompts and outputs a second, and of chats the p99 of pace and first token."""

    setting: str
    tokens_s: float
    tpot_p99_s: float
    ttft_p99_s: float


class Shard:
    """A simulated shard that is kept full, and what its requests saw."""

    def __init__(self, device: Device, tpot_s: float | None) -> None:
        self._engine = SimulatedEngine(device, PAGE_TOKENS)
        self._tpot_s = tpot_s
        self._kinds: dict[str, Kind] = {}
        self._came: dict[str, float] = {}
        self._first: dict[str, float] = {}
        self._ttft: list[float] = []
        self._tpot: list[float] = []
        self._tokens = 0

    def serve(self, setting: str) -> Point:
        """Until the time is over; what ended after the warm-up counts."""
        now = 0.0
        for kind in (CHAT, BATCH):
            for _ in range(kind.clients):
                self._come(kind, now)
        while now < SECONDS and (run := self._engine.begin(now)):
            now = run.end_s
            outcome = self._engine.finish()
            self._first.update({one.request_id: now for one in outcome.started})
            for one in outcome.ended:
                self._end(one.request_id, now)
        self._engine.verify()
        pace, first = percentile(self._tpot, 99), percentile(self._ttft, 99)
        return Point(setting, self._tokens / (now - WARM_UP_S), pace, first)

    def _come(self, kind: Kind, now: float) -> None:
        name = f"{kind.name}-{len(self._kinds)}"
        self._kinds[name], self._came[name] = kind, now
        pages = tuple(f"{name}:{page}".encode() for page in range(kind.prompt // PAGE_TOKENS))
        submission = Submission(name, ROUTER, MODEL, "t", "P1", kind.prompt, kind.output, 1, pages)
        tpot_s = self._tpot_s if kind is CHAT else None
        self._engine.admit(Offered(now, submission, kind.output), now, kind.rank, tpot_s)

    def _end(self, name: str, now: float) -> None:
        kind, first = self._kinds[name], self._first[name]
        if now > WARM_UP_S:
            self._tokens += kind.prompt + kind.output
            if kind is CHAT:
                self._ttft.append(first - self._came[name])
                self._tpot.append((now - first) / (kind.output - 1))
        self._come(kind, now)


def curves(device: Device) -> Mapping[str, Sequence[Point]]:
    """By the pace promised, and by the size of steps."""
    wide = replace(device, max_batch_tokens=LARGEST)
    free = Shard(wide, None).serve("none")
    paces = [share * free.tpot_p99_s for share in SHARES]
    sizes = [replace(device, max_batch_tokens=size) for size in SIZES]
    return {
        "by the pace promised": [
            free,
            *(Shard(wide, pace).serve(f"{1000 * pace:.0f} ms") for pace in paces),
        ],
        "by the size of steps": [
            Shard(sized, None).serve(f"{sized.max_batch_tokens} tokens") for sized in sizes
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.pareto", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", default="h100", help="as `cluster.simulate` takes it")
    parser.add_argument("--json", type=Path, help="keep the points here")
    options = parser.parse_args()
    found = curves(read_device(options.device))
    if options.json:
        kept = {name: [asdict(point) for point in points] for name, points in found.items()}
        options.json.write_text(json.dumps(kept, indent=1) + "\n")
    print(markdown_row("curve", "setting", "tokens/s", "TPOT p99 ms", "TTFT p99 ms"))
    print(markdown_row(*["---"] * 5))
    for name, points in found.items():
        for one in points:
            late = (f"{1000 * one.tpot_p99_s:.0f}", f"{1000 * one.ttft_p99_s:.0f}")
            print(markdown_row(name, one.setting, f"{one.tokens_s:.0f}", *late))


if __name__ == "__main__":
    main()
