"""What chaos can strike: the application, the disk that Ray writes to, machines of the shards."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from tests.actors.living import until
from tests.system.application import KEY, Application, arguments, deployed, ready, session
from tests.system.network import RAY_FOLDER, Machine, Network

DISK_MIB = 64
"""A tmpfs, which takes that much memory at most."""

JOINED_S = 120.0
PROCESSES = frozenset({"shard", "scheduler", "Router", "Fleet"})


@dataclass(frozen=True)
class Site:
    """`disk` is None where this process may not mount one."""

    application: Application
    shards: int
    disk: Path | None = None
    machines: tuple[Machine, ...] = ()

    @property
    def parts(self) -> frozenset[str]:
        """What there is to strike."""
        disk = {"disk"} if self.disk is not None else set()
        machine = {"machine"} if self.machines else set()
        return PROCESSES | disk | machine


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Whether `folder` is a disk of its own meanwhile, of `DISK_MIB`."""
    size = f"size={DISK_MIB}m"
    mount = ["mount", "-t", "tmpfs", "-o", size, "shoal-chaos", str(folder)]
    done = subprocess.run(mount, check=False, capture_output=True)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def prepared(model: Path, shards: int, machines: int, **parts: Any) -> Iterator[Site]:
    """The application, up and answering: its shards on so many machines, or on this one where that
    is 0, and every file that Ray writes on a disk of its own.

    Raises CalledProcessError where machines are asked for, and this process may not make them.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-")))
        disk = folder if stack.enter_context(small_disk(folder)) else None
        network = stack.enter_context(_network(machines)) if machines else None
        wanted = arguments(model, shards, **parts)
        options: dict[str, Any] = {"_temp_dir": str(folder / "ray")}
        if network is not None:
            wanted["models"][0]["resources"] = {"cpus": 1, "threads": 1}
            options |= {"num_cpus": 0, "_node_ip_address": network.here}
        stack.enter_context(session(**options))
        application = stack.enter_context(deployed(wanted))
        there = tuple(network.machines) if network is not None else ()
        for machine in there:  # only now, so that all doors are on the head
            _join(machine, folder, cpus=shards)
        asyncio.run(_ready(application, shards, there))
        yield Site(application, shards, disk, there)


@contextmanager
def _network(machines: int) -> Iterator[Network]:
    network = Network(machines)
    try:
        yield network
    finally:
        network.remove()


def _join(machine: Machine, folder: Path, cpus: int) -> None:
    """With room for every shard, should the other machines be out of reach."""
    head = ray.get_runtime_context().gcs_address
    own = (f"--node-ip-address={machine.address}", f"--temp-dir={RAY_FOLDER}")
    command = ("cluster/launch/start-worker.sh", head, *own, f"--num-cpus={cpus}", "--block")
    token = subprocess.run(["ray", "get-auth-token"], check=True, capture_output=True, text=True)
    secrets = {"SHOAL_API_KEYS": KEY, "RAY_AUTH_TOKEN": token.stdout}
    machine.boot(*command, env=secrets, folder=folder)


async def _ready(application: Application, shards: int, machines: Sequence[Machine]) -> None:
    async def joined() -> bool:
        for machine in machines:
            if machine.up.exists():
                raise RuntimeError(machine.log.read_text())
        alive = [node for node in ray.nodes() if node["Alive"]]
        return len(alive) == 1 + len(machines)

    await until(joined, within_s=JOINED_S)
    await ready(application, shards)
