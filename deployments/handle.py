"""What Python callers say and hear: the same parameters and errors as over HTTP, as objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Discriminator, Field, Tag, model_validator

from cluster.errors import InvalidRequest
from cluster.messages import FinishReason, TokenLogprob
from deployments.auth import ANONYMOUS
from deployments.generation import Usage
from deployments.openai import ChatMessage
from deployments.parameters import COMPLETION_TOKENS, Parameters, Text, TokenId, one_or_list

OnePrompt = Annotated[
    Annotated[Text, Tag("<one>")] | Annotated[list[TokenId], Tag("<list>")],
    Discriminator(
        one_or_list,
        custom_error_type="text_or_ids",
        custom_error_message="must be text or a list of token ids",
    ),
]


class GenerateRequest(Parameters):
    """One prompt, as text, as token ids or as messages, and how to go on from it.

    Raises InvalidRequest as it is built. `logprobs`: alternatives to report with each token.
    `model` may be left out where one model is served. The tenant is believed: whoever can reach
    the handle is inside the cluster.
    """

    model: str | None = None
    prompt: OnePrompt | None = None
    messages: list[ChatMessage] | None = Field(None, min_length=1)
    logprobs: int | None = Field(None, ge=0)
    echo: bool = False
    tenant: str = ANONYMOUS

    @model_validator(mode="after")
    def _one_prompt(self) -> GenerateRequest:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("give either `prompt` or `messages`", "prompt")
        if self.echo and self.messages is not None:
            raise InvalidRequest("`echo` is for a `prompt`", "echo")
        return self

    @property
    def token_limit(self) -> int | None:
        """As over HTTP: what the context leaves for messages, little for a prompt."""
        return self.max_tokens or (None if self.prompt is None else COMPLETION_TOKENS)

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def echoes(self) -> bool:
        return self.echo


@dataclass(frozen=True, slots=True)
class GenerationDelta:
    """What became known of one choice. The last delta of a call carries the usage."""

    choice: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class GeneratedChoice:
    """One finished choice.

    `token_ids` includes the token that ended it, but none of a stop string; `logprobs` runs
    parallel where asked for. With `echo`, text and logprobs begin with the prompt's.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob | None, ...] | None
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Generation:
    """The answer to a GenerateRequest; the fields of its first choice are at hand directly."""

    request_id: str
    model: str
    choices: tuple[GeneratedChoice, ...]
    usage: Usage

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason
