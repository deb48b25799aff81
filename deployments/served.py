"""A model as the doors know it: its name, its words, and what fits its context."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.config import ModelConfig
from cluster.errors import ConfigError, ContextTooLong, InvalidRequest
from deployments.openai import ChatMessage
from deployments.text import ModelText


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`context` is in tokens, prompt and output together."""

    name: str
    text: ModelText
    context: int

    @classmethod
    def load(cls, config: ModelConfig, folder: Path) -> ServedModel:
        """Raises ConfigError where neither configuration nor model tell the context."""
        text = ModelText.load(folder)
        limits = (config.max_model_len, text.context, config.cache.tokens)
        known = [limit for limit in limits if limit is not None]
        if not known:
            message = f"the model {config.name} does not tell its context; set max_model_len"
            raise ConfigError(message, "args.models.max_model_len")
        return cls(config.name, text, min(known))

    async def encode(self, prompt: str | list[int]) -> list[int]:
        """Token ids of a prompt. Raises InvalidRequest, ContextTooLong."""
        if isinstance(prompt, str):
            self._require_room(prompt, "prompt")
            return await self.text.encode(prompt)
        self.room_beside(len(prompt), 0, "prompt")  # before so many ids are looked at
        self.check_ids(prompt, "prompt")
        return prompt

    async def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Token ids of a conversation up to where the assistant speaks next.

        Raises InvalidRequest, ContextTooLong.
        """
        turns = [message.for_template() for message in messages]
        written = await self.text.render(turns)
        self._require_room(written, "messages")
        return await self.text.encode_chat(turns, written)

    def check_ids(self, ids: Iterable[int], field: str) -> None:
        """Raises InvalidRequest for ids beyond the vocabulary."""
        size = self.text.vocab_size
        wrong = next((token for token in ids if token >= size), None)
        if wrong is not None:
            raise InvalidRequest(f"`{field}`: the {size} tokens end before {wrong}", field)

    def room_beside(self, prompt_len: int, wanted: int, field: str, limit: str = "") -> int:
        """Tokens that the context leaves beside a prompt. Where `wanted` are more, raises
        ContextTooLong that names `limit`, in which they stand, if fewer could be had, else `field`,
        which is the prompt's.
        """
        left = self.context - prompt_len
        if left < wanted:
            raise ContextTooLong(
                f"the prompt has {prompt_len} tokens and {wanted} more were asked for;"
                f" the context of {self.name} is {self.context} tokens",
                limit if limit and left > 0 else field,
            )
        return left

    def _require_room(self, text: str, field: str) -> None:
        """Refuse text that cannot fit, without the seconds that encoding it would take."""
        least = self.text.reach.fewest_tokens(text) if self.text.reach else 0
        if least > self.context:
            raise ContextTooLong(
                f"`{field}` has {len(text)} characters, which are {least} tokens or more;"
                f" the context of {self.name} is {self.context} tokens",
                field,
            )
