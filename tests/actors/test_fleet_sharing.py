"""How cores and GPUs are shared among shards."""

from __future__ import annotations

import pytest

from actors.sharing import Machines, Share, fair_share, machines
from cluster.config import ResourcesConfig

DEFAULT = ResourcesConfig()


@pytest.mark.parametrize(
    ("shards", "cores", "share"),
    [
        (1, (8.0,), Share(1.0, 0.0, 8)),
        (2, (8.0,), Share(1.0, 0.0, 4)),
        (3, (8.0,), Share(1.0, 0.0, 2)),
        (16, (8.0,), Share(0.5, 0.0, 1)),
        (2, (8.0, 4.0), Share(1.0, 0.0, 4)),
        (3, (8.0, 8.0), Share(1.0, 0.0, 4)),
        (1, (), Share(1.0, 0.0, 1)),
    ],
)
def test_cores_are_shared_evenly_by_default(
    shards: int, cores: tuple[float, ...], share: Share
) -> None:
    assert fair_share(DEFAULT, shards, Machines(cores, gpus=0.0)) == share


def test_a_shard_gets_a_gpu_where_the_cluster_has_some() -> None:
    assert fair_share(DEFAULT, 4, Machines((16.0,), gpus=4.0)) == Share(1.0, 1.0, 4)


def test_each_rank_of_a_shard_gets_a_gpu_and_its_part_of_the_threads() -> None:
    cluster = Machines((16.0,), gpus=8.0)
    assert fair_share(DEFAULT, 2, cluster, ranks=4) == Share(1.0, 4.0, 2)


def test_what_the_configuration_asks_for_is_taken_as_it_is() -> None:
    asked = ResourcesConfig(cpus=3, gpus=0, threads=2)
    assert fair_share(asked, 1, Machines((8.0,), gpus=4.0)) == Share(3.0, 0.0, 2)


def test_threads_follow_the_cpus_asked_for() -> None:
    assert fair_share(ResourcesConfig(cpus=3), 1, Machines((8.0,), 0.0)).threads == 3


def test_nodes_that_are_down_or_without_cores_do_not_count() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}},
        {"Alive": True, "Resources": {}},
        {"Alive": False, "Resources": {"CPU": 64.0}},
    ]
    assert machines(nodes) == Machines((4.0,), 1.0)
