"""What a starting cluster says over HTTP, and in words for who waits for it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any


def get(url: str, token: str | None = None) -> tuple[int, str]:
    """Status and body; status 0 where nobody answers."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as got:
            return got.status, got.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except OSError:
        return 0, ""


def loading(models: list[str]) -> str:
    return ", ".join(f"{model} is loading" for model in models)


def message_of(body: str) -> str:
    """What an error body of ours says, if it is one."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""


def failure(app: dict[str, Any]) -> str:
    parts = [f"the application is {app['status']}: {app.get('message', '')}"]
    for name, deployment in app.get("deployments", {}).items():
        if deployment["status"] not in ("HEALTHY", "UPDATING") and deployment.get("message"):
            parts.append(f"{name} is {deployment['status']}: {deployment['message']}")
    return "\n".join(parts)
