"""What `scripts/haproxy` makes of the configuration that Serve writes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

WRAPPER = Path(__file__).parents[2] / "scripts" / "haproxy"
WRITTEN = """\
defaults
    mode http
    timeout client 3600s
frontend stats
    bind *:8404
frontend http
    bind 127.0.0.1:8000
"""
MENDED = """\
defaults
    mode http
    timeout http-request 30s
    timeout client 3600s
frontend stats
    bind 127.0.0.1:8404
frontend http
    bind 127.0.0.1:8000
"""


def test_pages_move_to_loopback_and_heads_get_a_time_however_often_it_is_started(
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
