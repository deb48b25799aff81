"""Machines of a Ray cluster as network namespaces, each with a cable that can be pulled."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RAY_FOLDER = Path("/tmp/ray")
"""Where Ray keeps its sockets and logs. What lies there it takes for its own, so each machine sees
another folder there; and a short path, as those of sockets have to be."""


class Machine:
    """A network namespace, what runs in it, and how to end all of it at once."""

    def __init__(self, name: str, address: str, bridge: str, cable: str) -> None:
        self.name = name
        self.address = address
        self._cable = cable
        self._booted: subprocess.Popen[bytes] | None = None
        _ip("netns", "add", name)
        try:
            self._wire(bridge)
        except subprocess.CalledProcessError:
            self.remove()
            raise

    def boot(self, *command: str, env: Mapping[str, str], folder: Path) -> None:
        """Run `command`, whose daemons live on; Ray's folder is empty, as that of a new pod. What
        it says goes to `folder`/NAME.log; when it has ended, NAME.up has its exit status."""
        own = folder / self.name
        self.log, self.up = own.with_suffix(".log"), own.with_suffix(".up")
        self.up.unlink(missing_ok=True)
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        RAY_FOLDER.mkdir(exist_ok=True)
        run = f'mount --bind {own} {RAY_FOLDER}; "$@" >> {self.log} 2>&1; echo $? > {self.up}'
        self._booted = subprocess.Popen(
            ["ip", "netns", "exec", self.name, "bash", "-c", run, "boot", *command],
            env={**os.environ, **env},
            cwd=ROOT,
        )

    @contextmanager
    def unplugged(self) -> Iterator[None]:
        """Nothing reaches it, and nothing that it says reaches anyone."""
        _ip("link", "set", self._cable, "down")
        try:
            yield
        finally:
            _ip("link", "set", self._cable, "up")

    def power_off(self) -> None:
        """SIGKILL everything that runs here."""
        while pids := _ip("netns", "pids", self.name).split():
            for pid in map(int, pids):
                _kill(pid)
        if self._booted is not None:
            self._booted.wait()

    def remove(self) -> None:
        try:
            self.power_off()
        finally:
            _ip("netns", "del", self.name)

    def _wire(self, bridge: str) -> None:
        name, cable = self.name, self._cable
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", cable, "master", bridge, "up")
        _ip("-n", name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", name, "link", "set", device, "up")


class Network:
    """Machines that reach each other and this one, whose address among them is `here`."""

    def __init__(self, machines: int) -> None:
        """Raises CalledProcessError where this process may not make namespaces."""
        tag = os.getpid() % 100_000
        subnet = f"10.77.{tag % 255}"  # not that of a network beside it
        bridge = f"shoal{tag}"
        self.here = f"{subnet}.254"
        self.machines: list[Machine] = []
        self._removal = ExitStack()
        _ip("link", "add", bridge, "type", "bridge")
        self._removal.callback(_ip, "link", "del", bridge)
        try:
            _ip("addr", "add", f"{self.here}/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            for index in range(machines):
                name, cable = f"shoal-{tag}-{index}", f"sh{tag}-{index}"
                address = f"{subnet}.{index + 1}"
                machine = Machine(name, address, bridge, cable)
                self._removal.callback(machine.remove)
                self.machines.append(machine)
        except subprocess.CalledProcessError:
            self.remove()
            raise

    def remove(self) -> None:
        """End all that runs on the machines, and the machines; raises what failed once the rest is
        done."""
        self._removal.close()


def is_possible() -> bool:
    """Whether this process may make namespaces."""
    try:
        Network(machines=1).remove()
    except (subprocess.CalledProcessError, FileNotFoundError):
        return False
    return True


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
