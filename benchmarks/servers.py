"""Start a server to be measured, wait until it answers, and end it with all it started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from benchmarks import client
from benchmarks.metrics import Timeline
from benchmarks.workloads import Workload

POLL_S = 0.5
START_PATIENCE_S = 400.0
STOP_PATIENCE_S = 60.0
ROOT = Path(__file__).resolve().parents[1]


class ServerFailed(Exception):
    """It did not start, or ended by itself; the message says what it last printed."""


class Subject(Protocol):
    """What can be measured: a tree of processes that does a workload's work."""

    @property
    def pid(self) -> int | None:
        """Of the tree's root; None where it is not known."""

    @property
    def engine_title(self) -> str: ...

    async def drive(self, workload: Workload) -> tuple[list[Timeline], float]:
        """Do all of it; what became of each prompt, and the seconds it took."""


@dataclass(frozen=True)
class Launch:
    """How to start a server: under `environment` on top of ours, ready when `ready` answers 200.

    The processes whose title begins with `engine_title` are its engine; by default all are.
    """

    command: tuple[str, ...]
    endpoint: client.Endpoint
    ready: str = "/health"
    environment: Mapping[str, str] = field(default_factory=dict)
    engine_title: str = ""


@dataclass(frozen=True)
class HttpServer:
    """A server that is asked over HTTP."""

    endpoint: client.Endpoint
    pid: int | None = None
    engine_title: str = ""

    async def drive(self, workload: Workload) -> tuple[list[Timeline], float]:
        return await client.drive(self.endpoint, workload)


@dataclass(frozen=True)
class PipedServer:
    """A child that takes a workload as a line of JSON and answers with its timelines as another."""

    child: subprocess.Popen[str]
    engine_title: str = ""

    @property
    def pid(self) -> int:
        return self.child.pid

    async def drive(self, workload: Workload) -> tuple[list[Timeline], float]:
        answer = json.loads(await asyncio.to_thread(self._exchange, workload))
        return [_timeline(**one) for one in answer["timelines"]], answer["wall_s"]

    def _exchange(self, workload: Workload) -> str:
        assert self.child.stdin is not None  # both are pipes
        assert self.child.stdout is not None
        prompts = [(prompt.tokens, prompt.output) for prompt in workload.prompts]
        order = {"concurrency": workload.concurrency, "prompts": prompts}
        self.child.stdin.write(json.dumps(order) + "\n")
        self.child.stdin.flush()
        if not (answer := self.child.stdout.readline()):
            raise ServerFailed("it ended in the middle of a workload; what it said is above")
        return answer


def _timeline(arrivals: list[float], **rest: Any) -> Timeline:
    return Timeline(arrivals=tuple(arrivals), **rest)


@contextmanager
def serving(launch: Launch) -> Iterator[HttpServer]:
    """The server, answering; raises ServerFailed where it ends or stays silent."""
    with (
        tempfile.NamedTemporaryFile(prefix="bench-", suffix=".log") as log,
        _child(launch, stdout=log.fileno(), stderr=log.fileno()) as child,
    ):
        _await_ready(launch, child, Path(log.name))
        yield HttpServer(launch.endpoint, child.pid, launch.engine_title)


@contextmanager
def piped(command: tuple[str, ...], environment: Mapping[str, str]) -> Iterator[PipedServer]:
    """A child that works in its own process, once it has said that it is ready."""
    launch = Launch(command, client.Endpoint("", ""), environment=environment)
    with _child(launch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None  # a pipe
        if child.stdout.readline().strip() != "ready":
            raise ServerFailed(f"{command[0]} ended before it was ready; what it said is above")
        yield PipedServer(child)


@contextmanager
def _child(launch: Launch, **streams: Any) -> Iterator[subprocess.Popen[Any]]:
    """In a session of its own, so that Ctrl-C reaches us first and we end it in order."""
    environment = os.environ | dict(launch.environment)
    with subprocess.Popen(
        launch.command, env=environment, cwd=ROOT, start_new_session=True, **streams
    ) as child:
        try:
            yield child
        finally:
            _end(child)


def _end(child: subprocess.Popen[Any]) -> None:
    """Ask by SIGINT, as a person at its terminal would; end what is left of its tree after that."""
    family = _descendants(child.pid)
    child.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        child.wait(STOP_PATIENCE_S)
    left = [process for process in family if process.is_running()]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=STOP_PATIENCE_S)
    child.kill()


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _await_ready(launch: Launch, child: subprocess.Popen[Any], log: Path) -> None:
    deadline = time.monotonic() + START_PATIENCE_S
    while not _answers(launch.endpoint.url + launch.ready):
        if child.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace").splitlines()[-15:]
            raise ServerFailed(f"{launch.command[0]} does not answer:\n" + "\n".join(tail))
        time.sleep(POLL_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError):
        return False
