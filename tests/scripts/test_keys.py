"""A secret is made once and is for its owner's eyes."""

from __future__ import annotations

from pathlib import Path

from scripts.keys import ensure_secret


def test_a_secret_is_long_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    secret = ensure_secret(tmp_path / "deep" / "key", prefix="sk-")
    assert secret.startswith("sk-")
    assert len(secret) > 40
    assert (tmp_path / "deep" / "key").stat().st_mode & 0o777 == 0o600


def test_a_secret_is_made_once(tmp_path: Path) -> None:
    assert ensure_secret(tmp_path / "key") == ensure_secret(tmp_path / "key")


def test_two_secrets_differ(tmp_path: Path) -> None:
    assert ensure_secret(tmp_path / "a") != ensure_secret(tmp_path / "b")
