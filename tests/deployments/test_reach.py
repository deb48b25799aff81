"""How much text a token can stand for: a bound that holds, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cluster.errors import ContextTooLong
from deployments.alphabet import byte_alphabet
from deployments.reach import COMPOSED, Reach
from deployments.served import ServedModel
from deployments.text import ModelText

BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}
ALPHABET = {char: byte[0] for char, byte in byte_alphabet().items()}


def byte_level(*, alphabet: dict[str, int] = ALPHABET) -> Tokenizer:
    """Spells every byte; knows `fish` as a word."""
    merges = [("f", "i"), ("s", "h"), ("fi", "sh")]
    vocabulary = {**alphabet, "fi": 300, "sh": 301, "fish": 302}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentences(*, fallback: bool = True, bytes_known: dict[str, int] = BYTES) -> Tokenizer:
    """Spaces are marks, and what has no token falls back to its bytes, as in SentencePiece."""
    vocabulary = {**bytes_known, "a": 256, "\u2581": 257, "\u2581a": 258, "<unk>": 259}
    model = models.BPE(
        vocabulary, [("\u2581", "a")], byte_fallback=fallback, unk_token="<unk>", fuse_unk=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    return tokenizer


def forgetful() -> Tokenizer:
    """Has no tokens for a control character and for what begins rare ones, as some models."""
    known = {char: byte for char, byte in ALPHABET.items() if byte not in (0x04, 0xF1)}
    return byte_level(alphabet=known)


def composing() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, sentences, composing, forgetful])
@given(words=st.text() | st.text("\u03b1\u0313\u0300\u0345 \x04\U00040000fish"))
def test_no_text_has_fewer_tokens_than_its_reach_allows(
    make: Callable[[], Tokenizer], words: str
) -> None:
    tokenizer = make()
    reach = Reach.of(tokenizer)
    assert reach is not None
    encoded = tokenizer.encode(words, add_special_tokens=False).ids
    assert reach.fewest_tokens(words) <= len(encoded)


def test_composition_makes_one_of_as_many_as_it_is_said_to() -> None:
    spelled = "\u03b1\u0313\u0300\u0345"
    assert len(spelled) == COMPOSED
    assert normalizers.NFC().normalize_str(spelled) == "\u1f82"
    assert Reach.of(composing()) == Reach(COMPOSED * len("fish"), frozenset())


def test_characters_that_vanish_are_not_counted() -> None:
    reach = Reach.of(forgetful())
    assert reach == Reach(len("fish"), frozenset("\x04"))
    assert reach.fewest_tokens("\x04" * 100 + "fish" * 3) == 3


def with_normalizer(normalizer: normalizers.Normalizer) -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizer
    return tokenizer


def with_splitter(splitter: pre_tokenizers.PreTokenizer) -> Tokenizer:
    tokenizer = byte_level()
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([splitter, level])
    return tokenizer


def with_swallowing_token() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return tokenizer


UNBOUNDED = [
    with_normalizer(normalizers.Strip()),
    with_normalizer(normalizers.StripAccents()),
    with_normalizer(normalizers.Replace("aa", "a")),
    with_normalizer(normalizers.Sequence([normalizers.NFC(), normalizers.BertNormalizer()])),
    with_splitter(pre_tokenizers.WhitespaceSplit()),
    with_splitter(pre_tokenizers.Split(" ", "removed")),
    with_swallowing_token(),
    byte_level(alphabet={char: byte for char, byte in ALPHABET.items() if byte != 0x80}),
    sentences(fallback=False),
    sentences(bytes_known={name: place for name, place in BYTES.items() if place != 7}),
    Tokenizer(models.WordLevel({"fish": 0, "<unk>": 1}, unk_token="<unk>")),
    Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0)),
]


@pytest.mark.parametrize("tokenizer", UNBOUNDED)
def test_where_text_may_vanish_nothing_is_promised(tokenizer: Tokenizer) -> None:
    assert Reach.of(tokenizer) is None


def test_steps_that_keep_all_text_are_known(text: ModelText) -> None:
    whole = Reach(len("fish"), frozenset())
    assert Reach.of(with_splitter(pre_tokenizers.Digits(individual_digits=True))) == whole
    assert Reach.of(with_splitter(pre_tokenizers.Split(" ", "isolated"))) == whole
    assert text.reach is not None


@given(words=st.text())
def test_the_call_that_lets_others_run_gives_the_tokens_of_the_other(
    text: ModelText, words: str
) -> None:
    backend = PreTrainedTokenizerFast(tokenizer_object=text._backend).backend_tokenizer
    for special in (False, True):
        plain = backend.encode(words, add_special_tokens=special).ids
        assert text.encode_now(words, special=special) == plain


async def test_text_that_cannot_fit_is_refused_before_it_is_encoded(
    text: ModelText, folder: Path
) -> None:
    class Unencodable(ModelText):
        def encode_now(self, text: str, *, special: bool = False) -> list[int]:
            raise AssertionError("it was encoded")

    unencodable = Unencodable.load(folder)
    assert unencodable.reach is not None
    model = ServedModel("tiny", unencodable, context=8)
    most = 8 * unencodable.reach.characters
    with pytest.raises(ContextTooLong, match=f"`prompt` has {most + 1} characters, which are 9 to"):
        await model.encode("a" * (most + 1))
    with pytest.raises(AssertionError, match="it was encoded"):
        await model.encode("a" * most)
