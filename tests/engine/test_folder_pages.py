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

import numpy as np
import pytest
import torch

pytest.importorskip("lz4")

from actors.engine.engine import Engine
from actors.engine.folder_pages import _Clerk
from actors.engine.kv_cache import LayerShape
from actors.engine.page_codec import Bytes, NotThePage, PageCodec
from actors.engine.page_files import OWNER, PREFIX, OwnFolder
from actors.engine_thread import EngineThread, Outcome
from cluster.errors import ConfigError
from cluster.folder_config import FolderConfig
from cluster.folder_tier import PageWrite, Written
from cluster.messages import Request, TokenDelta
from tests.engine.driving import assignment, engine_of, random_prompt, request, run, tokens_of
from tests.engine.families import greedy

PAGE = 4
GIB = 2**30
PAGE_BYTES = 3072
FEW_SLOTS = 28 * PAGE_BYTES / GIB
LAYERS = {0: LayerShape(2, 4, 4), 1: LayerShape(1, 8, 4), 2: LayerShape(1, 8, 8)}
NAME = b"sixteen bytes it"


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


def page_of(dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, Bytes]:
    """Numbers that a page might hold, and the page."""
    elements = sum(PAGE * shape.elements for shape in LAYERS.values())
    numbers = torch.randn(elements, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return numbers, numbers.view(torch.uint8).numpy()


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
    assert engine._folder._room < 1e9 * GIB
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


def test_a_file_that_cannot_be_removed_keeps_neither_the_others_nor_a_new_one(
    tmp_path: Path,
) -> None:
    codec, (_, page) = PageCodec(LAYERS, PAGE, torch.float32), page_of(torch.float32)
    (tmp_path / "0").mkdir()
    (tmp_path / "1").touch()
    clerk = _Clerk(tmp_path, codec)
    clerk.write(PageWrite(NAME, 0, file=2, dropped=(0, 1)), page, lambda: None)
    size = (tmp_path / "2").stat().st_size
    assert clerk.done.get_nowait() == Written(NAME, size)
    assert not (tmp_path / "1").exists()


@pytest.mark.parametrize(("number", "full"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_what_cannot_be_written_says_whether_the_disk_was_full(
    tmp_path: Path, number: int, full: bool
) -> None:
    codec, (_, page) = PageCodec(LAYERS, PAGE, torch.float32), page_of(torch.float32)

    def copied() -> None:
        raise OSError(number, os.strerror(number))

    clerk = _Clerk(tmp_path, codec)
    clerk.write(PageWrite(NAME, 0, file=0), page, copied)
    assert clerk.done.get_nowait() == Written(NAME, None, full)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_page_comes_back_bit_by_bit(dtype: torch.dtype) -> None:
    codec, (_, page) = PageCodec(LAYERS, PAGE, dtype), page_of(dtype)
    file, back = codec.encode(NAME, page), np.zeros_like(page)
    codec.decode(NAME, file, back)
    assert (back == page).all()
    assert len(file) <= codec.most


def test_keys_of_tokens_that_resemble_each_other_take_less_room() -> None:
    layers = {0: LayerShape(2, 64, 64)}
    channel = torch.randn(1, 256, generator=torch.Generator().manual_seed(0))
    numbers = (channel.expand(16, 256) * torch.linspace(1.0, 1.01, 16)[:, None]).bfloat16()
    codec = PageCodec(layers, 16, torch.bfloat16)
    page = (
        torch.cat([half.reshape(-1) for half in (numbers[:, :128], numbers[:, 128:])])
        .view(torch.uint8)
        .numpy()
    )
    assert len(codec.encode(NAME, page)) < 0.75 * len(page)


def test_in_eight_bits_each_head_of_a_token_is_off_by_half_a_step_at_most() -> None:
    codec = PageCodec(LAYERS, PAGE, torch.bfloat16, int8=True)
    numbers, page = page_of(torch.bfloat16)
    back = torch.zeros_like(numbers)
    codec.decode(NAME, codec.encode(NAME, page), back.view(torch.uint8).numpy())
    rows, rows_back = (each.float()[: 2 * PAGE * 4].view(-1, 4) for each in (numbers, back))
    step = rows.abs().amax(1, keepdim=True) / 127
    assert ((rows - rows_back).abs() <= step * 0.5 + rows.abs() * 2**-8).all()


def test_zeros_in_eight_bits_are_zeros() -> None:
    codec = PageCodec(LAYERS, PAGE, torch.bfloat16, int8=True)
    page = np.zeros_like(page_of(torch.bfloat16)[1])
    back = np.ones_like(page)
    codec.decode(NAME, codec.encode(NAME, page), back)
    assert not back.any()


@pytest.mark.parametrize("int8", [False, True])
def test_another_page_or_a_part_of_one_is_not_the_page(int8: bool) -> None:
    codec = PageCodec(LAYERS, PAGE, torch.bfloat16, int8)
    _, page = page_of(torch.bfloat16)
    file, back = codec.encode(NAME, page), np.zeros_like(page)
    smaller = PageCodec({0: LAYERS[0]}, PAGE, torch.bfloat16, int8)
    shorter = smaller.encode(NAME, page[: PAGE * LAYERS[0].elements * 2])
    for other in (file[:-1], file[:10], b"", NAME, NAME[::-1] + file[16:], shorter):
        with pytest.raises(NotThePage):
            codec.decode(NAME, other, back)
    assert not back.any()


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
