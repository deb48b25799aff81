"""How each server is started: Shoal, and the peers it is compared with.

A peer lives in a virtual environment of its own, `<peers>/<name>`; `benchmarks/README.md` says how
to make one. All of them get the same weights and the same two choices: every core, and room for
128 sequences.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from actors.models import default_cache, ensure_model
from benchmarks.client import Endpoint
from benchmarks.gguf_files import gguf_of
from benchmarks.programs import await_programs
from benchmarks.servers import ROOT, HttpServer, Launch, Subject, piped, serving
from scripts.keys import ensure_secret
from scripts.ports import free_port
from scripts.serve_config import ServeConfig, read_serve_config

SEATS = 128
CONTEXT = 4096
POOL_GIB = 2
POOL_TOKENS = 65_536
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}
README = "benchmarks/README.md says how to install it"


class PeerAbsent(Exception):
    """What a peer needs is not here; the message says what, and where it was looked for."""


@dataclass(frozen=True)
class Setting:
    """What all servers share: Shoal's config, the folder of its model, the folder of the peers."""

    config_path: Path
    config: ServeConfig
    model: Path
    peers: Path

    @property
    def source(self) -> str:
        return self.config.shoal.models[0].source


def read_setting(config: Path, peers: Path | None) -> Setting:
    """The model is fetched now if it is not here; peers are in `peers`, else in the cache."""
    parsed = read_serve_config(config)
    model = ensure_model(parsed.shoal.models[0].source)
    return Setting(config, parsed, model, peers or default_cache() / "peers")


Start = Callable[[Setting], AbstractContextManager[Subject]]
"""Finds what is needed, or raises PeerAbsent; entering what it returns starts the server."""


@contextmanager
def shoal(setting: Setting) -> Iterator[HttpServer]:
    """Shoal as `make serve` starts it, once the model is compiled, if it is to be."""
    port = free_port()
    command = (sys.executable, "-m", "scripts.serve", "--config", str(setting.config_path))
    launch = Launch(
        command=(*command, "--port", str(port)),
        endpoint=endpoint_of(setting, port),
        ready="/ready",
        environment={"PYTHONPATH": str(ROOT)},
        engine_title="ray::KVShard",
    )
    model = setting.config.shoal.models[0]
    with serving(launch) as server:
        if model.compile == "auto" and not model.deterministic:
            await_programs(server.endpoint)
        yield server


def endpoint_of(setting: Setting, port: int) -> Endpoint:
    """Shoal, as started here on `port`."""
    model = setting.config.shoal.models[0].name
    return Endpoint(f"http://127.0.0.1:{port}{setting.config.route}", model, _key(setting))


def vllm(setting: Setting) -> AbstractContextManager[Subject]:
    """vLLM's CPU build; the two libraries its CPU page recommends are preloaded where present."""
    home = setting.peers / "vllm"
    url, address = _address()
    libraries = (Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),)
    preload = [str(one) for one in (*libraries, home / "lib/libiomp5.so") if one.exists()]
    command = (_program(home / "bin/vllm"), "serve", str(setting.model), *address)
    return serving(
        Launch(
            command=(
                *command,
                *("--served-model-name", "peer", "--dtype", "bfloat16"),
                *("--max-model-len", str(CONTEXT), "--max-num-seqs", str(SEATS)),
                *("--enable-prefix-caching", "--disable-uvicorn-access-log"),
            ),
            endpoint=Endpoint(url, "peer"),
            environment={
                **OFFLINE,
                "VLLM_CPU_KVCACHE_SPACE": str(POOL_GIB),
                "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, _cores())),
                "VLLM_NO_USAGE_STATS": "1",
                "TOKENIZERS_PARALLELISM": "false",
                "LD_PRELOAD": ":".join(preload),
            },
            engine_title="VLLM::EngineCore",
        )
    )


def openvino(setting: Setting) -> AbstractContextManager[Subject]:
    """OpenVINO GenAI in process: no HTTP in front of it, which counts in its favour."""
    python = _program(setting.peers / "openvino/bin/python")
    weights = gguf_of(setting.source, "F16")
    script = ROOT / "benchmarks" / "openvino_direct.py"
    return piped((python, str(script), str(weights), str(SEATS), str(POOL_GIB)), {})


def llama_cpp(precision: str) -> Start:
    """llama.cpp's server, `llama-server` on the PATH or in `<peers>/llama.cpp`."""

    def start(setting: Setting) -> AbstractContextManager[Subject]:
        program = shutil.which("llama-server") or _program(setting.peers / "llama.cpp/llama-server")
        url, address = _address()
        weights = gguf_of(setting.source, precision)
        command = (program, "--model", str(weights), *address, "--threads", str(len(_cores())))
        endpoint = Endpoint(url, "peer")
        seats = ("--parallel", str(SEATS), "--ctx-size", str(POOL_TOKENS), "--kv-unified")
        return serving(Launch((*command, *seats), endpoint))

    return start


def transformers(setting: Setting) -> AbstractContextManager[Subject]:
    """transformers' own server with continuous batching, from this very environment.

    It takes text only and knows no `ignore_eos`, so some of its answers are short.
    """
    url, address = _address()
    program = _program(Path(sys.executable).parent / "transformers")
    options = ("--continuous-batching", "--device", "cpu", "--dtype", "bfloat16")
    return serving(
        Launch(
            command=(program, "serve", str(setting.model), *options, *address),
            endpoint=Endpoint(url, str(setting.model), asks="text", extra={}),
            environment={**OFFLINE, "OMP_NUM_THREADS": str(len(_cores()))},
        )
    )


PEERS: dict[str, Start] = {
    "vllm": vllm,
    "openvino": openvino,
    "llama.cpp": llama_cpp("BF16"),
    "llama.cpp-q8": llama_cpp("Q8_0"),
    "transformers": transformers,
}


def _program(path: Path) -> str:
    if not path.exists():
        raise PeerAbsent(f"{path} is not there: {README}")
    return str(path)


def _address() -> tuple[str, tuple[str, ...]]:
    """A free address, as a URL and as the options by which every peer takes it."""
    port = free_port()
    return f"http://127.0.0.1:{port}", ("--host", "127.0.0.1", "--port", str(port))


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _key(setting: Setting) -> str | None:
    """The first key of the environment, else the one that `make serve` keeps on this machine."""
    auth = setting.config.shoal.gateway.auth
    if auth.mode == "none":
        return None
    if given := os.environ.get(auth.keys_env):
        return given.split(",")[0].rpartition(":")[2]
    return ensure_secret(default_cache() / "api-key", prefix="sk-shoal-")
