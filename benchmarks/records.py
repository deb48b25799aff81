"""Runs as they are kept: figures and usage of each, in one JSON file with what they were run on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.accounting import Usage
from benchmarks.metrics import Figures
from benchmarks.servers import ROOT


@dataclass(frozen=True)
class Record:
    """One run of one workload on one server. Runs of one number had the same prompts."""

    server: str
    workload: str
    run: int
    figures: Figures
    usage: Usage | None


def save(path: Path, records: Iterable[Record]) -> None:
    """Write all of them; called after each run, so that an interrupted sitting keeps its runs."""
    content = {"machine": machine(), "records": [asdict(record) for record in records]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def load(path: Path) -> list[Record]:
    """The records of a file that `save` wrote."""
    return [_record(**fields) for fields in json.loads(path.read_text())["records"]]


def machine() -> dict[str, str | int]:
    """What figures depend on besides the code."""
    return {
        "saved": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": version("torch"),
        "ray": version("ray"),
        "transformers": version("transformers"),
    }


def _record(figures: dict[str, Any], usage: dict[str, Any] | None, **rest: Any) -> Record:
    taken = None if usage is None else Usage(**usage)
    return Record(figures=Figures(**figures), usage=taken, **rest)


def _commit() -> str:
    """Of the checkout, marked where it differs from what was committed."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")
