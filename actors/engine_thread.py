"""The thread that runs a shard's engine: take the inbox, step, publish, and rest when idle."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Condition, Thread
from typing import TYPE_CHECKING, TypeVar

from actors.outbox import Delta
from cluster.batching import Progress
from cluster.errors import ShoalError
from cluster.findable import PageEvents
from cluster.messages import Assignment, PageHash, RequestFailed
from cluster.reports import HeldRequest, ShardCapacity
from cluster.stats import EngineStats

if TYPE_CHECKING:  # importing the engine imports torch, which the shard's owner has no use for
    from actors.engine.compiled import Wish
    from actors.engine.engine import Engine
    from actors.engine.runner import Forward

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a scheduler has to know of an engine, between two steps."""

    held: tuple[HeldRequest, ...]
    stored: tuple[PageHash, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one turn of the loop brought. A snapshot stands for every event up to and in it."""

    deltas: tuple[Delta, ...]
    progress: Progress
    pages: PageEvents
    stats: EngineStats
    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True)
class Crash:
    """What a step raised, and the ids of the requests that it computed."""

    error: BaseException
    computing: tuple[str, ...] = ()


class EngineThread:
    """Owns the engine: it is built, stepped and asked on this one thread and nowhere else.

    `publish` is called on it once a turn; `crashed` once, after which the thread has ended, since
    the pages can no longer be trusted.
    """

    def __init__(
        self,
        build: Callable[[], Engine],
        publish: Callable[[Outcome], None],
        crashed: Callable[[Crash], None],
    ) -> None:
        self.capacity: Future[ShardCapacity] = Future()
        self.turns = 0
        self._engine: Engine | None = None
        self._build = build
        self._publish = publish
        self._crashed = crashed
        self._inbox: list[Callable[[Engine], RequestFailed | None]] = []
        self._snapshot_wanted = False
        self._busy = False
        self._changed = Condition()
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to build; `capacity` resolves when that is done, or carries what it raised."""
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a turn is under way; one that never ends is a wedged device."""
        return self._busy

    def computing(self) -> tuple[str, ...]:
        """Who is in the step under way; asked from outside, true only of a step that never ends."""
        return self._engine.computing() if self._engine is not None else ()

    def remove_files(self) -> None:
        """Those of pages, if any; called by another thread, as this one may be stuck."""
        if self._engine is not None:
            self._engine.remove_files()

    def admit(self, assignment: Assignment) -> None:
        self._post(partial(_admit, assignment))

    def cancel(self, request_id: str, choice: int | None) -> None:
        self._post(partial(_cancel, request_id, choice))

    def use_threads(self, count: int) -> None:
        self._post(partial(_use_threads, count))

    def ask(self, question: Callable[[Engine], T]) -> Future[T]:
        """Have the engine answer between two steps, after all that it was told before; the future
        carries the ShoalError that the question raises. Who cancels it is not answered."""
        answer: Future[T] = Future()
        self._post(partial(_answer, question, answer))
        return answer

    def ask_snapshot(self) -> None:
        """The next outcome comes soon, and with a snapshot."""
        with self._changed:
            self._snapshot_wanted = True
            self._changed.notify()

    def _run(self) -> None:
        try:
            engine = self._engine = self._build()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the waiting owner is told
            self.capacity.set_exception(error)
            return
        self.capacity.set_result(engine.capacity)
        if engine.wish is not None:
            Thread(target=self._fulfil, args=(engine.wish,), name="compiler", daemon=True).start()
        try:
            self._serve(engine)
        except BaseException as error:  # noqa: BLE001 - the doors are told before the shard exits
            self._crashed(Crash(error, engine.computing()))

    def _fulfil(self, wish: Wish) -> None:
        """Beside the serving thread: minutes of compiling, in a process of its own."""
        program = wish.fulfil()
        if program is not None:
            self._post(partial(_adopt, program))

    def _serve(self, engine: Engine) -> None:
        while True:
            orders, snapshot_wanted = self._await_work(engine)
            failures = tuple(failed for order in orders if (failed := order(engine)))
            deltas, refused = engine.step(), engine.drain_refused()
            for one in refused:
                logger.error("%s is refused: %s", one.request_id, one.message)
            self._publish(_outcome(engine, (*failures, *deltas, *refused), snapshot_wanted))
            self.turns += 1

    def _await_work(self, engine: Engine) -> tuple[list[Callable[..., RequestFailed | None]], bool]:
        with self._changed:
            self._busy = False
            while not (self._inbox or self._snapshot_wanted or engine.has_work):
                if not self._changed.wait(engine.rest_s):
                    break
            self._busy = True
            orders, self._inbox = self._inbox, []
            wanted, self._snapshot_wanted = self._snapshot_wanted, False
            return orders, wanted

    def _post(self, order: Callable[[Engine], RequestFailed | None]) -> None:
        with self._changed:
            self._inbox.append(order)
            self._changed.notify()


def _outcome(engine: Engine, deltas: tuple[Delta, ...], snapshot_wanted: bool) -> Outcome:
    return Outcome(
        deltas=deltas,
        progress=engine.drain_progress(),
        pages=engine.drain_page_events(),
        stats=engine.stats(),
        snapshot=Snapshot(engine.held(), engine.findable()) if snapshot_wanted else None,
    )


def _admit(assignment: Assignment, engine: Engine) -> RequestFailed | None:
    try:
        engine.admit(assignment)
    except ShoalError as error:
        return RequestFailed(assignment.request.request_id, type(error).__name__, error.message)
    return None


def _cancel(request_id: str, choice: int | None, engine: Engine) -> None:
    engine.cancel(request_id, choice)


def _use_threads(count: int, _engine: Engine) -> None:
    import torch

    torch.set_num_threads(count)


def _adopt(program: Forward, engine: Engine) -> None:
    engine.adopt(program)


def _answer(question: Callable[[Engine], T], answer: Future[T], engine: Engine) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(question(engine))
    except ShoalError as error:
        answer.set_exception(error)
