"""Between text and tokens: one model's chat template, its tokenizer and its incremental decoder.

Decoding goes through bytes: each token stands for a few, and a UTF-8 decoder that keeps state
turns them into characters as soon as these are whole. That equals decoding all tokens at once,
costs the same for each token, and gives log probability entries their bytes.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerFast

from cluster.errors import InvalidRequest, UnsupportedModel
from deployments.alphabet import byte_alphabet
from deployments.aside import Aside
from deployments.controls import ControlTokens
from deployments.reach import Reach

LONG_TEXT = 4096
"""Characters from which encoding (up to 1 us each) leaves the event loop for a thread."""

MESSAGE = 64
"""What a turn costs its template, in characters that would take as long to encode."""

SAMPLE = tuple(
    {"role": role, "content": "words"} for role in ("system", "user", "assistant", "user")
)
"""What shows how a template marks the turns; not all take one of the system."""

_encoding = Aside("encoding", threads=2)

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
SPACE_MARK = "\u2581"
KNOWN_DECODERS = {"ByteLevel", "Sequence", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


class ModelText:
    """The words of one model.

    `vocab_size` is the model's own, which may exceed the tokenizer's; `eos_ids` end its answers;
    `context` is the longest sequence its position embeddings know, where the model says so;
    `reach` is how much text a token stands for at most, where that is certain.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        vocab_size: int,
        eos_ids: frozenset[int],
        context: int | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = eos_ids
        self.context = context
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._added = self._backend.get_added_tokens_decoder()
        self._alphabet = byte_alphabet() if _is_byte_level(self._backend.decoder) else None
        self._bytes: dict[int, bytes] = {}
        self.reach = Reach.of(self._backend)
        template = str(tokenizer.chat_template or "")
        self._controls = ControlTokens(self._backend, eos_ids, template, self._sample())

    @classmethod
    def load(cls, folder: Path) -> ModelText:
        """From a model folder: its tokenizer files, config.json and generation_config.json.

        Raises UnsupportedModel where its tokenizer cannot be decoded exactly.
        """
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        config = _read_json(folder / "config.json")
        generation = _read_json(folder / "generation_config.json")
        words = config.get("text_config", config)
        ends = generation.get("eos_token_id", words.get("eos_token_id"))
        eos_ids = {*_as_ids(ends), *_as_ids(tokenizer.eos_token_id)}
        context = words.get("max_position_embeddings", words.get("n_positions"))
        return cls(tokenizer, words.get("vocab_size", len(tokenizer)), frozenset(eos_ids), context)

    async def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with those that the tokenizer puts around it. What spells a
        control token is one: who writes a prompt as it goes to the model writes these too.
        """
        if len(text) < LONG_TEXT:
            return self.encode_now(text, special=True)
        return await _encoding.run(self.encode_now, text, special=True)

    async def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The conversation as the model's chat template writes it down, up to the next answer.

        Raises InvalidRequest where the model has no chat template or its template refuses.
        """
        if _work(messages) < LONG_TEXT:
            return self.render_now(messages)
        return await _encoding.run(self.render_now, messages)

    def render_now(self, messages: Sequence[Mapping[str, str]]) -> str:
        """As `render`, by the calling thread."""
        return self._render(messages, up_to_answer=True)

    def _render(self, messages: Sequence[Mapping[str, str]], *, up_to_answer: bool) -> str:
        if self._tokenizer.chat_template is None:
            raise InvalidRequest("the model has no chat template; ask for a completion", "messages")
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=up_to_answer
            )
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
        ) as error:
            reason = f"the model's chat template refuses the messages: {error}"
            raise InvalidRequest(reason, "messages") from None
        return rendered

    def _sample(self) -> str:
        """The most turns of `SAMPLE` that the chat template takes, rendered; else nothing."""
        for start in range(2):
            with contextlib.suppress(InvalidRequest):
                return self._render(SAMPLE[start:], up_to_answer=False)
        return ""

    async def encode_chat(self, messages: Sequence[Mapping[str, str]], written: str) -> list[int]:
        """Token ids of the conversation that was rendered as `written`. Control tokens are the
        template's alone: what the messages spell of them is text.

        Raises InvalidRequest where they cannot be told apart.
        """
        if max(len(written), _work(messages)) < LONG_TEXT:  # a template may leave out much
            return self.encode_chat_now(messages, written)
        return await _encoding.run(self.encode_chat_now, messages, written)

    def encode_chat_now(self, messages: Sequence[Mapping[str, str]], written: str) -> list[int]:
        """As `encode_chat`, by the calling thread."""
        if self._controls.are_in(messages, written):
            return self._controls.encode(messages, written, self.render_now)
        return self.encode_now(written)

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to a text; nothing for special tokens and padding of the vocabulary.

        Never strips the space that some tokenizers put before a text's first word: output goes on
        from a prompt.
        """
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._find_bytes(token)
        return known

    def token_name(self, token: int) -> str:
        """The token for people to read: its text, or its bytes where they are no whole text."""
        if token in self._added:
            return str(self._added[token].content)
        raw = self.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def decode(self, tokens: Iterable[int]) -> str:
        return b"".join(map(self.token_bytes, tokens)).decode(errors="replace")

    def encode_now(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text`, worked out by the calling thread; `special`: with those around it.

        By the batch call, which lets other threads run meanwhile; `encode` holds Python's lock.
        """
        (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=special)
        ids: list[int] = encoded.ids
        return ids

    def _find_bytes(self, token: int) -> bytes:
        if token in self._added:
            added = self._added[token]
            return b"" if added.special else str(added.content).encode()
        written = self._backend.id_to_token(token)
        if written is None:
            return b""
        if self._alphabet is not None:
            return b"".join(self._alphabet.get(char) or char.encode() for char in written)
        byte = BYTE_TOKEN.fullmatch(written)
        if byte:
            return bytes.fromhex(byte[1])
        return str(written).replace(SPACE_MARK, " ").encode()


class TextDecoder:
    """Turns the tokens of one choice into text as they come."""

    def __init__(self, text: ModelText) -> None:
        self._bytes_of = text.token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The characters that `token` completes; the rest of its bytes wait for the next."""
        return self._utf8.decode(self._bytes_of(token))

    @property
    def waits(self) -> bool:
        """Whether bytes of an unfinished character are waiting."""
        return bool(self._utf8.getstate()[0])

    def flush(self) -> str:
        """The replacement character for what never became whole."""
        return self._utf8.decode(b"", final=True)


def _work(messages: Sequence[Mapping[str, str]]) -> int:
    """What it takes to go through all that they hold, in characters to encode."""
    return sum(MESSAGE + sum(map(len, message.values())) for message in messages)


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _as_ids(ids: int | list[int] | None) -> list[int]:
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else ids


def _is_byte_level(decoder: Any) -> bool:
    """Whether tokens spell bytes in the alphabet of GPT-2; else they are text with `<0x0A>`."""
    if decoder is None:
        raise UnsupportedModel("the tokenizer has no decoder, so its tokens have no certain text")
    kinds = set(_kinds(json.loads(decoder.__getstate__())))
    if not kinds <= KNOWN_DECODERS:
        unknown = ", ".join(sorted(kinds - KNOWN_DECODERS))
        raise UnsupportedModel(f"a tokenizer that decodes by {unknown} is not served")
    return "ByteLevel" in kinds


def _kinds(decoder: dict[str, Any]) -> list[str]:
    inner = [kind for part in decoder.get("decoders", ()) for kind in _kinds(part)]
    return [decoder["type"], *inner]
