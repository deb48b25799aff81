"""After the end nothing of ours is left: no actor, no process, no port."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
import pytest
import ray
from ray import serve

from scripts.processes import alive
from tests.system.application import running

pytestmark = pytest.mark.slow


def test_shutdown_leaves_no_actor_no_process_and_no_port(tiny_folder: Path) -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with running(tiny_folder, shards=2) as application:
        names = {entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)}
        assert {"scheduler", "tiny/shard-0", "tiny/shard-1"} <= names
        serve.shutdown()
        assert ray.util.list_named_actors(all_namespaces=True) == []
    left = psutil.Process().children(recursive=True)
    assert alive([process for process in left if process.pid not in before]) == []
    port = int(application.url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        pass
