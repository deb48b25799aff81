"""Templates, encoding, and the bytes of tokens."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from cluster.config import ModelConfig
from cluster.errors import ConfigError, InvalidRequest, UnsupportedModel
from deployments.served import ServedModel
from deployments.text import LONG_TEXT, ModelText
from tests.deployments.words import save_words


def test_the_door_never_imports_torch(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import deployments.routes\n"
        "from deployments.text import ModelText\n"
        f"text = ModelText.load(Path({str(folder)!r}))\n"
        "text.render_now([{'role': 'user', 'content': 'a'}])\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_long_text_is_encoded_to_the_same_tokens(text: ModelText) -> None:
    long = "One fish, two fish. " * LONG_TEXT
    assert await text.encode(long) == text.encode_now(long)


@pytest.fixture
def no_switching() -> Iterator[None]:
    """Threads change only where one lets go of Python's lock by itself."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    yield
    sys.setswitchinterval(interval)


def test_other_threads_run_while_a_long_text_is_encoded(
    text: ModelText, no_switching: None
) -> None:
    ticks, over = [0], threading.Event()

    def tick() -> None:
        while not over.is_set():
            ticks[0] += 1
            time.sleep(0)

    ticking = threading.Thread(target=tick)
    ticking.start()
    before = ticks[0]
    text.encode_now("One fish, two fish. " * 20_000)
    during = ticks[0] - before
    over.set()
    ticking.join()
    assert during > 0


@given(st.text())
def test_encoding_and_decoding_any_text_returns_it(text: ModelText, words: str) -> None:
    if "<|" not in words:
        assert text.decode(text.encode_now(words)) == words


def test_ends_of_sequence_come_from_the_model_and_its_tokenizer(text: ModelText) -> None:
    assert text.eos_ids == {1, 2}


def test_the_vocabulary_is_the_models_own(folder: Path, text: ModelText) -> None:
    assert text.vocab_size == json.loads((folder / "config.json").read_text())["vocab_size"]
    assert text.token_bytes(text.vocab_size - 1) == b"", "padding of the vocabulary has no text"
    assert text.token_bytes(0) == b"", "special tokens have no text"
    assert text.token_name(0) == "<|start|>"


def test_the_smaller_context_counts(folder: Path) -> None:
    assert ServedModel.load(ModelConfig(), folder).context == 128
    assert ServedModel.load(ModelConfig(max_model_len=64), folder).context == 64
    assert ServedModel.load(ModelConfig(max_model_len=640), folder).context == 128


def test_an_untold_context_is_the_operators_to_tell(tmp_path: Path) -> None:
    save_words(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="max_model_len"):
        ServedModel.load(ModelConfig(), tmp_path)


async def test_a_template_that_refuses_makes_the_messages_invalid(text: ModelText) -> None:
    turn = {"role": "system", "content": ""}
    with pytest.raises(InvalidRequest, match="system comes first") as refusal:
        await text.render([turn, turn])
    assert refusal.value.param == "messages"


async def test_a_model_without_a_template_has_no_chat(tmp_path: Path) -> None:
    save_words(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(InvalidRequest, match="chat template"):
        await ModelText.load(tmp_path).render([{"role": "user", "content": "a"}])


def sentencepiece(folder: Path) -> PreTrainedTokenizerFast:
    """A tokenizer in the manner of Llama 2: spaces are marks, unknown characters are bytes."""
    words = [
        "<s>",
        "\u2581fish",
        "fish",
        "\u2581",
        "s",
        *(f"<0x{byte:02X}>" for byte in range(256)),
    ]
    tokenizer = Tokenizer(models.BPE({word: id for id, word in enumerate(words)}, []))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<s>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.save_pretrained(folder)
    return fast


def test_sentencepiece_tokens_have_spaces_and_bytes(tmp_path: Path) -> None:
    fast = sentencepiece(tmp_path)
    text = ModelText.load(tmp_path)
    tokens = [0, 1, 3, 2, 4, *(5 + byte for byte in "🐟".encode())]
    assert text.decode(tokens) == " fish fishs🐟"
    assert text.decode(tokens) == fast.decode(tokens, skip_special_tokens=True)
    assert text.token_name(5 + 0xF0) == "bytes:\\xf0"


def test_a_tokenizer_that_cannot_be_decoded_exactly_is_refused_by_name(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.decoder = decoders.WordPiece()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        ModelText.load(tmp_path)
