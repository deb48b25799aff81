"""API keys: who may speak to the doors, and for which tenant.

Keys are kept as SHA-256 digests and never logged; a key is compared with all of them in constant
time, so that neither its prefix nor its place shows in the clock.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

from starlette.datastructures import Headers

from cluster.config import AuthConfig
from cluster.errors import ConfigError, NotAuthenticated

ANONYMOUS = "default"
"""The tenant of keys without one, and of everybody where no keys are asked for."""


class ApiKeys:
    """The known keys and their tenants; none at all means that everybody may enter."""

    def __init__(self, tenants: Mapping[str, str]) -> None:
        """`tenants` maps each key to its tenant."""
        self._tenants = {_digest(key): tenant for key, tenant in tenants.items()}

    @classmethod
    def from_environment(cls, config: AuthConfig, environ: Mapping[str, str]) -> ApiKeys:
        """Read `key` or `tenant:key`, by commas, from the variable that `config` names.

        Raises ConfigError where keys are to be asked for and there are none.
        """
        if config.mode == "none":
            return cls({})
        tenants = read_keys(environ.get(config.keys_env, ""))
        if not tenants:
            raise ConfigError(
                f"no API keys: set the environment variable {config.keys_env} to `key` or"
                " `tenant:key`, several by commas, or set gateway.auth.mode to none",
                "args.gateway.auth",
            )
        return cls(tenants)

    def tenant(self, headers: Headers, *, basic: bool = False) -> str:
        """The tenant whose key the headers bear; `basic` also takes a key as a Basic password.

        Raises NotAuthenticated.
        """
        if not self._tenants:
            return ANONYMOUS
        key = _key(headers.get("authorization", ""), basic)
        if key is None:
            raise NotAuthenticated("an API key is needed, as `Authorization: Bearer <key>`")
        offered, found = _digest(key), None
        for known, tenant in self._tenants.items():
            if hmac.compare_digest(known, offered):
                found = tenant
        if found is None:
            raise NotAuthenticated("this API key is not known here")
        return found


def read_keys(value: str) -> dict[str, str]:
    """The tenant of each key in `key` or `tenant:key`, several by commas."""
    pairs = map(_tenant_and_key, value.split(","))
    return {key: tenant for tenant, key in pairs if key}


def tenant_salt(tenant: str) -> bytes:
    """16 bytes that root the prefix hashes of `tenant`, so that tenants share no pages."""
    return hashlib.sha256(b"shoal tenant\0" + tenant.encode()).digest()[:16]


def _tenant_and_key(entry: str) -> tuple[str, str]:
    tenant, colon, key = entry.strip().partition(":")
    return (tenant, key) if colon else (ANONYMOUS, tenant)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _key(authorization: str, basic: bool) -> str | None:
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip() or None
    if basic and scheme.lower() == "basic":
        return _basic_password(value)
    return None


def _basic_password(value: str) -> str | None:
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2] or None
    except (binascii.Error, UnicodeDecodeError):
        return None
