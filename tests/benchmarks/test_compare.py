"""A sitting refuses what it cannot measure, and measures what it is given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.compare import measure
from benchmarks.metrics import Timeline
from benchmarks.peers import PEERS, PeerAbsent, Setting, endpoint_of
from benchmarks.servers import ROOT
from benchmarks.workloads import Prompt, Workload
from scripts.serve_config import read_serve_config

CONFIG = ROOT / "ray-config.yaml"
TWO_PROMPTS = Workload("toy", 3, 1, (Prompt((1,), " a", 2), Prompt((2,), " b", 2)))


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(CONFIG, read_serve_config(CONFIG), tmp_path / "model", tmp_path / "peers")


class Instant:
    """Does a workload at once, in this process."""

    engine_title = "no process has this title"

    def __init__(self, pid: int | None) -> None:
        self.pid = pid

    async def drive(self, workload: Workload) -> tuple[list[Timeline], float]:
        return [Timeline(0.0, (1.0, 2.0), 2, prompt.output) for prompt in workload.prompts], 4.0


@pytest.mark.parametrize("peer", ["vllm", "openvino"])
def test_a_peer_that_is_not_installed_says_where_it_was_looked_for(
    peer: str, setting: Setting
) -> None:
    with pytest.raises(PeerAbsent, match=f"{setting.peers}/{peer}.*README"):
        PEERS[peer](setting)


def test_a_run_has_the_figures_of_its_timelines_and_the_usage_of_its_processes() -> None:
    record = measure("shoal", Instant(os.getpid()), TWO_PROMPTS)
    assert (record.server, record.workload, record.run) == ("shoal", "toy", 3)
    assert record.figures.output_tok_s == 1.0
    assert record.usage is not None
    assert record.usage.engine_cpu_s == 0


def test_a_server_whose_processes_are_unknown_has_no_usage() -> None:
    assert measure("shoal", Instant(None), TWO_PROMPTS).usage is None


def test_shoal_is_asked_with_the_first_key_of_the_environment(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_API_KEYS", "tenant:secret,other")
    assert endpoint_of(setting, 1234).key == "secret"
    assert endpoint_of(setting, 1234).url == "http://127.0.0.1:1234"
