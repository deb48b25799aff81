"""Missing slices are asked for as recuts, and nothing in use is ever cut."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cluster.placement import NewSlice, Placement, Wish, place, plan
from cluster.placement.carving import carve
from cluster.topology import Gpu, Topology
from tests.cluster.machines import cluster_of, recorded

PARTLY_CUT = recorded("mig-a100").gpus[3]
"""Two slices 1g.5gb, and room for more."""
PROFILES = [profile.name for profile in PARTLY_CUT.profiles]


def uuids(gpu: Gpu) -> list[str]:
    return [cut.uuid for cut in gpu.slices]


def test_a_new_slice_takes_free_room_first() -> None:
    assert carve(PARTLY_CUT, ["3g.20gb"], frozenset()) == ((), (NewSlice("3g.20gb", 4),))


def test_idle_slices_make_room_where_there_is_no_other() -> None:
    destroyed, created = carve(PARTLY_CUT, ["7g.40gb"], frozenset()) or ((), ())
    assert set(destroyed) == set(uuids(PARTLY_CUT))
    assert created == (NewSlice("7g.40gb", 0),)


def test_a_slice_in_use_is_never_given_up() -> None:
    assert carve(PARTLY_CUT, ["7g.40gb"], frozenset(uuids(PARTLY_CUT)[:1])) is None


def test_a_profile_that_the_gpu_does_not_know_is_not_cut() -> None:
    assert carve(PARTLY_CUT, ["1g.10gb+me"], frozenset()) is None


def test_a_gpu_whose_layout_is_unknown_is_left_alone() -> None:
    unknown = replace(PARTLY_CUT, slices=(replace(PARTLY_CUT.slices[0], start=-1),))
    assert carve(unknown, ["1g.5gb"], frozenset()) is None


@given(
    st.sampled_from(recorded("mig-a100").gpus),
    st.lists(st.sampled_from(PROFILES), min_size=1, max_size=4),
    st.data(),
)
def test_the_new_layout_overlaps_nowhere_and_keeps_what_is_in_use(
    gpu: Gpu, wanted: list[str], data: st.DataObject
) -> None:
    in_use = frozenset(data.draw(st.lists(st.sampled_from(uuids(gpu)), unique=True)))
    cuts = carve(gpu, wanted, in_use)
    if cuts is None:
        return
    destroyed, created = cuts
    sizes = {profile.name: profile.size for profile in gpu.profiles}
    kept = [(cut.start, cut.size) for cut in gpu.slices if cut.uuid not in destroyed]
    spans = kept + [(new.start, sizes[new.profile]) for new in created]
    taken = [place for start, size in spans for place in range(start, start + size)]
    assert not in_use & set(destroyed)
    assert sorted(new.profile for new in created) == sorted(wanted)
    assert len(taken) == len(set(taken))
    assert max(taken) < 8


def test_without_leave_to_manage_mig_nothing_is_cut() -> None:
    planned = plan([Wish("m", 9, profile="1g.5gb")], cluster_of("mig-a100"))
    assert planned.recuts == ()


def test_missing_slices_are_asked_for_and_then_found() -> None:
    topology = cluster_of("mig-a100")
    wishes = [Wish("m", 5, profile="1g.5gb")]
    planned = plan(wishes, topology, manage_mig=True)
    assert len(planned.placements) == 3
    recut = planned.recuts[0]
    assert sum(len(one.create) for one in planned.recuts) == 2
    assert f"once {recut.gpu} is cut" in planned.lines[-1]


def test_a_recut_spares_the_slices_of_living_shards() -> None:
    topology = cluster_of("mig-a100")
    busy = plan([Wish("m", 3, profile="1g.5gb")], topology).placements
    planned = plan(
        [Wish("m", 3, profile="1g.5gb"), Wish("big", 2, profile="7g.40gb")],
        topology,
        busy,
        manage_mig=True,
    )
    destroyed = {uuid for recut in planned.recuts for uuid in recut.destroy}
    assert destroyed
    assert not destroyed & {device for one in busy for device in one.devices}
    assert placed(planned.placements, "m") == placed(busy, "m")


def test_free_room_is_cut_before_an_idle_slice_is_given_up() -> None:
    topology = cluster_of("mig-a100")
    busy = plan([Wish("m", 2, profile="3g.20gb")], topology).placements
    (recut,) = plan([Wish("m", 3, profile="3g.20gb")], topology, busy, manage_mig=True).recuts
    assert recut.gpu == topology.nodes[0].gpus[3].uuid
    assert (recut.destroy, recut.create) == ((), (NewSlice("3g.20gb", 4),))


def test_one_shard_more_is_told_what_to_cut_for_it() -> None:
    topology = cluster_of("mig-a100")
    wish = Wish("m", 2, profile="7g.40gb")
    first = place(wish, 0, topology).placements
    assert place(wish, 1, topology, first).recuts == ()
    (recut,) = place(wish, 1, topology, first, manage_mig=True).recuts
    assert recut.create == (NewSlice("7g.40gb", 0),)
    assert not {device for one in first for device in one.devices} & set(recut.destroy)


@given(st.lists(st.tuples(st.sampled_from(PROFILES), st.integers(1, 4)), max_size=4), st.booleans())
def test_a_gpu_is_cut_once_in_a_plan_and_for_those_only_who_have_no_place(
    wanted: list[tuple[str, int]], sick: bool
) -> None:
    topology = cluster_of("mig-a100", "mig-a100")
    if sick:
        node, other = topology.nodes
        gpus = (replace(node.gpus[0], defect="a bad row"), *node.gpus[1:])
        topology = Topology((replace(node, gpus=gpus), other))
    wishes = [Wish(f"m{i}", n, profile=name) for i, (name, n) in enumerate(wanted)]
    planned = plan(wishes, topology, manage_mig=True)
    cut = [recut.gpu for recut in planned.recuts]
    used = {device for one in planned.placements for device in one.devices}
    assert len(set(cut)) == len(cut)
    assert sum(len(recut.create) for recut in planned.recuts) <= len(planned.missing)
    assert not used & {uuid for recut in planned.recuts for uuid in recut.destroy}
    assert all(gpu.usable for node in topology.nodes for gpu in node.gpus if gpu.uuid in cut)


def test_a_gang_over_slices_is_not_helped_by_cutting() -> None:
    topology = cluster_of("mig-a100")
    wish = Wish("m", 1, profile="7g.40gb", tensor_parallel=2)
    assert plan([wish], topology, manage_mig=True).recuts == ()


def test_a_slice_too_small_for_the_shard_is_not_made() -> None:
    topology = Topology(cluster_of("mig-a100").nodes)
    wish = Wish("m", 1, memory_bytes=30 * 2**30, profile="1g.5gb")
    assert plan([wish], topology, manage_mig=True).recuts == ()


def placed(placements: tuple[Placement, ...], model: str) -> list[tuple[str, ...]]:
    return [one.devices for one in placements if one.model == model]
