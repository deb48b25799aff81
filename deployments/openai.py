"""The wire format of requests: OpenAI's bodies, and what Shoal adds to them.

A field that Shoal does not serve is refused by name. Fields marked as being without effect are
accepted because no answer depends on them: labels of the caller, or the one value that Shoal
serves anyway.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, Tag, model_validator

from cluster.errors import InvalidRequest, UnsupportedField
from deployments.parameters import COMPLETION_TOKENS, Parameters, Text, TokenId, Wire, one_or_list

NO_EFFECT = "Accepted, without effect."
MAX_PARTS = 4096
"""Messages of a chat, and parts of a message."""

MAX_NAME = 256
"""Characters of the name of who speaks."""


class TextPart(Wire):
    """One part of a message's content."""

    type: Literal["text"]
    text: Text


class ChatMessage(Wire):
    """One turn of a conversation. `developer` is rendered as `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[Text, Tag("<one>")]
        | Annotated[list[TextPart], Field(max_length=MAX_PARTS, fail_fast=True), Tag("<list>")],
        Discriminator(
            one_or_list,
            custom_error_type="text_or_parts",
            custom_error_message="must be a string or a list of text parts",
        ),
    ]
    name: Annotated[Text, Field(max_length=MAX_NAME)] | None = None

    def for_template(self) -> dict[str, str]:
        """The message as chat templates expect it; parts of the content become lines."""
        parts = self.content
        text = parts if isinstance(parts, str) else "\n".join(part.text for part in parts)
        role = "system" if self.role == "developer" else self.role
        named = {"name": self.name} if self.name is not None else {}
        return {"role": role, "content": text, **named}


class StreamOptions(Wire):
    """What a stream carries besides its tokens."""

    include_usage: bool = Field(False, description="A last chunk with the usage of the call.")
    include_obfuscation: Literal[False] = Field(False, description=NO_EFFECT)


class TextFormat(Wire):
    """The only response format served: free text."""

    type: Literal["text"]


class ApiRequest(Parameters):
    """What both endpoints share."""

    model: str = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> ApiRequest:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("`stream_options` is for `stream: true`", "stream_options")
        return self

    @property
    def streams_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(ApiRequest):
    """The body of POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1, description="As `max_tokens`.")
    logprobs: bool = Field(False, description="Report each token's log probability.")
    top_logprobs: int | None = Field(None, ge=0, description="Alternatives to report with it.")
    response_format: TextFormat | None = None
    modalities: list[Literal["text"]] | None = Field(None, max_length=1)
    tool_choice: Literal["none"] | None = Field(None, description=NO_EFFECT)
    parallel_tool_calls: bool | None = Field(None, description=NO_EFFECT)
    store: Literal[False] | None = Field(None, description=NO_EFFECT)
    metadata: dict[str, str] | None = Field(
        None, max_length=16, fail_fast=True, description=NO_EFFECT
    )
    safety_identifier: str | None = Field(None, description=NO_EFFECT)
    prompt_cache_key: str | None = Field(None, description=NO_EFFECT)

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("`top_logprobs` is for `logprobs: true`", "top_logprobs")
        return self

    @model_validator(mode="after")
    def _one_limit(self) -> ChatRequest:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise InvalidRequest(
                "`max_tokens` and `max_completion_tokens` mean the same; give one of them",
                "max_completion_tokens",
            )
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def limit_field(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def prompt_kind(value: Any) -> str | None:
    """The tag of a prompt: one or several, texts or token ids."""
    if not isinstance(value, list):
        return one_or_list(value)
    if value and isinstance(value[0], str):
        return "<texts>"
    return "<ids of each>" if value and isinstance(value[0], list) else "<ids>"


Prompt = Annotated[
    Annotated[Text, Tag("<one>")]
    | Annotated[list[Text], Field(max_length=256), Tag("<texts>")]
    | Annotated[list[TokenId], Field(fail_fast=True), Tag("<ids>")]
    | Annotated[
        list[Annotated[list[TokenId], Field(fail_fast=True)]],
        Field(max_length=256, fail_fast=True),
        Tag("<ids of each>"),
    ],
    Discriminator(
        prompt_kind,
        custom_error_type="prompt_kind",
        custom_error_message="must be text, token ids, or a list of either",
    ),
]


class CompletionRequest(ApiRequest):
    """The body of POST /v1/completions."""

    prompt: Prompt
    echo: bool = Field(False, description="Give the prompt back before the text.")
    logprobs: int | None = Field(None, ge=0, description="Alternatives to report per token.")
    best_of: int | None = Field(None, ge=1, description="Must equal `n`: nothing is ranked.")
    max_tokens: int | None = Field(
        None, ge=0, description="Tokens to generate at most; 0, with `echo`, scores the prompt."
    )

    @model_validator(mode="after")
    def _nothing_at_all_is_no_answer(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest("`max_tokens` may be 0 with `echo: true` only", "max_tokens")
        return self

    @model_validator(mode="after")
    def _nothing_is_ranked(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != self.n:
            raise UnsupportedField("`best_of` is not supported unless it equals `n`", "best_of")
        return self

    @property
    def token_limit(self) -> int | None:
        return COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def echoes(self) -> bool:
        return self.echo

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself."""
        single = prompt_kind(self.prompt) in ("<one>", "<ids>")
        return cast(list[str | list[int]], [self.prompt] if single else self.prompt)
