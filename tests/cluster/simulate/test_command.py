"""The command: what it prints and writes, the search for a load, and devices from files."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest

from cluster.errors import ConfigError
from cluster.simulate.capacity import TOLERANCE, highest_speed
from cluster.simulate.command import main
from cluster.simulate.costs import DEVICES, read_device

TRACE = str(Path(__file__).parents[3] / "benchmarks" / "data" / "mooncake_conversation.jsonl")


def simulate(*options: str) -> str:
    """With a stopwatch on which each reading is a millisecond after the last."""
    readings = count()
    arguments = ["--trace", TRACE, "--rows", "60", "--shards", "2", *options]
    return main(arguments, lambda: next(readings) / 1000)


def test_a_table_has_a_row_for_each_policy_and_class(tmp_path: Path) -> None:
    table = simulate("--json", str(tmp_path / "figures.json"))
    figures = json.loads((tmp_path / "figures.json").read_text())

    assert len(table.splitlines()) == 2 + 5 * 4
    assert [one["policy"] for one in figures["figures"]] == [
        "ours",
        "least_loaded",
        "least_requests",
        "prefix_only",
        "round_robin",
    ]
    assert figures["command"]["seed"] == 0


def test_several_speeds_are_a_sweep() -> None:
    table = simulate("--policy", "round_robin", "--speed", "1", "2", "4")

    assert table.count("round_robin") == 3


def test_a_capacity_is_told_beside_that_of_the_reference(tmp_path: Path) -> None:
    table = simulate(
        "--policy", "round_robin", "--find-capacity", "--json", str(tmp_path / "found.json")
    )
    found = json.loads((tmp_path / "found.json").read_text())

    assert "times least_loaded" in table
    policies = [one["figures"]["policy"] for one in found["capacities"]]
    assert policies == ["least_loaded", "round_robin"]
    assert all(one["figures"]["every"]["met"] >= 0.95 * 60 for one in found["capacities"])


def test_knobs_of_the_scheduler_can_be_changed(tmp_path: Path) -> None:
    (tmp_path / "knobs.json").write_text('{"max_queued": 0}')
    flood = ("--policy", "ours", "--speed", "100000")

    assert simulate(*flood) != simulate(*flood, "--scheduling", str(tmp_path / "knobs.json"))


@pytest.mark.parametrize("guess", [0.01, 1.0, 100.0])
def test_the_highest_speed_is_found_from_either_side(guess: float) -> None:
    found = highest_speed(lambda speed: 1.0 - speed / 10.0, 0.3, guess)

    assert 7.0 / TOLERANCE <= found <= 7.0


def test_a_share_out_of_reach_is_borne_at_no_speed() -> None:
    assert highest_speed(lambda speed: 0.5, 0.95, 1.0) == 0.0


def test_a_device_comes_by_name_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    fields = {"kv_tokens": 1000, "max_num_seqs": 4, "max_batch_tokens": 64}
    cost = dict.fromkeys(("fixed_ms", "prefill_ms", "decode_ms", "context_ms", "pair_ms"), 1.0)
    file.write_text(json.dumps({"cost": cost, **fields}))

    assert read_device("h100") is DEVICES["h100"]
    assert read_device(str(file)).cost.step_s(1, 1.0, 1, 1) == pytest.approx(0.005)


def test_a_file_that_does_not_describe_a_device_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    file.write_text('{"cost": {"fixed_ms": 1.0}}')

    with pytest.raises(ConfigError, match="does not describe a device"):
        read_device(str(file))
