"""Layouts are put back even by the successor of who found them, in the same life of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.devices.layout_book import LayoutBook
from actors.devices.mig import MigManager
from cluster.errors import DeviceUnavailable
from cluster.placement import NewSlice, Recut
from tests.actors.devices.conftest import Install
from tests.actors.devices.fake_driver import FakeNvml
from tests.cluster.machines import recorded

NODE = recorded("mig-a100")
WHOLE, PARTLY = NODE.gpus[1], NODE.gpus[3]
CUTS = (
    Recut(NODE.name, PARTLY.uuid, (), (NewSlice("3g.20gb", 4),)),
    Recut(NODE.name, WHOLE.uuid, (WHOLE.slices[0].uuid,), (NewSlice("3g.20gb", 0),)),
)


@pytest.fixture
def nvml(install: Install) -> FakeNvml:
    return install(NODE)


def book(folder: Path, boot: str = "one") -> LayoutBook:
    boot_id = folder / boot
    boot_id.write_text(f"{boot}\n")
    return LayoutBook(folder / "layouts", boot_id)


def layouts(nvml: FakeNvml) -> list[list[tuple[str, int, int]]]:
    return [nvml.cuts(gpu.uuid) for gpu in nvml.gpus]


def test_a_successor_puts_back_what_was_found_before_the_first_cut(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    before = layouts(nvml)
    for cut in CUTS:
        MigManager(book(tmp_path)).recut(cut, own_pids=())
    assert layouts(nvml) != before
    assert MigManager(book(tmp_path)).restore(own_pids=()) == ()
    assert layouts(nvml) == before


def test_what_was_put_back_is_forgotten(nvml: FakeNvml, tmp_path: Path) -> None:
    manager = MigManager(book(tmp_path))
    manager.recut(CUTS[0], own_pids=())
    assert set(book(tmp_path).pages()) == {PARTLY.uuid}
    manager.restore(own_pids=())
    assert book(tmp_path).pages() == {}


def test_what_cannot_be_put_back_yet_is_not_forgotten(nvml: FakeNvml, tmp_path: Path) -> None:
    manager = MigManager(book(tmp_path))
    manager.recut(CUTS[0], own_pids=())
    nvml.gpu(PARTLY.uuid).processes.append(4711)
    assert manager.restore(own_pids=()) != ()
    assert set(book(tmp_path).pages()) == {PARTLY.uuid}


def test_layouts_of_an_earlier_life_of_the_machine_are_no_use(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    MigManager(book(tmp_path)).recut(CUTS[0], own_pids=())
    assert book(tmp_path, boot="two").pages() == {}


def test_a_page_that_is_torn_is_left_out(nvml: FakeNvml, tmp_path: Path) -> None:
    for cut in CUTS:
        MigManager(book(tmp_path)).recut(cut, own_pids=())
    torn = tmp_path / "layouts" / f"{PARTLY.uuid}.json"
    torn.write_text(torn.read_text()[:20])
    assert set(book(tmp_path).pages()) == {WHOLE.uuid}


def test_a_gpu_whose_layout_cannot_be_kept_is_not_cut(nvml: FakeNvml, tmp_path: Path) -> None:
    before = layouts(nvml)
    (tmp_path / "layouts").write_text("in the way of a folder")
    with pytest.raises(DeviceUnavailable, match="is left alone: its layout could not be put back"):
        MigManager(book(tmp_path)).recut(CUTS[0], own_pids=())
    assert layouts(nvml) == before


def test_a_page_that_cannot_be_removed_keeps_no_other_gpu_from_its_layout(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    before = layouts(nvml)
    manager = MigManager(book(tmp_path))
    for cut in CUTS:
        manager.recut(cut, own_pids=())
    page = tmp_path / "layouts" / f"{PARTLY.uuid}.json"
    page.unlink()
    page.mkdir()
    (problem,) = manager.restore(own_pids=())
    assert problem.startswith(f"{PARTLY.uuid} has its layout again")
    assert f"{page} cannot be removed" in problem
    assert layouts(nvml) == before
    page.rmdir()
    assert manager.restore(own_pids=()) == ()
