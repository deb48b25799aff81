"""The processes that are one shard together, as what a step needs of them: sums, joins, orders.

All ranks are on one node and meet on its loopback interface, so nothing here listens to a network.
Orders are numbers that rank 0 sends from CPU memory (gloo); what the model exchanges lies on its
device (NCCL on GPUs, else gloo). No rank waits for another with a time limit: a rank whose process
ends closes its connections, and one that hangs is the affair of who watches the shard's steps.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from socket import socket
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from actors.engine.seat import LOOPBACK, Seat
from cluster.errors import ShardLost

Ints = NDArray[np.int64]

UNLIMITED = timedelta(days=1000)

ENVELOPE = 2048
"""Numbers that every order sends; only one that holds more takes a second message."""

HUNG_UP = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""How gloo says that a peer's process has ended, in a plain RuntimeError."""


class Gang:
    """One rank's view of its gang, from the moment that all are there. There is one a process."""

    def __init__(self, seat: Seat, device: torch.device, listener: socket | None = None) -> None:
        """Blocks until every rank has come. `listener`, of rank 0, listens at the seat's port."""
        self.rank = seat.rank
        self.ranks = seat.ranks
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        os.environ |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
        self._envelope = torch.zeros(ENVELOPE, dtype=torch.int64)
        with _as_lost():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=_store(seat, listener),
                rank=seat.rank,
                world_size=seat.ranks,
                timeout=UNLIMITED,
            )

    def sum(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, in the memory of `part`. Raises ShardLost, as all here."""
        with _as_lost():
            dist.all_reduce(part)
        return part

    def join(self, part: Tensor, width: int) -> Tensor:
        """All ranks' columns side by side, `[..., width]`: the last ranks may have fewer."""
        widest = -(-width // self.ranks)
        padded = torch.nn.functional.pad(part, (0, widest - part.shape[-1])).contiguous()
        parts = [torch.empty_like(padded) for _ in range(self.ranks)]
        with _as_lost():
            dist.all_gather(parts, padded)
        return torch.cat(parts, dim=-1)[..., :width]

    def columns(self, width: int) -> slice:
        """Those of `width` columns that this rank has."""
        widest = -(-width // self.ranks)
        return slice(min(self.rank * widest, width), min((self.rank + 1) * widest, width))

    def least(self, number: int) -> int:
        """The smallest that any rank has."""
        smallest = torch.tensor(number)
        with _as_lost():
            dist.all_reduce(smallest, dist.ReduceOp.MIN)
        return int(smallest)

    def order(self, parts: Sequence[Ints]) -> None:
        """Send `parts` to all other ranks, which must be waiting in `hear`."""
        sizes = np.array([len(parts), *map(len, parts)], dtype=np.int64)
        numbers = torch.from_numpy(np.concatenate([sizes, *parts]))
        first, rest = numbers[: ENVELOPE - 1], numbers[ENVELOPE - 1 :]
        self._envelope[0] = len(numbers)
        self._envelope[1 : 1 + len(first)] = first
        with _as_lost():
            dist.broadcast(self._envelope, 0)
            if len(rest):
                dist.broadcast(rest, 0)

    def hear(self) -> list[Ints]:
        """Wait for the next order."""
        with _as_lost():
            dist.broadcast(self._envelope, 0)
            total = int(self._envelope[0])
            numbers = self._envelope[1 : 1 + min(total, ENVELOPE - 1)].clone()
            if total >= ENVELOPE:
                rest = torch.empty(total - len(numbers), dtype=torch.int64)
                dist.broadcast(rest, 0)
                numbers = torch.cat([numbers, rest])
        count = int(numbers[0])
        sizes: list[int] = numbers[1 : 1 + count].tolist()
        return [part.numpy() for part in torch.split(numbers[1 + count :], sizes)]


def _store(seat: Seat, listener: socket | None) -> Any:
    """Where ranks find each other: rank 0 keeps it, and its socket is the store's from now on."""
    socket_number = None if listener is None else listener.detach()
    return dist.TCPStore(  # type: ignore[attr-defined] # torch does not list it
        LOOPBACK,
        seat.port,
        seat.ranks,
        is_master=listener is not None,
        timeout=UNLIMITED,
        master_listen_fd=socket_number,
    )


@contextmanager
def _as_lost() -> Iterator[None]:
    """That a rank is lost is told from every other fault, for which a request may be to blame."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or any(words in str(error) for words in HUNG_UP):
            raise ShardLost("another rank of the shard is lost") from error
        raise
