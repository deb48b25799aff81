"""`make serve` answers the curl line it prints, refuses early, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import httpx
import psutil
import pytest

from actors.page_files import OWNER, PREFIX
from scripts.ports import free_port
from scripts.run_folder import OWNER as OWNER_OF_RUN
from scripts.run_folder import sweep
from tests.actors.living import is_gone
from tests.system.tiny import save_tiny_model

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "applications: [{{name: x, import_path: deployments.app:build, args: {args}}}]"


def serve(*options: str, temporary: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.serve", *options],
        cwd=ROOT,
        env=os.environ | ({"TMPDIR": str(temporary)} if temporary else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outcome(*options: str) -> tuple[int, str]:
    with serve(*options) as launcher:
        output, _ = launcher.communicate(timeout=60)
        return launcher.returncode, output


def printed_until(beginning: str, launcher: subprocess.Popen[str]) -> list[str]:
    """The lines up to the first that begins so, or all."""
    assert launcher.stdout is not None
    lines: list[str] = []
    for line in launcher.stdout:
        lines.append(line)
        if line.startswith(beginning):
            break
    return lines


def beyond_loopback(process: psutil.Process) -> list[str]:
    """The ports of a process that are bound to more than loopback.

    But for Serve's own door between replicas, which has no setting and asks for Ray's token.
    """
    name = " ".join(process.cmdline())
    return [
        f"{held.laddr.ip}:{held.laddr.port} of {name}"
        for held in process.net_connections(kind="inet")
        if held.status == psutil.CONN_LISTEN
        and held.laddr.ip not in ("127.0.0.1", "::ffff:127.0.0.1", "::1")
        and not (held.laddr.ip == "::" and name.startswith("ray::ServeReplica:"))
    ]


def test_a_taken_port_is_refused_with_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        status, output = outcome("--port", str(port))
    assert status == 2
    assert f"port {port} cannot be used for the API (Address already in use)" in output
    assert "make serve PORT=" in output


def test_a_wrong_configuration_is_refused_before_anything_starts(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(args="{models: [{shard: 2}]}"))
    status, output = outcome("--config", str(config), "--port", str(free_port()))
    assert status == 2
    assert "args.models[0].shard: Extra inputs are not permitted (allowed: " in output


def test_a_model_that_cannot_be_had_is_said_so_before_ray_starts(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(args="{models: [{source: /no/such/folder}]}"))
    status, output = outcome("--config", str(config), "--port", str(free_port()))
    assert status == 1
    assert "serve: no model at '/no/such/folder'" in output
    assert "Ray" not in output


def test_a_config_can_be_checked_without_starting_anything(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("http_options: {hots: 1}\n" + CONFIG.format(args="{}"))
    status, output = outcome("--check", "--config", str(config))
    assert (status, "http_options.hots: unknown field" in output) == (2, True)
    status, output = outcome("--check")
    assert (status, output) == (0, "ray-config.yaml can be served\n")


@pytest.mark.slow
def test_a_burst_of_signals_leaves_neither_processes_nor_files(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    source, pages = save_tiny_model(tmp_path), tmp_path / "pages"
    (pages / f"{PREFIX}left").mkdir(parents=True)
    (pages / f"{PREFIX}left" / OWNER).touch()
    cache = f"{{host_gib: 0.1, folder: {{path: {pages}, gib: 0.1}}}}" if find_spec("lz4") else "{}"
    args = f"{{models: [{{name: tiny, source: {source}, cache: {cache}}}]}}"
    config.write_text(CONFIG.format(args=args))
    with serve("--config", str(config), "--port", "0") as launcher:
        assert launcher.stdout is not None
        printed_until("Deployments", launcher)
        started = psutil.Process(launcher.pid).children(recursive=True)
        files = Path(started[0].environ()["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"]).parents[1]
        assert files.exists()
        while launcher.poll() is None:
            launcher.send_signal(signal.SIGINT)
            time.sleep(0.01)
        output = launcher.stdout.read()
    assert "Traceback" not in output
    assert not files.exists()
    assert cache == "{}" or not list(pages.glob(f"{PREFIX}*/"))
    assert [process for process in started if not is_gone(process.pid)] == []


@pytest.mark.slow
def test_a_stream_that_the_end_cuts_is_told_so(tmp_path: Path) -> None:
    config, port = tmp_path / "config.yaml", str(free_port())
    source = save_tiny_model(tmp_path)
    batching = "batching: {prompt_lookup_tokens: 0}"  # nor is a long answer soon over by guesses
    gateway = "gateway: {ending_s: 0, auth: {mode: none}}"
    args = f"{{models: [{{name: tiny, source: {source}, {batching}}}], {gateway}}}"
    config.write_text(CONFIG.format(args=args))
    asked = {"model": "tiny", "prompt": "One fish", "n": 16, "min_tokens": 900, "max_tokens": 900}
    with serve("--config", str(config), "--port", port) as launcher:
        assert launcher.stdout is not None
        printed_until("Ctrl-C ends", launcher)
        url = f"http://127.0.0.1:{port}/v1/completions"
        with httpx.stream("POST", url, json=asked | {"stream": True}, timeout=60) as answer:
            lines = answer.iter_lines()
            said = [next(lines)]
            launcher.send_signal(signal.SIGINT)
            said += lines
        launcher.stdout.read()
    assert said[0].startswith('data: {"id"')
    *_, kind, error, end = said
    assert (kind, end) == ("event: error", "")
    assert '"code":"shutting_down"' in error


@pytest.mark.slow
def test_what_a_killed_server_leaves_goes_with_the_next_start(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    source = save_tiny_model(tmp_path)
    config.write_text(CONFIG.format(args=f"{{models: [{{name: tiny, source: {source}}}]}}"))
    with serve("--config", str(config), "--port", "0") as launcher:
        printed_until("Deployments", launcher)
        started = psutil.Process(launcher.pid).children(recursive=True)
        files = Path(started[0].environ()["TMPDIR"]).parent
        launcher.kill()
    sweep()
    assert (files / OWNER_OF_RUN).exists()  # Ray's processes are still to be ended
    psutil.wait_procs(started, timeout=120)
    assert [process for process in started if not is_gone(process.pid)] == []
    assert files.exists()
    sweep()
    assert not files.exists()


@pytest.mark.slow
def test_the_printed_lines_answer_and_a_signal_ends_everything(tmp_path: Path) -> None:
    port = str(free_port())
    with serve("--port", port, temporary=tmp_path) as launcher:
        assert launcher.stdout is not None
        printed = printed_until("Ctrl-C ends", launcher)
        (curl,) = [line for line in printed if line.startswith("  curl ")]
        (python,) = [line for line in printed if line.startswith("  Python ")]
        answer = subprocess.run(curl, shell=True, capture_output=True, text=True, check=True)
        handle = python.split(maxsplit=1)[1].replace(".venv/bin/python", sys.executable)
        handled = subprocess.run(handle, shell=True, capture_output=True, text=True, check=True)
        started = psutil.Process(launcher.pid).children(recursive=True)
        open_to_strangers = [port for process in started for port in beyond_loopback(process)]
        launcher.send_signal(signal.SIGINT)
        launcher.stdout.read()
        status = launcher.wait(120)
    assert "The capital of France is Paris." in answer.stdout
    assert handled.stdout.count("The capital of France is Paris.") == 2  # whole, and in pieces
    assert len(started) > 5
    assert open_to_strangers == []
    assert [process for process in started if not is_gone(process.pid)] == []
    assert status == 0
    assert list(tmp_path.iterdir()) == []
    socket.create_server(("127.0.0.1", int(port))).close()
