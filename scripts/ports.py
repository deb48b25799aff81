"""Ports for servers that are about to start."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"

ASIDE = range(20_000, 32_768)
"""Between the ports of Ray's workers and those that Linux gives out by itself."""

GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
TRIED = 100


def free_port() -> int:
    """A port that nobody holds at this moment, nor is given without asking for it where that can be
    helped: Ray's processes are given dozens while the server that is to have this one starts."""
    for port in [*(random.sample(ASIDE, TRIED) if _is_aside() else ()), 0]:
        with contextlib.suppress(OSError), socket.create_server((LOOPBACK, port)) as held:
            return int(held.getsockname()[1])
    raise OSError("no port is free")


def _is_aside() -> bool:
    """Whether the system says that it gives out others."""
    with contextlib.suppress(OSError, ValueError):
        return int(GIVEN.read_text().split()[0]) >= ASIDE.stop
    return False
