"""A node is shown to people as a table, to programs as JSON, and to Ray as labels."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from actors.devices.__main__ import main
from actors.devices.table import labels, lines, ranges
from cluster.plain import from_json
from cluster.topology import Topology
from tests.actors.devices.conftest import Install, write_sysfs
from tests.cluster.machines import RECORDED, recorded


def test_the_table_shows_what_connects_the_gpus() -> None:
    rows = list(lines(recorded("pcie-4gpu")))
    assert rows[-2].split() == ["GPU2", "node", "node", "-", "switch"]
    rows = list(lines(recorded("dgx-h100")))
    assert rows[-1].split() == ["GPU7", *["NV18"] * 7, "-"]


def test_the_table_shows_slices_below_their_gpu() -> None:
    node = recorded("mig-a100")
    rows = list(lines(node))
    at = next(i for i, row in enumerate(rows) if node.gpus[0].uuid in row)
    assert [row.split()[0] for row in rows[at + 1 : at + 4]] == ["4g.20gb", "2g.10gb", "1g.5gb"]
    assert " MIG," in rows[at]


def test_the_table_shows_what_is_unknown_lost_or_warned_of() -> None:
    node = recorded("pcie-4gpu")
    gpu = replace(node.gpus[0], lost=True, pci="", numa_node=None, compute_capability=None)
    text = "\n".join(lines(replace(node, gpus=(gpu,), links=(), warnings=("GPU 0: broken",))))
    assert "sm ?, LOST, PCI ?, NUMA ?" in text
    assert "warning: GPU 0: broken" in text
    sick = replace(node.gpus[0], defect="a bad row")
    assert " A BAD ROW," in "\n".join(lines(replace(node, gpus=(sick,), links=())))


def test_the_table_of_a_node_without_gpu_says_so() -> None:
    assert "no NVIDIA driver: CPU only" in next(lines(recorded("cpu-only")))


def test_numbers_are_shown_as_ranges() -> None:
    assert ranges((3, 0, 1, 2, 8)) == "0-3,8"
    assert ranges(()) == ""


@pytest.mark.parametrize("name", RECORDED)
def test_labels_are_such_as_ray_accepts(name: str) -> None:
    for key, value in labels(recorded(name)).items():
        assert re.fullmatch(r"[a-z.]+/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", key)
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", value)


def test_labels_tell_make_memory_island_and_cuts() -> None:
    assert labels(recorded("dgx-a100")) == {
        "shoal.io/gpu": "NVIDIA-A100-SXM4-40GB",
        "shoal.io/gpu-memory-gib": "40",
        "shoal.io/nvlink-island": "8",
    }
    assert "shoal.io/mig-1g.5gb" in labels(recorded("mig-a100"))
    assert labels(recorded("cpu-only")) == {}


def test_the_command_prints_a_topology_that_can_be_read_back(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = recorded("mig-a100")
    install(node)
    assert main(["--json", "--sysfs", str(write_sysfs(tmp_path, node))]) == 0
    (read,) = from_json(Topology, capsys.readouterr().out).nodes
    assert read.gpus == node.gpus


def test_the_command_prints_labels_for_ray_start(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(recorded("dgx-h100"))
    main(["--labels"])
    assert capsys.readouterr().out.startswith("shoal.io/gpu=NVIDIA-H100-80GB-HBM3,")


def test_the_command_prints_a_table(
    no_driver: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--sysfs", str(write_sysfs(tmp_path, recorded("cpu-only")))])
    assert "CPU only" in capsys.readouterr().out
