"""Whose shards serve a tenant's requests: its own where it has some, else everybody's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cluster.errors import ModelNotFound

if TYPE_CHECKING:
    from cluster.config import ModelConfig  # which checks by this file what it is given


class Isolation:
    """The one way from what a request asks for to the shards that may serve it.

    A tenant's own shards serve nobody else, and a tenant that has its own reaches no others, not
    even where its own are busy or dead.
    """

    def __init__(self, models: Iterable[ModelConfig]) -> None:
        every = tuple(models)
        self._owners = {model.name: model.tenant for model in every}
        self._own = {(model.tenant, model.instead_of): model.name for model in every}

    def shards_for(self, model: str, tenant: str) -> str:
        """The model whose shards serve it. Raises ModelNotFound for what is not this tenant's."""
        own = self._own.get((tenant, model), model)
        if own not in self._owners or self._owners[own] not in (None, tenant):
            raise ModelNotFound(f"no model {model!r}")
        return own


def check_stand_ins(models: Iterable[ModelConfig]) -> None:
    """Raises ValueError unless each model that is `instead_of` another has a tenant, is the only
    one of the two, and is to doors what the other is."""
    every = tuple(models)
    shared = {model.name: model for model in every if model.tenant is None}
    stand_ins = [model for model in every if model.instead_of is not None]
    for model in stand_ins:
        there = shared.get(model.instead_of or "")
        if model.tenant is None or there is None:
            raise ValueError(
                f"{model.name}: instead_of needs a tenant, and names a model without one,"
                f" of {sorted(shared)}; got {model.instead_of!r}"
            )
        if _seen_by_doors(model) != _seen_by_doors(there):
            raise ValueError(
                f"{model.name} and {there.name} must agree in source, max_model_len,"
                " cache.block_size and cache.num_blocks"
            )
    whose = [(model.tenant, model.instead_of) for model in stand_ins]
    if len(set(whose)) != len(whose):
        raise ValueError(f"a tenant has one stand-in for a model, got {whose}")


def _seen_by_doors(model: ModelConfig) -> tuple[Any, ...]:
    """What doors know of a model before it is said whose shards serve a request."""
    return model.source, model.max_model_len, model.cache.block_size, model.cache.tokens
