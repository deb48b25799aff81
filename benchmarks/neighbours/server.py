"""The application that is measured: two shards of a tiny model behind two Gateways and HAProxy."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from benchmarks.client import Endpoint
from benchmarks.servers import Launch, serving
from cluster.config import GatewayConfig
from tests.actors.living import until
from tests.system.application import MODEL as MODEL
from tests.system.application import arguments, free_port
from tests.system.tiny import CONTEXT as CONTEXT
from tests.system.tiny import save_tiny_model

GOOD_KEY, BAD_KEY = "sk-good", "sk-bad"
KEYS = f"good:{GOOD_KEY},bad:{BAD_KEY}"
MAX_BODY = GatewayConfig().max_body_bytes
IDLE = 7000
GATEWAYS = 2


@dataclass(frozen=True)
class Server:
    """The running application: how to look into it from outside."""

    port: int
    pid: int

    def http(self) -> httpx.AsyncClient:
        """As an operator, on a connection for each question."""
        limits = httpx.Limits(max_keepalive_connections=0)
        headers = {"Authorization": f"Bearer {GOOD_KEY}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, limits=limits, timeout=60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def held(self) -> int:
        """Pages, leases and queued requests that are not free."""
        async with self.http() as http:
            books: dict[str, Any] = (await http.get("/admin/stats")).json()
        pages = sum(shard["used_pages"] for shard in books["shards"])
        queued = sum(books["scheduler"]["queued"].values())
        return int(pages + books["scheduler"]["leased"] + queued)

    async def freed_s(self, limit_s: float) -> float:
        """How long from now until nothing is held; raises TimeoutError after `limit_s`."""
        began = time.monotonic()
        await until(self._is_free, within_s=limit_s)
        return time.monotonic() - began

    async def _is_free(self) -> bool:
        try:
            return await self.held() == 0
        except (httpx.HTTPError, KeyError):  # a Gateway that has just died was asked
            return False

    def gateways(self) -> list[psutil.Process]:
        family = psutil.Process(self.pid).children(recursive=True)
        return [one for one in family if "Gateway" in " ".join(_command(one))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@contextmanager
def started() -> Iterator[Server]:
    """What `make serve` starts, answering, and ended at the end."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "serve.yaml"
        config.write_text(yaml.safe_dump(_config(save_tiny_model(Path(folder)))))
        command = (
            *(sys.executable, "-m", "scripts.serve"),
            *("--config", str(config), "--port", str(port)),
        )
        endpoint = Endpoint(f"http://127.0.0.1:{port}", MODEL)
        environment = {**os.environ, "SHOAL_API_KEYS": KEYS}
        with serving(Launch(command, endpoint, "/ready", environment)) as server:
            assert server.pid is not None  # a child of ours
            yield Server(port, server.pid)


def _config(model: Path) -> dict[str, Any]:
    given = arguments(model, shards=2, gateway={"replicas": GATEWAYS})
    application = {"name": "shoal", "route_prefix": "/", "import_path": "deployments.app:build"}
    return {
        "http_options": {"host": "127.0.0.1"},
        "applications": [application | {"args": given}],
    }
