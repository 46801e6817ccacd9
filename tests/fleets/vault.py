"""What resolves secrets in tests: for every user another, and in every way in which it can fail."""

import asyncio
import hashlib
import os
import sys
import time

from toolpool import NeedsSignIn

ODD = 'é"\\\n'
"""Signs that JSON, a URL and Python each spell in their own way."""


class VaultDown(Exception):
    """What a client of a vault raises."""


def value_of(tenant: str, user: str | None, name: str) -> str:
    """The secret of a user: known to the tests, and to nobody who was not told."""
    digest = hashlib.sha256(f"{tenant}/{user}/{name}".encode()).hexdigest()[:24]
    return f"Tk{digest[:12]}{ODD}{digest[12:]}Tk"


async def resolve(*, tenant: str, user: str | None, name: str) -> str | None:
    """Look it up, as over a network."""
    await asyncio.sleep(0)
    return _resolve(tenant, user, name)


def resolve_in_a_thread(*, tenant: str, user: str | None, name: str) -> str | None:
    """Look it up, and block meanwhile."""
    time.sleep(0.001)
    return _resolve(tenant, user, name)


def _resolve(tenant: str, user: str | None, name: str) -> str | None:
    if user == "nobody":
        return None
    if user == "unknown":
        raise KeyError(f"{user} has no {name}")
    if user == "stranger":
        raise NeedsSignIn("https://sign-in.example/oauth?for=github")
    if user == "strange":
        raise NeedsSignIn("not a URL\nat all")
    if user == "hangs":
        time.sleep(60)
    if user == "exits":
        sys.exit(3)
    if user == "wrong":
        return b"bytes"  # type: ignore[return-value]
    if user == "large":
        return "x" * 70_000
    if user == "odd":
        return "x\udcff"
    if user == "down":
        raise VaultDown(f"cannot give {value_of(tenant, user, name)}")
    return value_of(tenant, user, name)


async def hangs_politely(*, tenant: str, user: str | None, name: str) -> str:
    """Wait for a vault that does not answer."""
    await asyncio.sleep(60)
    return ""


TOKEN = os.environ.pop("VAULT_TOKEN", "")
"""Its own credential, which no tool inherits."""
