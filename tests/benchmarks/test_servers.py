"""A server that is measured starts, answers, and leaves nothing behind."""

from __future__ import annotations

import sys

import psutil
import pytest

from benchmarks.client import Endpoint
from benchmarks.servers import Launch, ServerFailed, piped, serving
from benchmarks.workloads import Prompt, Workload
from scripts.ports import free_port
from scripts.processes import alive

# Answers every GET with 200, beside a child that never ends by itself.
SERVER = """
import subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""

# Answers a workload with one timeline a prompt.
PIPED = """
import json, sys
print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    one = {"sent": 0.0, "arrivals": [1.0], "tokens": order["concurrency"], "asked": 3}
    print(json.dumps({"wall_s": 2.0, "timelines": [one] * len(order["prompts"])}), flush=True)
"""


def launch(code: str) -> Launch:
    port = free_port()
    endpoint = Endpoint(f"http://127.0.0.1:{port}", "toy")
    return Launch((sys.executable, "-c", code, str(port)), endpoint)


def test_a_server_answers_within_the_block_and_is_gone_after_it_with_its_children() -> None:
    with serving(launch(SERVER)) as server:
        assert server.pid is not None
        root = psutil.Process(server.pid)
        family = [root, *root.children()]
        assert len(family) == 2
    assert alive(family) == []


def test_a_server_that_ends_at_once_is_told_with_its_last_words() -> None:
    with (
        pytest.raises(ServerFailed, match="no such model"),
        serving(launch("exit('no such model')")),
    ):
        pass


async def test_a_piped_server_takes_a_workload_and_gives_timelines() -> None:
    workload = Workload("toy", 1, 4, (Prompt((1, 2), " a b", 3),) * 2)
    with piped((sys.executable, "-c", PIPED), {}) as server:
        timelines, wall = await server.drive(workload)
    assert (len(timelines), wall) == (2, 2.0)
    assert timelines[0].arrivals == (1.0,)
    assert timelines[0].tokens == 4


def test_a_piped_server_that_is_never_ready_is_refused() -> None:
    with pytest.raises(ServerFailed), piped((sys.executable, "-c", "pass"), {}):
        pass
