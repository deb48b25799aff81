"""The types of answers on the wire, as OpenAI's clients read them: for mypy and for /docs.

Plain dicts, since checking token by token what we made ourselves would cost more than making it.
"""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class PromptTokensDetails(TypedDict):
    """How much of the prompts was found in the prefix cache."""

    cached_tokens: int


class UsageBody(TypedDict):
    """What a call used."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(TypedDict):
    """A token and the natural log of its probability."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TopLogprob):
    """A token of the text, and the likeliest in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Log probabilities of a message."""

    content: list[ContentLogprob]
    refusal: None


class AssistantMessage(TypedDict):
    """The model's turn."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    """One answer of a chat."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class Completed(TypedDict):
    """What the answers of both endpoints share."""

    id: str
    created: int
    model: str
    usage: UsageBody
    system_fingerprint: None


class ChatCompletion(Completed):
    """The answer of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class CompletionLogprobs(TypedDict):
    """Log probabilities of a text, in parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One continuation."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class Completion(Completed):
    """The answer of /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ModelCard(TypedDict):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(TypedDict):
    """All models."""

    object: Literal["list"]
    data: list[ModelCard]


class ErrorDetail(TypedDict):
    """What went wrong, and with which field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """OpenAI's error body."""

    error: ErrorDetail
