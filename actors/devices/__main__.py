"""`python -m actors.devices`: what this machine is, as a table, as JSON, or as Ray labels."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from actors.devices.discovery import discover
from actors.devices.table import labels, lines
from cluster.plain import to_json
from cluster.topology import Topology


def main(arguments: list[str]) -> int:
    """Print what was asked for; warnings are a part of it. Returns the exit status, 0."""
    parser = argparse.ArgumentParser(prog="python -m actors.devices", description=__doc__)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="a topology, as the tests record it")
    shape.add_argument("--labels", action="store_true", help="for `ray start --labels`")
    parser.add_argument("--sysfs", type=Path, default=Path("/sys"), help="default: /sys")
    options = parser.parse_args(arguments)
    node = discover(sysfs=options.sysfs)
    if options.json:
        text = to_json(Topology((node,)), indent=1)
    elif options.labels:
        text = ",".join(f"{key}={value}" for key, value in labels(node).items())
    else:
        text = "\n".join(lines(node))
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
