"""What a streamed token costs on its way in and out of HTTP, by ingress mode of Ray Serve.

    python -m benchmarks.ingress            # both modes in turn, several rounds

Starts `scripts.serve` on the given config for each round, streams completions from it, and reads
the CPU time of the processes between the client and the shard.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import psutil

from actors.models import default_cache
from benchmarks.report import markdown_row

MODES = {"default proxy": "0", "HAProxy": "1"}
PROXIES = ("ray::ProxyActor", "haproxy")
GATEWAY = "ray::ServeReplica:shoal:Gateway"


@dataclass(frozen=True)
class Figures:
    """CPU microseconds a token in the proxy and in the Gateway, and TTFT in milliseconds."""

    proxy_us: float
    gateway_us: float
    ttft_ms: float


def main() -> None:
    options = _options()
    rounds: dict[str, list[Figures]] = {mode: [] for mode in MODES}
    for _ in range(options.rounds):
        for mode in MODES:
            rounds[mode].append(_measure(mode, options))
    print(markdown_row("mode", "proxy us/token", "Gateway us/token", "TTFT p50 ms"))
    print(markdown_row(*["---"] * 4))
    for mode, figures in rounds.items():
        cells = (_spread([getattr(f, field) for f in figures]) for field in _FIELDS)
        print(markdown_row(mode, *cells))


_FIELDS = ("proxy_us", "gateway_us", "ttft_ms")


def _measure(mode: str, options: argparse.Namespace) -> Figures:
    with _serving(mode, options.config) as (url, pid):
        asyncio.run(_load(url, options))  # warms up
        proxies, gateway = _processes(pid, *PROXIES), _processes(pid, GATEWAY)
        before = _cpu(proxies), _cpu(gateway)
        ttfts = asyncio.run(_load(url, options))
        tokens = options.streams * options.tokens
        proxy_s, gateway_s = _cpu(proxies) - before[0], _cpu(gateway) - before[1]
    return Figures(1e6 * proxy_s / tokens, 1e6 * gateway_s / tokens, 1e3 * statistics.median(ttfts))


@contextmanager
def _serving(mode: str, config: str) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    command = [sys.executable, "-m", "scripts.serve", "--config", config, "--port", str(port)]
    environ = os.environ | {"RAY_SERVE_ENABLE_HA_PROXY": MODES[mode]}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if line.startswith("Ctrl-C"):
                break
        try:
            yield f"http://127.0.0.1:{port}", server.pid
        finally:
            server.send_signal(signal.SIGINT)
            server.stdout.read()


async def _load(url: str, options: argparse.Namespace) -> list[float]:
    """Seconds to the first token of each stream, all of them at once."""
    headers = {"Authorization": f"Bearer {(default_cache() / 'api-key').read_text()}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(headers=headers, timeout=600, limits=limits) as client:
        streams = (
            _stream(client, url, number, options.tokens) for number in range(options.streams)
        )
        return await asyncio.gather(*streams)


async def _stream(client: httpx.AsyncClient, url: str, number: int, tokens: int) -> float:
    model = (await client.get(f"{url}/v1/models")).json()["data"][0]["id"]
    body = {
        "model": model,
        "prompt": f"Fish number {number}",
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    began, first = time.perf_counter(), 0.0
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data:") and not first:
                first = time.perf_counter() - began
    return first


def _processes(pid: int, *names: str) -> list[psutil.Process]:
    family = psutil.Process(pid).children(recursive=True)
    return [one for one in family if any(name in " ".join(one.cmdline()) for name in names)]


def _cpu(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(float(one.user + one.system) for one in times)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--config", default="ray-config.yaml")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    return parser.parse_args()


if __name__ == "__main__":
    main()
