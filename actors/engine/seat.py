"""A rank's place in the gang that is one shard: plain data, known before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from socket import socket

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Seat:
    """`rank` of `ranks`, which meet at `port` of the loopback interface; rank 0 leads."""

    rank: int
    ranks: int
    port: int


@dataclass(frozen=True, slots=True)
class Meeting:
    """What rank 0 brings: its seat, and the socket that listens at the port."""

    seat: Seat
    listener: socket
