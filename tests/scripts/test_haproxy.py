"""What `scripts/haproxy` makes of the configuration that Serve writes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE

WRAPPER = Path(__file__).parents[2] / "scripts" / "haproxy"
WRITTEN = """\
defaults
    mode http
    timeout client 3600s
frontend prometheus
    bind :9101
    mode http
frontend http_frontend
    bind *:8000
listen stats
  bind *:8404
"""
MENDED = """\
defaults
    mode http
    timeout http-request 30s
    option http-buffer-request
    timeout client 3600s
frontend prometheus
    bind 127.0.0.1:9101
    mode http
    timeout http-request 30s
    option http-buffer-request
frontend http_frontend
    bind *:8000
listen stats
  bind 127.0.0.1:8404
"""


def test_pages_move_to_loopback_and_requests_get_a_time_however_often_it_is_started(
    tmp_path: Path,
) -> None:
    config = tmp_path / "haproxy.cfg"
    config.write_text(WRITTEN)
    environment = {**os.environ, "SHOAL_HAPROXY": "echo"}
    for _ in range(2):
        command = [str(WRAPPER), "-db", "-f", str(config)]
        told = subprocess.check_output(command, env=environment, text=True)
        assert told == f"-dS -db -f {config}\n"
        assert config.read_text() == MENDED


def test_serve_calls_its_pages_what_they_are_known_by_here() -> None:
    for page in ("frontend prometheus\n    bind :{{", "listen stats\n  bind *:{{"):
        assert page in HAPROXY_CONFIG_TEMPLATE
