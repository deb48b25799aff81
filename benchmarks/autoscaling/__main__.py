"""The command, and what it prints.

    python -m benchmarks.autoscaling --json FILE

Starts the application with a tiny model that may have one to three shards, replays a piece of a
production trace, faster, then slower, and looks once a second at how many shards serve. Prints
load, shards and latency by windows of ten seconds. Exit status 1 where a request failed, a 95th
percentile was beyond its target other than while a shard was on its way, the number of shards went
up and down more often than the load did, or did not follow it at all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from actors.tasks import cancel_all
from benchmarks.autoscaling.findings import Bounds, Findings, Sample, Targets, find
from benchmarks.autoscaling.replay import Phase, Scale, lasting, parse_phase, replayed
from benchmarks.autoscaling.report import lines
from benchmarks.autoscaling.watch import Shares, watch
from benchmarks.client import drive_paced
from benchmarks.records import machine
from benchmarks.servers import ROOT
from benchmarks.tiny import Server, started
from benchmarks.workloads import Prompt
from cluster.scheduling_config import SchedulingConfig
from cluster.simulate.traces import read_trace

KEYS = "bench:sk-bench"
TRACE = ROOT / "benchmarks" / "data" / "azure_conversation.csv"
BEGIN_S = 60.0
"""The trace before that has not come to its load yet."""

PHASES = (Phase(40, 0.3), Phase(20, 0.7), Phase(60, 1.2), Phase(20, 0.7), Phase(90, 0.3))
SCALE = Scale(prompt=1 / 16, output=1 / 4, longest_prompt=500, longest_output=250)
WARM_PROMPTS = 8
PATIENCE_S = 30.0
"""So long after the last request what is not answered has failed."""


def main() -> None:
    options = _options()
    targets = _targets()
    with started(KEYS, _model(options)) as server:
        findings = asyncio.run(run(server, options, targets))
    bounds = Bounds(options.warm_up, turns=1)
    print(*lines(findings, targets, bounds), sep="\n")
    if options.json is not None:
        kept = {"machine": machine(), "command": _told(options), "targets": asdict(targets)}
        options.json.write_text(json.dumps(kept | asdict(findings), indent=1) + "\n")
    sys.exit(1 if findings.faults(bounds) else 0)


async def run(server: Server, options: argparse.Namespace, targets: Targets) -> Findings:
    prompts = replayed(read_trace(TRACE), BEGIN_S, options.phases, SCALE, options.seed)
    with Shares(server, options.share) as shares:
        shares.hold(1)
        await drive_paced(server.endpoint, _warm_up(prompts), PATIENCE_S)
        samples: list[Sample] = []
        began = time.monotonic()
        watching = asyncio.create_task(watch(server, shares, began, samples))
        ends_s = lasting(options.phases)
        timelines = await drive_paced(server.endpoint, prompts, ends_s + PATIENCE_S)
        await asyncio.sleep(max(began + ends_s - time.monotonic(), 0.0))
        await cancel_all(watching)
    asked = [(at_s, one) for (at_s, _), one in zip(prompts, timelines, strict=True)]
    return find(asked, samples, targets)


def _warm_up(prompts: Sequence[tuple[float, Prompt]]) -> list[tuple[float, Prompt]]:
    """Other prompts of those lengths, one a second, so that nothing is new and nothing cached."""
    first = prompts[:WARM_PROMPTS]
    return [
        (float(number), Prompt(prompt.tokens[::-1], "", prompt.output))
        for number, (_, prompt) in enumerate(first)
    ]


def _targets() -> Targets:
    """Of the class that requests are of which name none."""
    config = SchedulingConfig()
    [sla] = [one for one in config.classes if one.name == config.default_class]
    assert sla.ttft_s is not None  # the default class has both
    assert sla.tpot_s is not None
    return Targets(sla.ttft_s, sla.tpot_s)


def _model(options: argparse.Namespace) -> dict[str, Any]:
    scaling = {
        "min_shards": 1,
        "max_shards": options.max_shards,
        "settle_s": options.settle,
        "down_after_s": options.down_after,
    }
    batching = {"max_num_seqs": options.places, "max_batch_tokens": 256}
    return {"shards": 1, "batching": batching, "autoscaling": scaling}


def _told(options: argparse.Namespace) -> dict[str, Any]:
    asked = {name: value for name, value in vars(options).items() if name != "json"}
    return asked | {"phases": [asdict(phase) for phase in options.phases], "scale": asdict(SCALE)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Shards that follow a trace.")
    parser.add_argument(
        "--phases",
        type=parse_phase,
        nargs="+",
        default=PHASES,
        help="SECONDSxSPEED: how fast the trace runs, for how long",
    )
    parser.add_argument("--max-shards", type=int, default=3)
    parser.add_argument("--places", type=int, default=4, help="of a shard: max_num_seqs")
    parser.add_argument("--share", type=float, default=0.25, help="of a core that a shard has")
    parser.add_argument("--settle", type=float, default=30.0, help="settle_s")
    parser.add_argument("--down-after", type=float, default=20.0, help="down_after_s")
    parser.add_argument(
        "--warm-up",
        type=float,
        default=30.0,
        help="seconds from the first late window until another shard serves",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write all of it there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
