"""From a checked body to requests for the cluster: what needs the model, the limits and a seed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from cluster.config import ModelConfig, ShoalConfig
from cluster.errors import ConfigError, ContextTooLong, InvalidRequest, ModelNotFound
from cluster.messages import Request, Sampling, Stopping
from deployments.generation import EchoedPrompt, RequestText
from deployments.handle import GenerateRequest
from deployments.openai import ChatMessage, ChatRequest, CompletionRequest
from deployments.parameters import SEED_BITS, Parameters
from deployments.stops import compile_stops
from deployments.text import ModelText


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as the door knows it: its name, its words, and its context in tokens."""

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


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client: a request for each of its prompts. Choices count on over prompts."""

    call_id: str
    model: ServedModel
    readings: tuple[RequestText, ...]
    choices_each: int

    @property
    def choices(self) -> int:
        return self.choices_each * len(self.readings)


class Intake:
    """Turns bodies into calls. Raises RequestErrors that name the field."""

    def __init__(self, config: ShoalConfig, models: Iterable[ServedModel], random: Random) -> None:
        self._config = config
        self._random = random
        self.models = {model.name: model for model in models}
        classes = config.scheduling.classes
        self._classes = {tier: sla.name for sla in classes for tier in (*sla.tiers, sla.name)}

    def model(self, name: str | None) -> ServedModel:
        """The model called `name`; without one, the only one there is."""
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name not in self.models:
            known = ", ".join(self.models)
            raise ModelNotFound(f"there is no model {name!r} here; there is: {known}")
        return self.models[name]

    async def chat(self, body: ChatRequest, tenant: str) -> Call:
        model = self.model(body.model)
        prompt = await self._encode_chat(model, body.messages)
        return self._call("chatcmpl", model, body, tenant, [(prompt, None)])

    async def complete(self, body: CompletionRequest, tenant: str) -> Call:
        model = self.model(body.model)
        prompts = []
        for prompt in body.prompts:
            prompts.append(await self._encode(model, prompt))
            await asyncio.sleep(0)  # many short prompts must not hold up everybody's streams
        return self._call("cmpl", model, body, tenant, prompts)

    async def generate(self, body: GenerateRequest) -> Call:
        model = self.model(body.model)
        if body.messages is not None:
            prompt: _Encoded = (await self._encode_chat(model, body.messages), None)
        else:
            prompt = await self._encode(model, body.prompt or "")
        return self._call("gen", model, body, body.tenant, [prompt])

    async def _encode_chat(self, model: ServedModel, messages: Sequence[ChatMessage]) -> list[int]:
        return await model.text.encode_chat([message.for_template() for message in messages])

    async def _encode(self, model: ServedModel, prompt: str | list[int]) -> _Encoded:
        if isinstance(prompt, str):
            return await model.text.encode(prompt), prompt
        _check_ids(model, prompt, "prompt")
        return prompt, None

    def _call(
        self,
        prefix: str,
        model: ServedModel,
        body: Parameters,
        tenant: str,
        prompts: Sequence[_Encoded],
    ) -> Call:
        self._check(model, body)
        call_id = f"{prefix}-{self._random.getrandbits(128):032x}"
        patterns = compile_stops(body.stop_strings)
        readings = []
        for index, (ids, original) in enumerate(prompts):
            request = Request(
                request_id=f"{call_id}-{index}",
                model=model.name,
                tenant=tenant,
                sla=self._sla(body.service_tier),
                prompt=tuple(ids),
                sampling=_sampling(body, self._seed(body)),
                stopping=_stopping(body, model, len(ids)),
                choices=body.n,
            )
            echo = EchoedPrompt.of(model.text, ids, original) if body.echoes else None
            readings.append(RequestText(request, model.text, patterns, echo))
        return Call(call_id, model, tuple(readings), body.n)

    def _seed(self, body: Parameters) -> int:
        """The caller's, or one drawn for this request; not negative."""
        if body.seed is None:
            return self._random.getrandbits(SEED_BITS)
        return body.seed % (1 << SEED_BITS)

    def _check(self, model: ServedModel, body: Parameters) -> None:
        limits = self._config.gateway
        _at_most("n", body.n, limits.max_choices)
        alternatives = "top_logprobs" if isinstance(body, ChatRequest) else "logprobs"
        _at_most(alternatives, body.alternatives or 0, limits.max_logprobs)
        _check_ids(model, body.stop_token_ids, "stop_token_ids")
        _check_ids(model, map(int, body.logit_bias), "logit_bias")

    def _sla(self, tier: str | None) -> str:
        if tier is None:
            return self._config.scheduling.default_class
        if tier not in self._classes:
            allowed = ", ".join(self._classes)
            raise InvalidRequest(f"`service_tier` may be {allowed} (got {tier!r})", "service_tier")
        return self._classes[tier]


_Encoded = tuple[list[int], str | None]
"""Token ids of a prompt, and the prompt as it was written, if it was text."""


def _at_most(field: str, value: int, limit: int) -> None:
    if value > limit:
        raise InvalidRequest(f"`{field}` may be {limit} at most (got {value})", field)


def _check_ids(model: ServedModel, ids: Iterable[int], field: str) -> None:
    size = model.text.vocab_size
    wrong = next((token for token in ids if token >= size), None)
    if wrong is not None:
        raise InvalidRequest(f"`{field}`: the {size} tokens end before {wrong}", field)


def _sampling(body: Parameters, seed: int) -> Sampling:
    return Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=seed,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=tuple((int(token), bias) for token, bias in body.logit_bias.items()),
        logprobs=body.alternatives,
        prompt_logprobs=body.alternatives if body.echoes else None,
    )


def _stopping(body: Parameters, model: ServedModel, prompt_len: int) -> Stopping:
    ends = set(body.stop_token_ids) | (frozenset() if body.ignore_eos else model.text.eos_ids)
    return Stopping(_max_tokens(body, model, prompt_len), body.min_tokens, tuple(sorted(ends)))


def _max_tokens(body: Parameters, model: ServedModel, prompt_len: int) -> int:
    """The limit asked for, else what the context leaves."""
    param = "messages" if isinstance(body, ChatRequest) else "prompt"
    if prompt_len == 0:
        raise InvalidRequest(f"`{param}` is empty", param)
    left = model.context - prompt_len
    wanted = left if body.token_limit is None else body.token_limit
    if left < max(wanted, 1):
        raise ContextTooLong(
            f"the prompt has {prompt_len} tokens and {max(wanted, 1)} more were asked for;"
            f" the context of {model.name} is {model.context} tokens",
            param,
        )
    if body.min_tokens > wanted:
        message = f"`min_tokens` is {body.min_tokens}, more than the {wanted} tokens allowed"
        raise InvalidRequest(message, "min_tokens")
    return wanted
