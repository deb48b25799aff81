"""What users write stays text: a model's control tokens are its chat template's to write.

Where a message spells a control token, the spelling is sealed before the template is rendered; what
the rendered text still spells out is the template's own. Each of these becomes one private
character, the seals are broken, and a second tokenizer over the same model reads the result. It
knows control tokens by those characters alone, so whatever users wrote is read as any text is.

Rejected: to encode messages piece by piece, since at the seams words and spaces would be others.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from tokenizers import AddedToken, Tokenizer

from cluster.errors import InvalidRequest
from deployments.spellings import PRIVATE, Spellings

Messages = Sequence[Mapping[str, str]]
Render = Callable[[Messages], str]

ELSE = "\U000f0000"
"""A private character that is none of ours."""


class ControlTokens:
    """Those of one tokenizer: the special ones, those that end an answer, those that mark the turns
    of `sample`, a plain conversation as the chat template renders it, and what else of its added
    tokens the template writes. The last are `soft`: the model may say them, so what the assistant
    said keeps them, and the template may read them.
    """

    def __init__(
        self, backend: Tokenizer, ends: Collection[int], template: str, sample: str
    ) -> None:
        every = backend.get_added_tokens_decoder()
        added = {id: one for id, one in every.items() if one.content}
        contents = {one.content for one in added.values()}
        special = {one.content for id, one in added.items() if one.special or id in ends}
        special |= {
            one for one in contents if _is_word_of(sample, one) and not _is_tag(one, contents)
        }
        written = {one for one in contents if _is_word_of(template, one)}
        names = sorted(special | written)
        self._names = {name: chr(PRIVATE + number) for number, name in enumerate(names)}
        self._soft = frozenset(written - special)
        changed = any(one.normalized for one in added.values() if one.content in self._names)
        self._normalizer = backend.normalizer if changed else None
        self._spellings = Spellings({*names, *map(self._normal, names)})
        self._plain = backend
        self._strict = Tokenizer(backend.model)
        self._strict.normalizer = backend.normalizer
        self._strict.pre_tokenizer = backend.pre_tokenizer
        renamed = {id: self._renamed(one) for id, one in added.items()}
        self._strict.add_tokens(list(renamed.values()))
        own = {id: self._strict.token_to_id(one.content) for id, one in renamed.items()}
        self._ids = {strict: id for id, strict in own.items()}
        self._named = {own[id] for id, one in added.items() if one.content in self._names}
        unknown = getattr(backend.model, "unk_token", None)
        self._spelled = {backend.model.token_to_id(name) for name in names if name != unknown}

    def are_in(self, messages: Messages, written: str) -> bool:
        """Whether a message spells one, or begins to with its last characters, or may do so since
        the template did not leave it as it was."""
        return any(
            self._spellings.are_in(form, self._spared(message))
            for message in messages
            for text in _contents(message).values()
            for form in self._forms(text)
        ) or self._are_changed(messages, written)

    def encode(self, messages: Messages, written: str, render: Render) -> list[int]:
        """Token ids of the conversation that `render` wrote down as `written`.

        Raises InvalidRequest where template or tokenizer leave no way to tell whose a control token
        is, and where a message holds private characters beside one, which would pass for it.
        """
        if any(map(Spellings.are_confused_by, _texts(messages))):
            return self._encode_unspelled(messages, written, render)
        sealed = self._sealed(messages, written, render)
        if sealed is None:  # it may hold the time
            sealed = self._sealed(messages, render(messages), render)
        if sealed is None:
            raise _not_told_apart("chat template")
        text, count = self._spellings.replaced(sealed, self._names)
        (encoded,) = self._strict.encode_batch_fast(
            [self._spellings.unseal(text)], add_special_tokens=False
        )
        ids: list[int] = encoded.ids
        if sum(id in self._named for id in ids) != count or not self._spelled.isdisjoint(ids):
            raise _not_told_apart("tokenizer")
        return [self._ids.get(id, id) for id in ids]

    def _are_changed(self, messages: Messages, written: str) -> bool:
        """Whether a text that could begin a control token is not in `written` as it is. What is cut
        out of it may leave a spelling that it did not hold."""
        return any(
            self._spellings.first_in(text) and text.strip() not in written
            for text in _texts(messages)
        )

    def _sealed(self, messages: Messages, written: str, render: Render) -> str | None:
        """As `written`, but with the spellings of control tokens in the messages sealed; soft ones
        that the template reads, as the end of a thought, are left as the template leaves them.
        None where the template does not treat the sealed messages alike."""
        every = self._are_changed(messages, written)

        def attempt(spared: Collection[str]) -> str | None:
            sealed = render(self._seal(messages, spared, every=every))
            return sealed if self._spellings.unseal(sealed) == written else None

        sealed = attempt(())
        if sealed is None:
            texts = _texts(messages)
            there = self._soft & {one for text in texts for one in self._spellings.found(text)}
            needed = [one for one in there if attempt(there - {one}) is None]
            sealed = attempt(needed) or attempt(there)  # of two, either may do
        return sealed

    def _encode_unspelled(self, messages: Messages, written: str, render: Render) -> list[int]:
        """Where the messages hold characters of ours: as any text, if they spell nothing."""
        ours = re.compile(f"[{chr(PRIVATE)}-{chr(sys.maxunicode)}]")
        others = [
            {key: ours.sub(ELSE, text) for key, text in message.items()} for message in messages
        ]
        count = self._spellings.count(render(self._seal(others, (), every=True)))
        if self._normalizer is not None or self._spellings.count(written) != count:
            raise InvalidRequest(
                "`messages` hold private characters beside control tokens", "messages"
            )
        (encoded,) = self._plain.encode_batch_fast([written], add_special_tokens=False)
        ids: list[int] = encoded.ids
        return ids

    def _seal(
        self, messages: Messages, spared: Collection[str], *, every: bool
    ) -> list[dict[str, str]]:
        def sealed(message: Mapping[str, str]) -> dict[str, str]:
            left = {*spared, *self._spared(message)}
            contents = _contents(message).items()
            seal = partial(self._spellings.seal, spared=left, every=every)
            return {**message, **{key: seal(text) for key, text in contents}}

        return list(map(sealed, messages))

    def _spared(self, message: Mapping[str, str]) -> Collection[str]:
        return self._soft if message["role"] == "assistant" else ()

    def _forms(self, text: str) -> Iterator[str]:
        """As it is, and as the tokenizer rewrites it before it looks for control tokens."""
        yield text
        if self._normalizer is not None:
            yield self._normal(text)

    def _normal(self, text: str) -> str:
        return str(self._normalizer.normalize_str(text)) if self._normalizer is not None else text

    def _renamed(self, token: AddedToken) -> AddedToken:
        return AddedToken(
            self._names.get(token.content, token.content),
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized,
        )


def _contents(message: Mapping[str, str]) -> dict[str, str]:
    """What the caller is free to write."""
    return {field: text for field, text in message.items() if field != "role"}


def _texts(messages: Messages) -> list[str]:
    return [text for message in messages for text in _contents(message).values()]


def _is_word_of(text: str, token: str) -> bool:
    """Whether it stands there as a marker: plain words and spaces mean nothing."""
    return token in text and bool(token.strip()) and not token.isalnum()


def _is_tag(token: str, others: Collection[str]) -> bool:
    """Whether it is one of a pair, as `<think>` and `</think>`: these stand within a turn, and some
    templates write an empty pair into each answer."""
    bare = token.replace("</", "<", 1)
    return token.startswith("<") and {bare, bare.replace("<", "</", 1)} <= set(others)


def _not_told_apart(part: str) -> InvalidRequest:
    reason = (
        f"`messages` spell out control tokens, which the model's {part} cannot tell from its own"
    )
    return InvalidRequest(reason, "messages")
