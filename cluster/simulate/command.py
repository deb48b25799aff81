"""What `python -m cluster.simulate` takes, does and prints."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from cluster.autoscaling_config import AutoscalingConfig
from cluster.scheduling_config import SchedulingConfig
from cluster.simulate.capacity import Capacity, study_capacity
from cluster.simulate.costs import DEVICES, read_device
from cluster.simulate.experiment import POLICIES, Experiment
from cluster.simulate.figures import Figures
from cluster.simulate.scaling import ScaledRun, scaled_run
from cluster.simulate.table import capacity_table, policy_table, scaling_table
from cluster.simulate.traces import read_trace
from cluster.simulate.workload import Shape


def main(arguments: Sequence[str], stopwatch: Callable[[], float]) -> str:
    """Run what was asked for and give the text to print; `--json` writes the figures too."""
    options = _parser().parse_args(arguments)
    experiment = _experiment(options, stopwatch)
    if options.autoscale:
        return _autoscaled(experiment, options)
    policies = list(POLICIES) if options.policy == "all" else [options.policy]
    if options.find_capacity:
        return _capacities(experiment, policies, options)
    loads = [experiment.at_speed(speed) for speed in options.speed]
    figures = [load.run(policy) for load in loads for policy in policies]
    _write(options, figures=figures)
    return policy_table(figures)


def _capacities(
    experiment: Experiment, policies: Sequence[str], options: argparse.Namespace
) -> str:
    """Each policy at the highest load it bears, and all where the reference has broken down."""
    study = study_capacity(experiment, policies)
    _write(options, figures=study.broken, capacities=study.capacities)
    return f"{capacity_table(study)}\n{policy_table(study.broken)}"


def _autoscaled(experiment: Experiment, options: argparse.Namespace) -> str:
    """Our policy, with as many shards at each moment as the autoscaler wants."""
    fewest, most = options.autoscale
    config = AutoscalingConfig(min_shards=fewest, max_shards=most)
    scaled = scaled_run(experiment, config, options.startup_s)
    _write(options, scaled=[scaled])
    return scaling_table(scaled)


def _write(options: argparse.Namespace, **parts: Sequence[Figures | Capacity | ScaledRun]) -> None:
    """The command and its figures as JSON; where nothing was served, a quantile is Infinity."""
    if options.json:
        plain = int, float, str, list
        command = {n: v if isinstance(v, plain) else str(v) for n, v in vars(options).items()}
        found = {name: [asdict(one) for one in part] for name, part in parts.items()}
        options.json.write_text(json.dumps({"command": command, **found}, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cluster.simulate", description=__doc__)
    add = parser.add_argument
    add("--trace", type=Path, required=True, help="Mooncake .jsonl or Azure .csv")
    add("--shards", type=int, default=16, help="shards of the cluster (default 16)")
    add("--seed", type=int, default=0, help="of classes, tenants and arrivals (default 0)")
    add("--policy", choices=[*POLICIES, "all"], default="all")
    add("--speed", type=float, nargs="+", default=[1.0], help="times the trace's (default 1)")
    add("--copies", type=int, default=1, help="independent copies of the trace (default 1)")
    add("--rows", type=int, help="only the first so many rows of the trace")
    add("--page-tokens", type=int, default=128, help="lengths are scaled by this / 512")
    add("--device", default="h100", help=f"one of {', '.join(DEVICES)}, or a JSON file")
    add("--scheduling", type=Path, help="JSON file: fields of SchedulingConfig to change")
    add("--find-capacity", action="store_true", help="search the highest load that meets targets")
    add("--autoscale", type=int, nargs=2, metavar=("MIN", "MAX"), help="bounds of the shards")
    add("--startup-s", type=float, default=60.0, help="until a new shard serves (default 60)")
    add("--tide", type=float, nargs="+", default=[1.0], help="share of the load, part by part")
    add("--json", type=Path, help="write the figures there")
    return parser


def _experiment(options: argparse.Namespace, stopwatch: Callable[[], float]) -> Experiment:
    shape = Shape(
        seed=options.seed,
        speed=options.speed[0],
        copies=options.copies,
        page_tokens=options.page_tokens,
        tide=options.tide,
    )
    text = options.scheduling.read_text(encoding="utf-8") if options.scheduling else "{}"
    return Experiment(
        rows=read_trace(options.trace)[: options.rows],
        shards=options.shards,
        device=read_device(options.device),
        shape=shape,
        stopwatch=stopwatch,
        scheduling=SchedulingConfig.model_validate_json(text),
    )
