"""Pages in files: what left host memory comes back as it was, or is computed as if it never was."""

from __future__ import annotations

import errno
import gc
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Event

import pytest
import torch

pytest.importorskip("lz4")

from actors.engine import folder_pages
from actors.engine.engine import Engine
from actors.engine.folder_pages import REST_S
from actors.engine_thread import EngineThread, Outcome
from actors.page_files import OWNER, PREFIX, OwnFolder
from cluster.errors import ConfigError
from cluster.folder_config import FolderConfig
from cluster.folder_tier import FAILURES, IN_FLIGHT
from cluster.messages import Request, TokenDelta
from tests.engine.driving import assignment, engine_of, random_prompt, request, run, tokens_of
from tests.engine.families import greedy

PAGE = 4
GIB = 2**30
PAGE_BYTES = 3072
FEW_SLOTS = 28 * PAGE_BYTES / GIB


@pytest.fixture
def folder(tmp_path: Path) -> FolderConfig:
    return FolderConfig(path=str(tmp_path / "pages"), gib=0.01)


def crowd(count: int, output: int) -> list[Request]:
    source = random.Random(7)
    return [request(f"r{i}", random_prompt(source, 22), output) for i in range(count)]


def small_engine(folder: FolderConfig, num_blocks: int = 28) -> Engine:
    """Its pool holds four prompts, host memory as many, files all twelve."""
    return engine_of("llama", num_blocks=num_blocks, host_gib=FEW_SLOTS, folder=folder)


def files(folder: FolderConfig) -> list[Path]:
    return [one for one in Path(folder.path).glob(f"{PREFIX}*/*") if one.name != OWNER]


def let_threads_finish(engine: Engine) -> None:
    """What they write counts from then on, however busy the machine is."""
    assert engine._folder is not None
    engine._folder.exchange(engine._pool)
    for thread in (engine._folder._reader, engine._folder._writer):
        thread.submit(int).result()
    engine._folder.exchange(engine._pool)


def serve_twice(
    engine: Engine, folder: FolderConfig, spoil: Callable[[Path], None] | None = None
) -> None:
    """Twelve prompts one after the other, twice, each the tokens of the model itself."""
    wanted = crowd(12, output=3)
    for one in wanted:
        run(engine, [one])
        let_threads_finish(engine)
    if spoil is not None:
        for file in files(folder):
            spoil(file)
    for one in wanted:
        again = run(engine, [one])
        assert tokens_of(again, one.request_id) == greedy("llama", list(one.prompt), 3)
        let_threads_finish(engine)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def break_disk(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def mkdtemp(**_: object) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)


def test_prompts_that_left_host_memory_come_back_and_are_not_computed_again(
    folder: FolderConfig,
) -> None:
    engine = small_engine(folder)
    serve_twice(engine, folder)
    stats = engine.stats()
    assert stats.folder_read >= 20
    assert stats.folder_corrupt == stats.folder_failed == 0
    assert stats.folder_pages == len(files(folder))
    assert stats.folder_bytes == sum(file.stat().st_size for file in files(folder))


@pytest.mark.parametrize("spoil", [cut, flip, Path.unlink])
def test_a_file_that_is_not_whole_is_computed_again(
    folder: FolderConfig, spoil: Callable[[Path], None]
) -> None:
    engine = small_engine(folder)
    serve_twice(engine, folder, spoil)
    assert engine.stats().folder_corrupt > 0


def test_a_paused_sequence_goes_on_from_files_with_the_same_tokens(folder: FolderConfig) -> None:
    """Batch stands back for chats, whose pages push its own out of the pool, then out of host
    memory; its answer is the one that the model gives alone."""
    batch = request("batch", random_prompt(random.Random(8), 30), 40)
    engine = small_engine(folder)
    engine.admit(assignment(batch, rank=2))
    output: dict[tuple[str, int], list[TokenDelta]] = {}
    for number in range(40):
        if number in range(6, 30, 3):
            chat = request(f"chat{number}", random_prompt(random.Random(number), 40), 8)
            engine.admit(assignment(chat))
        for delta in engine.step():
            output.setdefault((delta.request_id, delta.choice), []).append(delta)
        let_threads_finish(engine)
    before = engine.stats()
    for key, deltas in run(engine, []).items():
        output.setdefault(key, []).extend(deltas)
    stats = engine.stats()
    assert stats.pauses > 0
    assert stats.folder_read > before.folder_read == 0
    assert tokens_of(output, "batch") == greedy("llama", list(batch.prompt), 40)


def test_a_folder_that_can_no_longer_be_written_to_costs_only_what_it_would_have_kept(
    folder: FolderConfig,
) -> None:
    engine = small_engine(folder)
    for own in Path(folder.path).glob(f"{PREFIX}*/"):
        shutil.rmtree(own)
    serve_twice(engine, folder)
    stats = engine.stats()
    assert stats.folder_failed > 0
    assert stats.folder_pages == 0


def test_a_disk_that_fails_again_and_again_is_left_alone_for_a_while(
    folder: FolderConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    tried: list[Path] = []
    monkeypatch.setattr(folder_pages, "monotonic", lambda: now)

    def write(path: Path, data: bytes) -> int:
        tried.append(path)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    engine = small_engine(folder)
    with monkeypatch.context() as broken:
        broken.setattr(Path, "write_bytes", write)
        serve_twice(engine, folder)
        assert FAILURES <= len(tried) < FAILURES + IN_FLIGHT
        until_now = len(tried)
        serve_twice(engine, folder)
        assert len(tried) == until_now
        now = REST_S
        serve_twice(engine, folder)
        assert until_now < len(tried) < until_now + IN_FLIGHT
    assert engine.stats().folder_given_up == 2
    assert caplog.text.count("without files for") == 1
    now = 3 * REST_S
    serve_twice(engine, folder)
    assert engine.stats().folder_read > 0


def test_a_folder_needs_host_memory_to_read_into(folder: FolderConfig) -> None:
    with pytest.raises(ConfigError, match="come back through host memory") as caught:
        engine_of("llama", folder=folder)
    assert caught.value.path == "cache.host_gib"


@pytest.mark.parametrize("deterministic", [True, False])
def test_eight_bits_are_refused_where_exactness_is_promised(
    folder: FolderConfig, deterministic: bool
) -> None:
    rounded = folder.model_copy(update={"int8": True})
    with pytest.raises(
        ConfigError, match="deterministic" if deterministic else "float32"
    ) as caught:
        engine_of("llama", host_gib=FEW_SLOTS, folder=rounded, deterministic=deterministic)
    assert caught.value.path == "cache.folder.int8"


@pytest.mark.parametrize(
    ("changed", "path", "words"),
    [
        ({"gib": 1e-9}, "cache.folder.gib", "may not hold one page"),
        ({"path": "/dev/null/pages"}, "cache.folder.path", "cannot be written to"),
    ],
)
def test_a_folder_that_cannot_be_had_is_refused(
    folder: FolderConfig, changed: dict[str, object], path: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        small_engine(folder.model_copy(update=changed))
    assert caught.value.path == path


def test_a_disk_that_has_less_room_than_asked_for_is_used_as_far_as_it_goes(
    folder: FolderConfig, caplog: pytest.LogCaptureFixture
) -> None:
    engine = small_engine(folder.model_copy(update={"gib": 1e9}))
    serve_twice(engine, folder)
    assert engine.stats().folder_read >= 20
    assert engine._folder is not None
    assert engine._folder.ledger().fits * PAGE_BYTES < 1e9 * GIB
    assert "has room for" in caplog.text


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_when_a_shard_loads_costs_only_the_folder(
    folder: FolderConfig,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    break_disk(monkeypatch, number)
    (one,) = crowd(1, output=3)
    given = run(small_engine(folder), [one])
    assert tokens_of(given, one.request_id) == greedy("llama", list(one.prompt), 3)
    assert "serving without files" in caplog.text


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOTDIR])
def test_a_path_that_can_never_work_is_refused(
    folder: FolderConfig, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_disk(monkeypatch, number)
    with pytest.raises(ConfigError, match="cannot be written to"):
        small_engine(folder)


def test_who_rests_enters_what_was_written_meanwhile(folder: FolderConfig) -> None:
    """The files wait until the last prompt is answered, and no other comes."""
    outcomes: SimpleQueue[Outcome] = SimpleQueue()
    open_again, engines = Event(), []

    def build() -> Engine:
        engine = small_engine(folder)
        assert engine._folder is not None
        engine._folder._writer.submit(open_again.wait)
        engines.append(engine)
        return engine

    thread = EngineThread(build, outcomes.put, lambda crash: pytest.fail(str(crash)))
    thread.start()
    wanted = crowd(12, output=3)
    for one in wanted:
        thread.admit(assignment(one))
    ended: set[str] = set()
    while len(ended) < len(wanted):
        ended.update(outcomes.get(timeout=60).progress.ended)
    open_again.set()
    while not outcomes.get(timeout=60).stats.folder_written:
        pass
    thread.remove_files()
    assert files(folder) == []


def test_folders_of_the_dead_are_swept_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()
    (left / OWNER).touch()
    (left / "0").write_bytes(b"old")
    first, second = OwnFolder(tmp_path), OwnFolder(tmp_path)
    assert set(tmp_path.glob(f"{PREFIX}*/")) == {first.path, second.path}
    second.close()
    assert list(tmp_path.glob(f"{PREFIX}*/")) == [first.path]


def test_a_model_whose_files_are_rounded_still_answers(folder: FolderConfig) -> None:
    engine = engine_of(
        "llama",
        num_blocks=28,
        host_gib=FEW_SLOTS / 2,
        folder=folder.model_copy(update={"int8": True}),
        dtype=torch.bfloat16,
    )
    wanted = crowd(12, output=3)
    for one in (*wanted, *wanted):
        assert len(tokens_of(run(engine, [one]), one.request_id)) == 3
        let_threads_finish(engine)
    assert engine.stats().folder_read > 0


def test_files_are_gone_with_the_engine(folder: FolderConfig) -> None:
    engine = small_engine(folder)
    run(engine, crowd(1, output=1))
    del engine
    gc.collect()
    assert list(Path(folder.path).glob(f"{PREFIX}*/")) == []


def test_without_lz4_the_extra_is_named(
    folder: FolderConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "actors.engine.page_codec", None)
    with pytest.raises(ConfigError, match="extra") as caught:
        small_engine(folder)
    assert caught.value.path == "cache.folder"
