"""Two processes that are one engine, for tests: requests in, whole outputs out."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from actors.engine.engine import Engine, follow_engine, load_engine
from actors.engine.gang import Gang
from actors.engine.seat import LOOPBACK, Seat
from cluster.config import ModelConfig
from cluster.errors import ShardLost, ShoalError
from cluster.messages import Request
from cluster.stats import EngineStats
from tests.engine.driving import Output, run

CPU = torch.device("cpu")

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["torch", "transformers", "actors.engine.engine"])


@dataclass(frozen=True)
class Served:
    output: Output
    stats: EngineStats


@dataclass
class TwoRanks:
    """A leading and a following process, and what the leader says."""

    leader: BaseProcess
    follower: BaseProcess
    words: Connection

    def ask(self, requests: Sequence[Request], seed: int | None = None) -> Any:
        """What came of serving `requests`, which come in by `seed`: Served, or an error."""
        self.words.send((requests, seed))
        return self.words.recv()

    def loaded(self) -> Any:
        """None once the engine is loaded, or the error with which the leader refused."""
        return self.words.recv()


@contextmanager
def two_ranks(folder: Path, model: ModelConfig) -> Iterator[TwoRanks]:
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    ours, theirs = _processes.Pipe()
    leader = _processes.Process(target=_lead, args=(folder, model, port, listener, theirs))
    follower = _processes.Process(target=_follow, args=(folder, model, port))
    gang = TwoRanks(leader, follower, ours)
    try:
        leader.start()
        follower.start()
        listener.close()
        theirs.close()
        yield gang
    finally:
        ours.close()
        for process in (leader, follower):
            process.kill()
            process.join()


def _lead(
    folder: Path, model: ModelConfig, port: int, listener: socket.socket, words: Connection
) -> None:
    torch.set_num_threads(1)
    try:
        engine = load_engine(folder, model, CPU, gang=Gang(Seat(0, 2, port), CPU, listener))
    except ShoalError as error:
        words.send(error)
        return
    words.send(None)
    while True:
        words.send(_serve(engine, *words.recv()))


def _serve(engine: Engine, requests: Sequence[Request], seed: int | None) -> Served | ShoalError:
    try:
        output = run(engine, requests, None if seed is None else random.Random(seed))
    except ShardLost as error:
        return error
    return Served(output, engine.stats())


def _follow(folder: Path, model: ModelConfig, port: int) -> None:
    torch.set_num_threads(1)
    with contextlib.suppress(ShoalError):  # said by the leader too, or its end
        follow_engine(folder, model, CPU, Gang(Seat(1, 2, port), CPU), lambda: 1)
