"""The command.

    python -m benchmarks.chaos --requests 1000 --kills 50 --seed 1

Starts the application with a tiny model in float32, asks each kind of request once undisturbed,
then asks for all of them again, many at once, while shards, the scheduler, Routers and the Fleet
are killed, stopped and starved of memory, connections are cut and the disk is full. With
`--machines 2` the shards run on so many, which are cut off from all others at times. Every answer
is compared word for word with the undisturbed one. Exit status 1 where anything was lost, repeated
or wrong, or stayed behind.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.chaos.faults import FAULTS
from benchmarks.chaos.run import Chaos
from benchmarks.chaos.site import prepared
from benchmarks.mixture import asks
from tests.system.application import MODEL
from tests.system.tiny import save_tiny_model


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny_model(Path(folder))
        with prepared(model, options.shards, options.machines, router={"replicas": 2}) as site:
            chaos = Chaos(site, options.seed, options.limit, options.only)
            wanted = asks(MODEL, options.distinct, options.seed)
            began = time.monotonic()
            report = asyncio.run(
                chaos.run(wanted, options.requests, options.kills, options.at_once)
            )
    print(f"{time.monotonic() - began:.0f} s in all", *report.lines(), sep="\n")
    sys.exit(0 if report.is_clean else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill anything, lose nothing.")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--kills", type=int, default=10, help="deaths; lighter faults come on top")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--machines", type=int, default=0, help="of the shards; needs root")
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", nargs="*", choices=names, default=[], help="faults")
    parser.add_argument("--distinct", type=int, default=56, help="different requests among them")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of load at most")
    parser.add_argument("--at-once", type=int, default=24, help="requests under way")
    return parser.parse_args()


if __name__ == "__main__":
    main()
