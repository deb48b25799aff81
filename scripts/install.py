"""Make `.venv` and install Shoal in it, once for each content of pyproject.toml.

Run by whatever `python3` the machine has, so this file keeps to syntax that an old one can read
far enough to be told that it is too old.
"""

import argparse
import ctypes
import hashlib
import os
import platform
import subprocess
import sys
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "shoal-installed")

# On Linux the package index ships torch for CUDA, gigabytes that a machine without a GPU has no
# use for. The CPU build has the same version with a local part, which pip holds to be newer.
TORCH = "torch==2.13.0"
CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
CPU_TORCH_PATIENCE_S = 4


def main() -> int:
    """0 when installed, 1 when pip failed, 2 when this Python cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="with the tools for tests and checks")
    dev = parser.parse_args().dev
    if sys.version_info < (3, 11):
        return _refuse("Python 3.11 or newer is needed, this is " + platform.python_version())
    wanted = _fingerprint()
    if _installed() in ([wanted + " dev"] if dev else [wanted, wanted + " dev"]):
        return 0
    print("Installing Shoal into .venv (minutes the first time, skipped the next)", flush=True)
    try:
        if not os.path.exists(PYTHON):
            subprocess.check_call([sys.executable, "-m", "venv", VENV])
        _install(dev)
    except subprocess.CalledProcessError as error:
        if not os.path.exists(os.path.join(VENV, "bin", "pip")):
            return _refuse("the venv module does not work; on Debian: apt install python3-venv")
        print("install: " + str(error), file=sys.stderr)
        return 1
    with open(STAMP, "w") as stamp:
        stamp.write(wanted + (" dev" if dev else ""))
    return 0


def _refuse(reason: str) -> int:
    print("install: " + reason, file=sys.stderr)
    print("Choose another interpreter by `make PYTHON=/path/to/python3 ...`", file=sys.stderr)
    return 2


def _fingerprint() -> str:
    """Changes with what is to be installed and with what installs it."""
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as project:
        content = project.read() + TORCH.encode() + ROOT.encode()
    return hashlib.sha256(content).hexdigest()


def _installed() -> str:
    try:
        with open(STAMP) as stamp:
            return stamp.read()
    except FileNotFoundError:
        return ""


def _install(dev: bool) -> None:
    pip = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    if platform.system() == "Linux" and not has_nvidia_driver():
        extra = ["--extra-index-url", CPU_TORCH_INDEX] if _answers(CPU_TORCH_INDEX) else []
        subprocess.check_call([*pip, TORCH, *extra])
    subprocess.check_call([*pip, "--editable", ROOT + ("[dev]" if dev else "")])


def has_nvidia_driver() -> bool:
    """Whether the driver's management library can be loaded, as torch and Ray will try to."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _answers(index: str) -> bool:
    """Whether the index can be reached; where it cannot, pip's own configuration has to do."""
    try:
        with urllib.request.urlopen(index + "/torch/", timeout=CPU_TORCH_PATIENCE_S):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
