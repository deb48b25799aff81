"""From a checked body to requests for the cluster: what needs the model, the limits and a seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from cluster.config import ShoalConfig
from cluster.errors import InvalidRequest, ModelNotFound
from cluster.isolation import Isolation
from cluster.messages import Request, Sampling, Stopping
from deployments.generation import EchoedPrompt, RequestText
from deployments.handle import GenerateRequest
from deployments.openai import ChatRequest, CompletionRequest
from deployments.parameters import SEED_BITS, Parameters
from deployments.served import ServedModel
from deployments.stops import compile_stops

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client: a request for each of its prompts. Choices count on over prompts."""

    call_id: str
    model: ServedModel
    readings: tuple[RequestText, ...]
    choices_each: int
    deadline_s: float | None = None

    @property
    def choices(self) -> int:
        return self.choices_each * len(self.readings)


class Intake:
    """Turns bodies into calls. Raises RequestErrors that name the field."""

    def __init__(
        self,
        config: ShoalConfig,
        models: Iterable[ServedModel],
        living: Callable[[str], Awaitable[int]],
        random: Random,
    ) -> None:
        """`living` counts the shards of a model at this moment."""
        self._config = config
        self._living = living
        self._random = random
        self.models = {model.name: model for model in models}
        classes = config.scheduling.classes
        scheduling = config.scheduling
        self._default_class = scheduling.default_tenant.default_class or scheduling.default_class
        self._tenant_classes = {
            each.name: each.default_class for each in scheduling.tenants if each.default_class
        }
        self._classes = {tier: sla.name for sla in classes for tier in (*sla.tiers, sla.name)}
        self._configured = {model.name: model for model in config.models}
        self._isolation = Isolation(config.models)

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
        ask = _Ask("chatcmpl", model, body, tenant, "messages")
        return await self._call(ask, [body.messages], model.encode_chat)

    async def complete(self, body: CompletionRequest, tenant: str) -> Call:
        model = self.model(body.model)
        ask = _Ask("cmpl", model, body, tenant, "prompt")
        return await self._call(ask, body.prompts, model.encode)

    async def generate(self, body: GenerateRequest) -> Call:
        model = self.model(body.model)
        if body.messages is not None:
            ask = _Ask("gen", model, body, body.tenant, "messages")
            return await self._call(ask, [body.messages], model.encode_chat)
        ask = _Ask("gen", model, body, body.tenant, "prompt")
        return await self._call(ask, [body.prompt or ""], model.encode)

    async def _call(
        self, ask: _Ask, prompts: Sequence[P], encode: Callable[[P], Awaitable[list[int]]]
    ) -> Call:
        """What needs no encoding is looked at first, and one prompt is refused before the next."""
        self._check(ask)
        await self._require_places(ask, len(prompts))
        call_id = f"{ask.prefix}-{self._random.getrandbits(128):032x}"
        patterns = compile_stops(ask.body.stop_strings)
        readings = []
        for index, prompt in enumerate(prompts):
            request = self._request(ask, f"{call_id}-{index}", await encode(prompt))
            echo = _echo(ask, request.prompt, prompt) if ask.body.echoes else None
            readings.append(RequestText(request, ask.model.text, patterns, echo))
            await asyncio.sleep(0)  # many short prompts must not hold up everybody's streams
        return Call(call_id, ask.model, tuple(readings), ask.body.n, ask.body.deadline_s)

    def _request(self, ask: _Ask, request_id: str, prompt: Sequence[int]) -> Request:
        return Request(
            request_id=request_id,
            model=ask.model.name,
            tenant=ask.tenant,
            sla=self._sla(ask.body.service_tier, ask.tenant),
            prompt=tuple(prompt),
            sampling=_sampling(ask.body, self._seed(ask.body)),
            stopping=_stopping(ask, len(prompt)),
            choices=ask.body.n,
            deadline_s=ask.body.deadline_s,
        )

    def _seed(self, body: Parameters) -> int:
        """The caller's, or one drawn for this request; not negative."""
        if body.seed is None:
            return self._random.getrandbits(SEED_BITS)
        return body.seed % (1 << SEED_BITS)

    def _check(self, ask: _Ask) -> None:
        limits, body = self._config.gateway, ask.body
        _at_most("n", body.n, limits.max_choices)
        alternatives = "top_logprobs" if isinstance(body, ChatRequest) else "logprobs"
        _at_most(alternatives, body.alternatives or 0, limits.max_logprobs)
        ask.model.check_ids(body.stop_token_ids, "stop_token_ids")
        ask.model.check_ids(map(int, body.logit_bias), "logit_bias")
        self._sla(body.service_tier, ask.tenant)

    async def _require_places(self, ask: _Ask, prompts: int) -> None:
        """Refuse what the cluster would not take were it idle: no retry could cure that.

        Shards that are configured may be on their way, and others may have joined since. Those of
        the tenant's own count where it has some. Raises ModelNotFound for another tenant's model.
        """
        shards = self._isolation.shards_for(ask.model.name, ask.tenant)
        model, waiting = self._configured[shards], self._config.scheduling.max_queued
        each = max(model.steps.places // ask.body.n, 1)
        running = max(model.shards, 1) * each
        if prompts > running + waiting:
            running = max(running, await self._living(model.name) * each)
        if prompts > running + waiting:
            raise InvalidRequest(
                f"`{ask.field}`: {prompts} prompts, of n = {ask.body.n} choices each, are more"
                f" than the {running} that run and the {waiting} that wait here at most",
                ask.field,
            )

    def _sla(self, tier: str | None, tenant: str) -> str:
        """The class that the request names, else its tenant's, else everybody's."""
        if tier is None:
            return self._tenant_classes.get(tenant, self._default_class)
        if tier not in self._classes:
            allowed = ", ".join(self._classes)
            raise InvalidRequest(f"`service_tier` may be {allowed} (got {tier!r})", "service_tier")
        return self._classes[tier]


@dataclass(frozen=True, slots=True)
class _Ask:
    """What all prompts of a call share; `field` is where the caller wrote them."""

    prefix: str
    model: ServedModel
    body: Parameters
    tenant: str
    field: str


def _echo(ask: _Ask, ids: Sequence[int], prompt: object) -> EchoedPrompt:
    return EchoedPrompt.of(ask.model.text, ids, prompt if isinstance(prompt, str) else None)


def _at_most(field: str, value: int, limit: int) -> None:
    if value > limit:
        raise InvalidRequest(f"`{field}` may be {limit} at most (got {value})", field)


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


def _stopping(ask: _Ask, prompt_len: int) -> Stopping:
    body = ask.body
    ends = set(body.stop_token_ids) | (frozenset() if body.ignore_eos else ask.model.text.eos_ids)
    return Stopping(_max_tokens(ask, prompt_len), body.min_tokens, tuple(sorted(ends)))


def _max_tokens(ask: _Ask, prompt_len: int) -> int:
    """The limit asked for, else what the context leaves."""
    if prompt_len == 0:
        raise InvalidRequest(f"`{ask.field}` is empty", ask.field)
    wanted = ask.body.token_limit
    least = 1 if wanted is None else wanted
    left = ask.model.room_beside(prompt_len, least, ask.field, ask.body.limit_field)
    allowed = left if wanted is None else wanted
    if ask.body.min_tokens > allowed:
        message = f"`min_tokens` is {ask.body.min_tokens}, more than the {allowed} tokens allowed"
        raise InvalidRequest(message, "min_tokens")
    return allowed
