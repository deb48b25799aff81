"""A page as a file: what comes back is what went, or it is not the page; and who writes it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("lz4")

from actors.engine.folder_pages import _Clerk
from actors.engine.kv_cache import LayerShape
from actors.engine.page_codec import Bytes, NotThePage, PageCodec
from cluster.folder_tier import PageWrite, Written

PAGE = 4
LAYERS = {0: LayerShape(2, 4, 4), 1: LayerShape(1, 8, 4), 2: LayerShape(1, 8, 8)}
NAME = b"sixteen bytes it"


def page_of(dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, Bytes]:
    """Numbers that a page might hold, and the page."""
    elements = sum(PAGE * shape.elements for shape in LAYERS.values())
    numbers = torch.randn(elements, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return numbers, numbers.view(torch.uint8).numpy()


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
