"""Shoal and its peers on the same work, in turn, round after round: one table at the end.

    python -m benchmarks.compare --peer vllm --rounds 3 --workloads W1,W2,W3,W4,W5
    python -m benchmarks.compare --peer none --workloads sweep --json sweep.json
    python -m benchmarks.compare --url http://127.0.0.1:8000 --model NAME --pid 123

Only one server runs at a time. Each round starts every server anew, in the opposite order of the
round before, warms it up on prompts of its own and then gives all of them the same prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from benchmarks.accounting import Usage, Watch
from benchmarks.client import Endpoint
from benchmarks.metrics import summarize
from benchmarks.peers import PEERS, PeerAbsent, Setting, Start, read_setting, shoal
from benchmarks.records import Record, save
from benchmarks.report import OURS, number, tables
from benchmarks.servers import HttpServer, ServerFailed, Subject
from benchmarks.workloads import Words, Workload, expand, make_workload, words_of
from cluster.errors import OperatorError

WARM_UP_RUN = 0
EVERY = ("W1", "W2", "W3", "W4", "W5")


def main() -> int:
    """0 when all ran, 1 when a server or a request failed, 2 when something is missing."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # end what we started
    records: list[Record] = []
    try:
        for record in _sitting(options, read_setting(options.config, options.peers)):
            records.append(record)
            _tell(record)
            if options.json:
                save(options.json, records)
    except (PeerAbsent, OperatorError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    except ServerFailed as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    print(f"\n{tables(records)}")
    return 1 if any(record.figures.failed for record in records) else 0


def _sitting(options: argparse.Namespace, setting: Setting) -> Iterator[Record]:
    """All rounds, each in the opposite order of the one before."""
    words = words_of(setting.model)
    servers = list(_servers(options).items())
    for _, start in servers:
        start(setting)  # whoever is absent is missed now, and not after an hour
    for round_number in range(options.rounds):
        runs = _runs(round_number, options.repeats)
        for server, start in servers if round_number % 2 == 0 else servers[::-1]:
            print(f"round {round_number + 1} of {options.rounds}: {server} starts", flush=True)
            with start(setting) as subject:
                yield from _turn(server, subject, options.workloads, runs, words)


def _turn(
    server: str, subject: Subject, names: Sequence[str], runs: Sequence[int], words: Words
) -> Iterator[Record]:
    """Every workload on one server that has just started."""
    for name in names:
        asyncio.run(subject.drive(make_workload(name, WARM_UP_RUN, words).warm_up()))
        for run in runs:
            yield measure(server, subject, make_workload(name, run, words))


def measure(server: str, subject: Subject, workload: Workload) -> Record:
    """One run, with what it took of the machine where the server's process is known."""
    watch = Watch(subject.pid, subject.engine_title).start() if subject.pid else None
    timelines, wall = asyncio.run(subject.drive(workload))
    usage: Usage | None = watch.stop() if watch else None
    figures = summarize(timelines, wall)
    for error in sorted({one.error for one in timelines if one.error}):
        print(f"  {server} {workload.name}: {error}", file=sys.stderr)
    return Record(server, workload.name, workload.run, figures, usage)


def _servers(options: argparse.Namespace) -> dict[str, Start]:
    if options.url:
        return {options.label: partial(_running, options)}
    return {OURS: shoal, **{name: PEERS[name] for name in options.peer}}


def _running(options: argparse.Namespace, setting: Setting) -> AbstractContextManager[Subject]:
    """A server that somebody else started and will end."""
    model = options.model or setting.config.shoal.models[0].name
    endpoint = Endpoint(options.url, model, os.environ.get("OPENAI_API_KEY"))
    return nullcontext(HttpServer(endpoint, options.pid, options.engine_title))


def _runs(round_number: int, repeats: int) -> range:
    first = WARM_UP_RUN + 1 + round_number * repeats
    return range(first, first + repeats)


def _tell(record: Record) -> None:
    figures, usage = record.figures, record.usage
    others = f", others {number(usage.others_cpu_s)} s" if usage else ""
    print(
        f"{record.workload} run {record.run} {record.server}: {number(figures.output_tok_s)} tok/s,"
        f" TTFT p50 {number(figures.ttft_p50)} ms, TPOT {number(figures.tpot_mean)} ms{others}",
        flush=True,
    )


def _peers(names: str) -> list[str]:
    peers = [name for name in names.split(",") if name != "none"]
    if unknown := set(peers) - set(PEERS):
        raise argparse.ArgumentTypeError(f"{unknown} unknown; there are {', '.join(PEERS)}, none")
    return peers


def _workloads(names: str) -> tuple[str, ...]:
    try:
        return expand(names)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.compare", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--peer", type=_peers, default=[], help=f"{', '.join(PEERS)} or none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1, help="runs of a workload in a round")
    parser.add_argument("--workloads", type=_workloads, default=EVERY, help="and C<n>, sweep")
    parser.add_argument("--config", type=Path, default=Path("ray-config.yaml"), help="of Shoal")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments")
    parser.add_argument("--json", type=Path, help="keep every run here")
    parser.add_argument("--url", help="measure this server, which is running, and no other")
    parser.add_argument("--label", default=OURS, help="what to call it")
    parser.add_argument("--model", help="what it calls its model; its key is in OPENAI_API_KEY")
    parser.add_argument("--pid", type=int, help="root of its processes, for CPU and memory")
    parser.add_argument("--engine-title", default="ray::KVShard", help="of its engine process")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
