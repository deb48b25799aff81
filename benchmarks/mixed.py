"""Chat beside a flood of batch work on two real shards: with classes, without, and one at a time.

    python -m benchmarks.mixed [--seconds 24] [--json mixed.json] [--systems classes,fifo,one]

Each system is the same engine with the sizes of `ray-config.yaml`, started anew. First chat runs
alone, at its own pace: the idle figure. Then batch requests come beside it for as long, three times
as many as the shards complete when they have nothing else to do, which the first system is asked
for before. Requests come at random moments, chat at the same ones both times and for all systems,
whether or not earlier ones are answered; all are waited for, and rates are over the whole time.

Prompts are passages of Python's reference, as long as W1's, and so are the answers: random words
would have the model repeat itself, which is soon guessed, above all where one answers at a time.

`classes`: chat is P0 and batch P2 of Shoal's default classes. `fifo`: one class for all. `one`:
that too, and one sequence at a time on each shard, as a server without batching has it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import yaml
from tokenizers import Tokenizer

from actors.engine.calibration import sample_text
from benchmarks.client import Endpoint, drive, drive_paced
from benchmarks.metrics import MS, Timeline, percentile
from benchmarks.peers import read_setting, shoal
from benchmarks.records import machine
from benchmarks.report import markdown_row
from benchmarks.servers import ServerFailed
from benchmarks.workloads import Prompt, Workload

PROMPT_LENGTHS, OUTPUT = range(32, 257), 64
"""Tokens of both kinds, W1's."""

CHATS_PER_S = 1.0
FLOOD = 3.0
"""Batch requests come so many times as fast as they could be served alone."""

PROBES = 48
"""Batch requests that the capacity is measured by."""

LIMIT_S = 1200.0
"""What is not answered so long after the start is given up."""

ONE_CLASS = {
    "classes": [{"name": "all", "tiers": ["priority", "flex"], "queue_timeout_s": 3600}],
    "default_class": "all",
    "short_first_s": 0,
}

SYSTEMS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "classes": ({}, {}),
    "fifo": ({}, ONE_CLASS),
    "one": ({"max_num_seqs": 1}, ONE_CLASS),
}
"""Fields of `batching` and of `scheduling` in place of the config's."""

MAX_QUEUED = 100_000
"""Nobody is refused: all systems do the same work."""


@dataclass(frozen=True)
class Mixed:
    """What became of both kinds under one system; times in milliseconds, rates by the second."""

    system: str
    idle_p50: float
    idle_p99: float
    chat_p50: float
    chat_p99: float
    chat_tpot_p99: float
    chats: int
    chats_done: int
    batch_offered_s: float
    batch_done_s: float
    all_done_s: float
    all_p99: float

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            self.system,
            f"{self.idle_p50:.0f} / {self.idle_p99:.0f}",
            f"{self.chat_p50:.0f} / {self.chat_p99:.0f}",
            f"{self.chat_p99 / self.idle_p99:.2f}",
            f"{self.chat_tpot_p99:.0f}",
            f"{self.chats_done} of {self.chats}",
            f"{self.batch_done_s:.2f} of {self.batch_offered_s:.2f}",
            f"{self.all_done_s:.2f}",
            f"{self.all_p99:.0f}",
        )


HEADS = (
    "system",
    "chat TTFT idle p50 / p99 ms",
    "beside the flood",
    "p99, times idle",
    "chat TPOT p99 ms",
    "chats served",
    "batch done / offered a second",
    "requests/s",
    "TTFT p99 of all ms",
)


def main() -> int:
    """0 when all ran, 1 when a server failed."""
    options = _options()
    flood, found = options.flood, []
    try:
        for system in options.systems.split(","):
            one = _run(system, flood, options)
            flood = one.batch_offered_s
            found.append(one)
            print(json.dumps(asdict(one)), flush=True)
    except ServerFailed as error:
        print(f"mixed: {error}", file=sys.stderr)
        return 1
    if options.json:
        content = {"machine": machine(), "systems": [asdict(one) for one in found]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    print(markdown_row(*HEADS))
    print(markdown_row(*["---"] * len(HEADS)))
    for one in found:
        print(markdown_row(*one.cells))
    return 0


def _run(system: str, flood: float | None, options: argparse.Namespace) -> Mixed:
    with tempfile.TemporaryDirectory(prefix="mixed-") as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(yaml.safe_dump(_config(options.config, *SYSTEMS[system])))
        setting = read_setting(config, None)
        with shoal(setting) as server:
            load = Load(server.endpoint, _text(setting.model), options.seconds)
            return asyncio.run(_measure(system, load, flood))


def _config(path: Path, batching: Mapping[str, Any], scheduling: Mapping[str, Any]) -> Any:
    """That of `path` with two shards, and these fields."""
    config = yaml.safe_load(path.read_text())
    [application] = config["applications"]
    [model] = application["args"]["models"]
    model |= {"shards": 2, "batching": model["batching"] | dict(batching)}
    application["args"]["scheduling"] = {"max_queued": MAX_QUEUED, **scheduling}
    settings = {"shards": {model["name"]: 2}}
    application["deployments"] = [{"name": "Fleet", "user_config": settings}]
    return config


class Load:
    """Requests of both kinds for one server; the same at each use of the same seed."""

    def __init__(self, endpoint: Endpoint, text: Sequence[int], seconds: float) -> None:
        self._seconds = seconds
        self._endpoint = endpoint
        self._text = text

    async def alone(self, seed: str, count: int) -> float:
        """Batch requests a second when so many come at once."""
        prompts = tuple(self._prompt(Random(f"{seed} {n}")) for n in range(count))
        endpoint = self._endpoint_of("flex")
        _, wall_s = await drive(endpoint, Workload("batch", 0, count, prompts))
        return count / wall_s

    async def chat(self, seed: str) -> list[Timeline]:
        """Those that come in the seconds of the load."""
        prompts = self._arrivals(f"chat {seed}", CHATS_PER_S)
        return await drive_paced(self._endpoint_of("priority"), prompts, LIMIT_S)

    async def flood(self, seed: str, per_s: float) -> list[Timeline]:
        """Those that come in the seconds of the load."""
        prompts = self._arrivals(f"batch {seed}", per_s)
        return await drive_paced(self._endpoint_of("flex"), prompts, LIMIT_S)

    def _endpoint_of(self, tier: str) -> Endpoint:
        return replace(self._endpoint, extra={**self._endpoint.extra, "service_tier": tier})

    def _arrivals(self, seed: str, per_s: float) -> list[tuple[float, Prompt]]:
        """Those of one pace come at the same moments, whatever the seed: some meet by chance."""
        moments, rng, at_s, arrivals = Random(per_s), Random(seed), 0.0, []
        while (at_s := at_s + moments.expovariate(per_s)) < self._seconds:
            arrivals.append((at_s, self._prompt(rng)))
        return arrivals

    def _prompt(self, rng: Random) -> Prompt:
        length = rng.choice(PROMPT_LENGTHS)
        start = rng.randrange(len(self._text) - length)
        return Prompt(tuple(self._text[start : start + length]), "", OUTPUT)


def _text(folder: Path) -> Sequence[int]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(sample_text(), add_special_tokens=False).ids
    return ids


async def _measure(system: str, load: Load, flood: float | None) -> Mixed:
    await load.alone("warm up", 8)
    flood = flood or FLOOD * await load.alone("capacity", PROBES)
    idle = await load.chat("idle")
    began = time.perf_counter()
    chat, batch = await asyncio.gather(load.chat("mixed"), load.flood("mixed", flood))
    ended = time.perf_counter()
    done = [one for one in batch if one.error is None]
    chats = [one for one in chat if one.error is None]
    paces = [one.tpot * MS for one in chats if one.tpot is not None]
    waits = _ttft(chat, ended)
    return Mixed(
        system=system,
        idle_p50=percentile(_ttft(idle, began), 50),
        idle_p99=percentile(_ttft(idle, began), 99),
        chat_p50=percentile(waits, 50),
        chat_p99=percentile(waits, 99),
        chat_tpot_p99=percentile(paces, 99),
        chats=len(chat),
        chats_done=len(chats),
        batch_offered_s=flood,
        batch_done_s=len(done) / (ended - began),
        all_done_s=(len(done) + len(chats)) / (ended - began),
        all_p99=percentile([*waits, *_ttft(batch, ended)], 99),
    )


def _ttft(timelines: Sequence[Timeline], ended: float) -> list[float]:
    """Milliseconds until the first token, or until the end where none came."""
    return [MS * (ended - one.sent if one.error else one.ttft) for one in timelines]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.mixed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=24.0, help="of each of the two loads")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="which, by commas")
    parser.add_argument("--flood", type=float, help="batch requests a second; else as measured")
    parser.add_argument("--config", type=Path, default=Path("ray-config.yaml"), help="of the model")
    parser.add_argument("--json", type=Path, help="keep the figures here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
