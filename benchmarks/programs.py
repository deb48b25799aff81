"""Waits until all shards of a server compute by programs made for their models."""

from __future__ import annotations

import json
import sys
import time
import urllib.request

from benchmarks.client import Endpoint

PATIENCE_S = 400.0
POLL_S = 2.0
TIMEOUT_S = 10.0


def await_programs(endpoint: Endpoint) -> None:
    """Minutes where the model was never compiled on this machine, else at once; says so where it
    is not done in time, as without a compiler, and what follows is measured layer by layer."""
    started = time.monotonic()
    while not _compiled(endpoint):
        waited = time.monotonic() - started
        if waited > PATIENCE_S:
            print("the model is not compiled: it is measured layer by layer", file=sys.stderr)
            return
        if waited < POLL_S:
            print("waiting for the model to be compiled, minutes", file=sys.stderr)
        time.sleep(POLL_S)


def _compiled(endpoint: Endpoint) -> bool:
    headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    asked = urllib.request.Request(endpoint.url + "/admin/stats", headers=headers)
    with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
        shards = json.load(answer)["shards"]
    return all(shard["compiled"] for shard in shards)
