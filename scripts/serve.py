"""`make serve`: from nothing to an API that answers, and back to nothing at Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from actors.models import ensure_model
from cluster.errors import ConfigError, OperatorError
from scripts.display import Display
from scripts.launch import (
    Cluster,
    LaunchFailed,
    PortTaken,
    Secrets,
    make_secrets,
    require_free,
)
from scripts.processes import adopt_orphans
from scripts.serve_config import ServeConfig, read_serve_config
from scripts.signals import Asked, Signals

WATCH_S = 1.0
EXIT_FAILED = 1
EXIT_REFUSED = 2


def main() -> int:
    """0 when ended on request, 1 when it failed, 2 when refused before starting anything."""
    options = _options()
    adopt_orphans()
    signals = Signals()
    try:
        signals.install()
        config = read_serve_config(options.config, options.port)
        if options.check:
            print(f"{options.config} can be served")
            return 0
        require_free(config.port)
        return _serve(config, signals)
    except (ConfigError, PortTaken) as error:
        print(f"serve: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except (OperatorError, LaunchFailed) as error:
        print(f"\nserve: {error}", file=sys.stderr)
        return EXIT_FAILED
    except Asked as asked:
        return 128 + asked.signum


def _serve(config: ServeConfig, signals: Signals) -> int:
    secrets = make_secrets()
    display = Display()
    with display:
        display.stage("Model")
        for model in config.shoal.models:
            ensure_model(model.source, progress=display.tell)
    with _cluster(config, secrets, signals) as cluster:
        with display:
            asleep = _bring_up(cluster, display)
        print(_greeting(config, secrets, cluster, display.seconds, asleep), flush=True)
        _watch(cluster)
    return 0


def _bring_up(cluster: Cluster, display: Display) -> list[str]:
    """The models that sleep."""
    display.stage("Ray")
    cluster.deploy()
    display.stage("Deployments")
    cluster.await_deployed(display)
    display.stage("Shards")
    return cluster.await_ready(display)


def _watch(cluster: Cluster) -> None:
    """Until somebody asks to end, or the cluster ends by itself."""
    with contextlib.suppress(Asked):
        while True:
            cluster.require_alive()
            time.sleep(WATCH_S)


@contextlib.contextmanager
def _cluster(config: ServeConfig, secrets: Secrets, signals: Signals) -> Iterator[Cluster]:
    """A cluster that ends with the block; its logs are kept if the block failed."""
    cluster: Cluster | None = None
    failed = False
    try:
        try:
            with signals.held():
                cluster = Cluster(config, secrets)
            yield cluster
        finally:
            signals.only_hurry()
    except LaunchFailed:
        failed = True
        raise
    finally:
        if cluster is not None:
            _end(cluster, signals)
            if failed:
                cluster.keep_files()
            else:
                cluster.forget()


def _end(cluster: Cluster, signals: Signals) -> None:
    """In order, or at once when asked again or when order takes too long."""
    may_go_on = f"; answers under way have {cluster.answers_s:g} s" if cluster.serves else ""
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(f"Stopping{may_go_on} (once more to end at once)", flush=True)
    cluster.stop(lambda: signals.hurried)
    cluster.kill()


def _greeting(
    config: ServeConfig,
    secrets: Secrets,
    cluster: Cluster,
    seconds: dict[str, float],
    asleep: list[str],
) -> str:
    url = config.url
    question = {"role": "user", "content": "What is the capital of France?"}
    model = config.shoal.models[0].name
    body = json.dumps({"model": model, "temperature": 0, "messages": [question]})
    key = "" if config.shoal.gateway.auth.mode == "none" else _key_header(config, secrets)
    took = ", ".join(f"{stage.lower()} {took:.1f}" for stage, took in seconds.items())
    return f"""
Ready after {sum(seconds.values()):.1f} s ({took}).{_sleepers(asleep)}

  API        {url}/v1   docs: {url}/docs
  Dashboard  {cluster.dashboard}   it asks for the token that this prints: cat {secrets.ray_token}
  Python     {python_line(config, secrets, cluster.ray_address)}
  Logs       {cluster.temp_dir}/session_latest/logs

  curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' -d '{body}'

Ctrl-C ends all of it."""


def python_line(config: ServeConfig, secrets: Secrets, ray_address: str) -> str:
    """It names a model, since there may be several."""
    # Else Ray would look for 127.0.0.1 at the address that this machine has for others.
    loopback = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0"
    token = f"{loopback} RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={secrets.ray_token}"
    example = f"examples/handle.py {shlex.quote(config.shoal.models[0].name)}"
    return f"RAY_ADDRESS={ray_address} {token} .venv/bin/python {example}"


def _sleepers(asleep: list[str]) -> str:
    if not asleep:
        return ""
    return f"\n\n  Asleep     {', '.join(asleep)}: the first request waits for a shard to load"


def _key_header(config: ServeConfig, secrets: Secrets) -> str:
    """The key by reference, so that it stays out of logs and of the shell's history."""
    variable = config.shoal.gateway.auth.keys_env
    key = f"cat {secrets.api_key}"
    if variable in os.environ:
        key = f"echo ${variable} | sed 's/,.*//; s/.*://'"
    return f'-H "Authorization: Bearer $({key})" '


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="serve", description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("ray-config.yaml"))
    parser.add_argument("--port", type=int, help="of the API, in place of the config's; 0: any")
    parser.add_argument("--check", action="store_true", help="only say whether it can be served")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
