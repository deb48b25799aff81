"""The parameters of generation that every door shares, checked once when a body is built."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    StringConstraints,
    Tag,
    ValidationError,
    model_validator,
)

from cluster.errors import InvalidRequest
from deployments.refusals import HALF_A_PAIR, refuse_invalid

COMPLETION_TOKENS = 16
"""What OpenAI generates for a prompt, as opposed to messages, where no limit is given."""

MAX_STOPS = 4
SEED_BITS = 63


class Wire(BaseModel):
    """A part of a body: strictly typed, no unknown fields; null means that a field is absent."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = {name: value for name, value in data.items() if value is not None}
        unknown = [name for name in given if name not in cls.model_fields]
        for name in unknown[1:]:  # one is refused by name; to name them all could take seconds
            del given[name]
        return given


def one_or_list(value: Any) -> str | None:
    """The tag of a union of one text and a list."""
    if isinstance(value, str):
        return "<one>"
    return "<list>" if isinstance(value, list) else None


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(HALF_A_PAIR) from None
    return text


Text = Annotated[str, AfterValidator(_whole)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
StopStrings = Annotated[
    Annotated[StopString, Tag("<one>")]
    | Annotated[list[StopString], Field(max_length=MAX_STOPS), Tag("<list>")],
    Discriminator(
        one_or_list,
        custom_error_type="text_or_texts",
        custom_error_message="must be a string or a list of strings",
    ),
]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenKey = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]


class Parameters(Wire):
    """How to generate and when to end.

    Raises InvalidRequest or UnsupportedField, naming the field, instead of pydantic's own error.
    """

    max_tokens: int | None = Field(None, ge=1, description="Tokens to generate at most.")
    min_tokens: int = Field(0, ge=0, description="No stop before so many tokens.")
    temperature: float = Field(1.0, ge=0, le=2, description="0 takes the likeliest token.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus: least mass to draw from.")
    top_k: int = Field(0, ge=0, lt=2**31, description="Draw from the k likeliest; 0: from all.")
    min_p: float = Field(0.0, ge=0, le=1, description="Least probability, relative to the top.")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="Absent: drawn at random.")
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    # Logits are divided by it: by much less than this they are no numbers any more.
    repetition_penalty: float = Field(1.0, ge=0.01, le=10)
    logit_bias: dict[TokenKey, Bias] = Field(
        default_factory=dict,
        max_length=1024,
        fail_fast=True,
        description="Token ids, as strings, to their bias.",
    )
    n: int = Field(1, ge=1, description="Choices for each prompt.")
    stop: StopStrings = Field(
        default_factory=list, description="Texts that end a choice; they are not part of it."
    )
    stop_token_ids: list[TokenId] = Field(default_factory=list, max_length=MAX_STOPS)
    ignore_eos: bool = Field(False, description="Go on past the model's end of sequence.")
    deadline_s: float | None = Field(
        None, gt=0, description="Seconds for the whole answer; the request fails beyond them."
    )
    service_tier: str | None = Field(None, description="A tier or the name of a class of service.")
    user: str | None = Field(None, description="Accepted, without effect.")

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_field(cls, data: Any, handler: ModelWrapValidatorHandler[Parameters]) -> Any:
        if not isinstance(data, dict | cls):
            raise InvalidRequest("the body must be a JSON object, sent as application/json")
        try:
            return handler(data)
        except ValidationError as error:
            raise refuse_invalid(error) from None

    @property
    def token_limit(self) -> int | None:
        """Tokens to generate at most; None: as many as the context leaves."""
        return self.max_tokens

    @property
    def limit_field(self) -> str:
        """Where that limit is written, or would be."""
        return "max_tokens"

    @property
    def alternatives(self) -> int | None:
        """Alternatives reported with each token; None: no log probabilities at all."""
        return None

    @property
    def echoes(self) -> bool:
        """Whether the prompt is given back before the text."""
        return False

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
