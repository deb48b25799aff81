"""The application as `make serve` starts it, on a tiny random model."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from benchmarks.client import Endpoint
from benchmarks.servers import Launch, serving
from scripts.ports import free_port
from tests.system.application import MODEL, arguments
from tests.system.tiny import save_tiny_model


@dataclass(frozen=True)
class Server:
    """The running application: how to look into it from outside, with one of its keys."""

    port: int
    pid: int
    key: str

    def http(self) -> httpx.AsyncClient:
        """As an operator, on a connection for each question."""
        limits = httpx.Limits(max_keepalive_connections=0)
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, limits=limits, timeout=60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.url, MODEL, self.key)

    def processes(self, title: str) -> list[psutil.Process]:
        """Those with this in their title, the oldest first."""
        family = psutil.Process(self.pid).children(recursive=True)
        found = [one for one in family if title in " ".join(_command(one))]
        return sorted(found, key=lambda one: float(one.create_time()))


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@contextmanager
def started(keys: str, model: Mapping[str, Any], **parts: Any) -> Iterator[Server]:
    """Up and answering, and ended at the end.

    `keys` as in `SHOAL_API_KEYS`, `tenant:key` first; `model`: what differs in its configuration;
    `parts`: of the whole, as in `tests.system.application.arguments`.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "serve.yaml"
        config.write_text(yaml.safe_dump(_config(save_tiny_model(Path(folder)), model, parts)))
        command = (
            *(sys.executable, "-m", "scripts.serve"),
            *("--config", str(config), "--port", str(port)),
        )
        endpoint = Endpoint(f"http://127.0.0.1:{port}", MODEL)
        environment = {**os.environ, "SHOAL_API_KEYS": keys}
        with serving(Launch(command, endpoint, "/ready", environment)) as server:
            assert server.pid is not None  # a child of ours
            yield Server(port, server.pid, keys.partition(",")[0].rpartition(":")[2])


def _config(folder: Path, model: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    given = arguments(folder, shards=1, **parts)
    given["models"] = [one | model for one in given["models"]]
    application = {"name": "shoal", "route_prefix": "/", "import_path": "deployments.app:build"}
    return {
        "http_options": {"host": "127.0.0.1"},
        "applications": [application | {"args": given}],
    }
