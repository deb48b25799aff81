"""A tenant that has shards of its own reaches those, nobody else does, and it reaches no others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.config import ModelConfig, parse_config
from cluster.errors import ConfigError, ModelNotFound
from cluster.events import Event, Reported, ShardGone, Submitted, Tell
from cluster.isolation import Isolation
from cluster.messages import Decision, Lease, ShardRef, Submission
from cluster.reports import ShardCapacity, ShardReport
from cluster.scheduling import SchedulerBrain
from cluster.scheduling_config import SchedulingConfig

SHARED = {"name": "llama", "source": "folder"}
OWN = {"name": "llama-acme", "source": "folder", "tenant": "acme", "instead_of": "llama"}
SLICES = {"resources": {"mig_profile": "1g.5gb"}}


def isolation(*models: dict[str, Any]) -> Isolation:
    return Isolation(parse_config({"models": list(models)}).models)


def test_the_requests_of_a_tenant_go_to_its_own_shards_and_those_of_others_do_not() -> None:
    shards = isolation(SHARED, OWN | SLICES)
    assert shards.shards_for("llama", "acme") == "llama-acme"
    assert shards.shards_for("llama", "other") == "llama"


def test_the_shards_of_a_tenant_are_not_there_for_others() -> None:
    shards = isolation(SHARED, OWN)
    assert shards.shards_for("llama-acme", "acme") == "llama-acme"
    with pytest.raises(ModelNotFound, match="no model 'llama-acme'"):
        shards.shards_for("llama-acme", "other")


def test_a_model_may_be_one_tenants_alone() -> None:
    shards = isolation(SHARED, {"name": "secret", "source": "folder", "tenant": "acme"})
    assert shards.shards_for("secret", "acme") == "secret"
    with pytest.raises(ModelNotFound):
        shards.shards_for("secret", "other")


def test_a_model_that_nobody_configured_is_not_there() -> None:
    with pytest.raises(ModelNotFound, match="no model 'gpt'"):
        isolation(SHARED, OWN).shards_for("gpt", "acme")


NAMES = ("a", "b", "c")
TENANTS = ("x", "y", "z")


@given(
    st.sets(st.tuples(st.sampled_from(TENANTS), st.sampled_from(NAMES))),
    st.sampled_from(TENANTS),
    st.sampled_from((*NAMES, *(f"{name}-{tenant}" for name in NAMES for tenant in TENANTS))),
)
def test_no_request_ever_reaches_another_tenants_shards_nor_leaves_its_own(
    bound: set[tuple[str, str]], tenant: str, asked: str
) -> None:
    own = [
        ModelConfig(name=f"{model}-{whose}", source="s", tenant=whose, instead_of=model)
        for whose, model in sorted(bound)
    ]
    shards = Isolation([*(ModelConfig(name=name, source="s") for name in NAMES), *own])
    owners = {model.name: model.tenant for model in own}
    try:
        reached = shards.shards_for(asked, tenant)
    except ModelNotFound:
        assert owners.get(asked, "nobody") != tenant
        assert asked not in NAMES
    else:
        assert owners.get(reached, tenant) == tenant
        assert (reached in owners) == ((tenant, asked) in bound or owners.get(asked) == tenant)


class Cluster:
    """A brain with one shard, of one place, for everybody, and one for acme."""

    def __init__(self) -> None:
        self._isolation = isolation(SHARED, OWN | SLICES)
        self.brain = SchedulerBrain(SchedulingConfig(gather_max_s=0.0), epoch=1)
        for model in ("llama", "llama-acme"):
            capacity = ShardCapacity(16, total_pages=64, max_num_seqs=1, max_model_len=512)
            self._happens(Reported(ShardReport(ref_of(model), 1, capacity, 64, full=True)))

    def ask(self, request_id: str, tenant: str) -> str | None:
        """The model of the shard that it is leased to, None where it waits."""
        model = self._isolation.shards_for("llama", tenant)
        wish = Submission(request_id, "router", model, tenant, "P1", 40, 10, 1, ())
        decisions = self._happens(Submitted(wish))
        assert all(isinstance(one, Lease) for one in decisions)
        return next((one.shard.model for one in decisions if isinstance(one, Lease)), None)

    def lose(self, model: str) -> list[Decision]:
        return self._happens(ShardGone(ref_of(model)))

    def _happens(self, event: Event) -> list[Decision]:
        told = self.brain.handle(event, 50.0)
        self.brain.verify()
        return [one.decision for one in told if isinstance(one, Tell)]


def ref_of(model: str) -> ShardRef:
    return ShardRef(f"{model}/shard-0", model, f"{model}/shard-0", "1")


def test_a_tenant_waits_for_its_own_shards_while_others_are_idle() -> None:
    cluster = Cluster()
    assert cluster.ask("a", "acme") == "llama-acme"
    assert cluster.ask("b", "acme") is None
    assert cluster.ask("c", "other") == "llama"


def test_others_wait_while_the_shards_of_a_tenant_are_idle() -> None:
    cluster = Cluster()
    assert [cluster.ask(name, "other") for name in ("a", "b")] == ["llama", None]
    assert cluster.ask("c", "acme") == "llama-acme"


def test_a_tenant_whose_shards_are_lost_is_served_by_no_others() -> None:
    cluster = Cluster()
    assert cluster.lose("llama-acme") == []
    assert cluster.ask("a", "acme") is None


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"tenant": None}, "instead_of needs a tenant"),
        ({"instead_of": "gpt"}, "names a model without one"),
        ({"instead_of": "llama-acme"}, "names a model without one"),
        ({"source": "another"}, "must agree in source, max_model_len, cache.block_size"),
        ({"cache": {"block_size": 32}}, "must agree in source, max_model_len, cache.block_size"),
    ],
)
def test_a_stand_in_that_doors_could_not_use_is_refused(
    wrong: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        isolation(SHARED, OWN | wrong)


def test_a_tenant_has_one_stand_in_for_a_model() -> None:
    with pytest.raises(ConfigError, match="a tenant has one stand-in for a model"):
        isolation(SHARED, OWN, OWN | {"name": "another"})


def test_a_slice_and_gpus_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="mig_profile and gpus exclude each other"):
        isolation(SHARED | {"resources": {"mig_profile": "1g.5gb", "gpus": 1}})


def test_a_profile_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="mig_profile"):
        isolation(SHARED | {"resources": {"mig_profile": "half"}})
