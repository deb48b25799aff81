"""Plans that ask for slices are made real: planned, cut, planned again, and put back."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.devices.discovery import discover
from actors.devices.mig import MigManager
from cluster.placement import Wish, plan
from cluster.topology import Node, Topology
from tests.actors.devices.conftest import Install
from tests.cluster.machines import recorded

NODE = recorded("mig-a100")
PROFILES = [profile.name for profile in NODE.gpus[0].profiles]


def test_a_plan_is_made_real_by_its_recuts(install: Install) -> None:
    install(NODE)
    wishes = [Wish("small", 3, profile="1g.5gb"), Wish("big", 2, profile="7g.40gb")]
    topology = Topology((here(),))
    first = plan(wishes, topology, manage_mig=True)
    assert [missing.model for missing in first.missing] == ["big"]
    manager = MigManager()
    for recut in first.recuts:
        manager.recut(recut, own_pids=())
    second = plan(wishes, Topology((here(),)), first.placements, manage_mig=True)
    assert (second.missing, second.recuts) == ((), ())
    kept = [one.devices for one in second.placements if one.model == "small"]
    assert kept == [one.devices for one in first.placements if one.model == "small"]


@settings(
    max_examples=40,
    # The fixture only puts a new library in place, which each example does for itself.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.sampled_from(PROFILES), max_size=5),
    st.lists(st.sampled_from(PROFILES), max_size=5),
)
def test_whatever_was_cut_every_recut_serves_whom_it_names_and_all_is_put_back(
    install: Install, first: list[str], then: list[str]
) -> None:
    nvml = install(NODE)
    before = {gpu.uuid: nvml.cuts(gpu.uuid) for gpu in NODE.gpus}
    manager = MigManager()
    for wanted in (first, then):
        wishes = [Wish(f"m{i}", 1, profile=profile) for i, profile in enumerate(wanted)]
        asked = plan(wishes, Topology((here(),)), manage_mig=True)
        for recut in asked.recuts:
            manager.recut(recut, own_pids=())
        promised = sum(len(recut.create) for recut in asked.recuts)
        got = plan(wishes, Topology((here(),)), asked.placements)
        assert len(got.placements) == len(asked.placements) + promised
    assert manager.restore(own_pids=()) == ()
    assert {gpu.uuid: nvml.cuts(gpu.uuid) for gpu in NODE.gpus} == before


def here() -> Node:
    return discover("node")
