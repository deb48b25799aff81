"""A Ray cluster of one machine with one Serve config deployed, for as long as stdin stays open.

The launcher starts this in a session of its own: a Ctrl-C on the terminal does not reach Ray, and
should the launcher be killed outright, stdin ends and everything here is taken down all the same.
Says one line of JSON on stdout: `{"dashboard": "host:port", "ray": "host:port"}`. Told
`{"within_s": seconds}` before stdin ends, answers that are begun have so long to end by themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

import ray
from ray import serve
from ray.dashboard.modules.serve.sdk import ServeSubmissionClient
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from scripts.processes import adopt_orphans, end_descendants

GATEWAY = "Gateway"
ANSWER_S = 5.0
"""So long beyond what was asked a gateway may take to do it."""


def main() -> int:
    """0 after a clean end."""
    order = json.loads(sys.stdin.readline())
    adopt_orphans()
    try:
        _run(order["config"], order["app"], order["temp_dir"])
    finally:
        end_descendants()
    return 0


def _run(config: dict[str, Any], app: str, temp_dir: str) -> None:
    context = ray.init(
        address="local",
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        log_to_driver=False,
        _temp_dir=temp_dir,
    )
    # Ray set a handler of its own; asked to end, end in order.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(0))
    try:
        ServeSubmissionClient(f"http://{context.dashboard_url}").deploy_applications(config)
        _say({"dashboard": context.dashboard_url, "ray": context.address_info["gcs_address"]})
        if last := sys.stdin.readline():  # nothing, where the launcher was killed
            _let_answers_end(app, json.loads(last)["within_s"])
    finally:
        serve.shutdown()
        ray.shutdown()


def _let_answers_end(app: str, within_s: float) -> None:
    """Or not, where the gateways do not answer: then the end comes all the same."""
    with contextlib.suppress(RayError, RayServeException, TimeoutError):
        gateways = serve.get_deployment_handle(GATEWAY, app)
        gateways.broadcast("leave", within_s).results(timeout_s=within_s + ANSWER_S)


def _say(line: dict[str, Any]) -> None:
    """To the launcher, which may be gone already."""
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # not through Ray's exit handlers: what they would end is gone
