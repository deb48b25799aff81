"""Folders of pages that killed shards have left are removed, and no others."""

from __future__ import annotations

from pathlib import Path

from actors.page_files import OWNER, PREFIX, OwnFolder
from cluster.config import CacheConfig, ModelConfig
from cluster.folder_config import FolderConfig
from scripts.leftovers import sweep_pages


def kept_in(path: Path) -> ModelConfig:
    return ModelConfig(cache=CacheConfig(folder=FolderConfig(path=str(path), gib=1.0)))


def test_what_the_dead_have_left_goes_and_what_the_living_have_stays(tmp_path: Path) -> None:
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()
    (left / OWNER).touch()
    (left / "0").write_bytes(b"a page")
    living = OwnFolder(tmp_path)
    sweep_pages([ModelConfig(), kept_in(tmp_path)])
    assert list(tmp_path.glob(f"{PREFIX}*/")) == [living.path]


def test_a_folder_that_no_shard_has_made_is_not_made_either(tmp_path: Path) -> None:
    sweep_pages([kept_in(tmp_path / "pages")])
    assert not (tmp_path / "pages").exists()
