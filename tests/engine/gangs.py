"""Two processes that are one engine, for tests: requests in, whole outputs out."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
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
    with _processes_of(partial(_lead, folder, model), partial(_follow, folder, model)) as ranks:
        yield ranks


@contextmanager
def _processes_of(
    lead: Callable[[int, socket.socket, Connection], None], follow: Callable[[int], None]
) -> Iterator[TwoRanks]:
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    ours, theirs = _processes.Pipe()
    leader = _processes.Process(target=lead, args=(port, listener, theirs))
    follower = _processes.Process(target=follow, args=(port,))
    try:
        leader.start()
        follower.start()
        listener.close()
        theirs.close()
        yield TwoRanks(leader, follower, ours)
    finally:
        ours.close()
        for process in (leader, follower):
            process.kill()
            process.join()


def of_rank_0(work: Callable[[Gang], Any], interface: str = "lo") -> Any:
    """What rank 0 gets, or the error that it raises, where both ranks do `work`; the environment
    tells them to meet on that network interface."""
    with _processes_of(partial(_work, work, interface), partial(_help, work, interface)) as ranks:
        return ranks.words.recv()


def _work(
    work: Callable[[Gang], Any],
    interface: str,
    port: int,
    listener: socket.socket,
    words: Connection,
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    gang = Gang(Seat(0, 2, port), CPU, listener)
    try:
        words.send(work(gang))
    except RuntimeError as error:
        words.send(error)
    words.poll(None)  # until the test has heard it


def _help(work: Callable[[Gang], Any], interface: str, port: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    gang = Gang(Seat(1, 2, port), CPU)
    with contextlib.suppress(RuntimeError):  # said by rank 0
        work(gang)
    Event().wait()  # until the test has heard rank 0


def heard(orders: Sequence[Sequence[int]]) -> list[list[int]]:
    """The sizes of the parts that a follower hears of orders whose parts have such `sizes`.

    Fails where a part is not what was sent.
    """
    ours, theirs = _processes.Pipe()
    with _processes_of(partial(_order, orders), partial(_hear, theirs)):
        theirs.close()
        return [ours.recv() for _ in orders]


def _order(
    orders: Sequence[Sequence[int]], port: int, listener: socket.socket, words: Connection
) -> None:
    gang = Gang(Seat(0, 2, port), CPU, listener)
    for sizes in orders:
        gang.order([np.arange(size) for size in sizes])
    words.poll(None)  # until the test has heard all


def _hear(words: Connection, port: int) -> None:
    gang = Gang(Seat(1, 2, port), CPU)
    with contextlib.suppress(ShardLost):  # when the test has heard all
        while True:
            parts = gang.hear()
            assert all((part == np.arange(len(part))).all() for part in parts)
            words.send([len(part) for part in parts])


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
