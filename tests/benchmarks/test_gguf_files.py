"""A model is rewritten in another precision and is otherwise the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from benchmarks.gguf_files import FILE_TYPES, convert, gguf_of
from cluster.errors import ModelUnavailable
from tests.actors.tiny_gguf import write_gguf


@pytest.mark.parametrize("precision", ["F16", "BF16", "Q8_0"])
def test_matrices_change_precision_and_vectors_do_not(precision: str, tmp_path: Path) -> None:
    original = write_gguf(tmp_path / "tiny.gguf")
    convert(original, tmp_path / "copy.gguf", precision)
    before, after = (GGUFReader(tmp_path / name) for name in ("tiny.gguf", "copy.gguf"))
    for old, new in zip(before.tensors, after.tensors, strict=True):
        matrix = len(old.shape) > 1
        assert new.name == old.name
        assert new.tensor_type.name == (precision if matrix else "F32")
        copied = dequantize(new.data, new.tensor_type)
        np.testing.assert_allclose(copied, old.data, atol=0.005 if matrix else 0)


def test_the_vocabulary_and_the_shape_go_with_it(tmp_path: Path) -> None:
    original = write_gguf(tmp_path / "tiny.gguf")
    convert(original, tmp_path / "copy.gguf", "F16")
    before, after = (GGUFReader(tmp_path / name).fields for name in ("tiny.gguf", "copy.gguf"))
    for name in ("tokenizer.ggml.tokens", "llama.block_count", "general.architecture"):
        assert after[name].contents() == before[name].contents()
    assert after["general.file_type"].contents() == FILE_TYPES["F16"]


def test_a_copy_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    source = str(write_gguf(tmp_path / "tiny.gguf"))
    made = gguf_of(source, "F16")
    when = made.stat().st_mtime_ns
    assert gguf_of(source, "F16") == made
    assert made.stat().st_mtime_ns == when
    assert list(made.parent.iterdir()) == [made]


def test_a_folder_of_safetensors_holds_none(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="holds no GGUF file"):
        gguf_of(str(tmp_path), "F16")
