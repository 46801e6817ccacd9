"""Keeps keys and passwords out of what other processes of the same user can read.

A worker runs tools, and tools run programs, which can read the environment of the worker and of its
parents. So secrets are passed between processes through a pipe, and a process that holds them
cannot be inspected.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import SecretStr

from toolpool.contract.errors import Misconfigured
from toolpool.contract.server.password_masking import without_password
from toolpool.contract.settings import Settings

_PR_SET_DUMPABLE = 4  # from <linux/prctl.h>
_CAP_SYS_PTRACE = 19  # from <linux/capability.h>
VARIABLE = "TOOLPOOL_SECRET_"
"""The prefix of variables with tool secrets, for the environment as a secret source."""
_URLS = ("redis_url", "broker_url")
_MOST_BYTES = 1 << 16


def secrets_of(settings: Settings) -> dict[str, str]:
    """The secret settings by name: keys, and URLs that contain a password."""
    found = {
        name: value.get_secret_value()
        for name in Settings.model_fields
        if isinstance(value := getattr(settings, name), SecretStr)
    }
    for name in _URLS:
        url = getattr(settings, name)
        if url and without_password(url) != url:
            found[name] = url
    return found


def without_secrets(environment: Mapping[str, str], secrets: Iterable[str]) -> dict[str, str]:
    """The environment without variables that hold `secrets`, their files or secrets of tools."""
    variables = {f"TOOLPOOL_{name}{end}".upper() for name in secrets for end in ("", "_FILE")}
    return {
        name: value
        for name, value in environment.items()
        if name.upper() not in variables and not name.upper().startswith(VARIABLE)
    }


def variables_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The tool secrets in the environment; names in capitals."""
    return {
        name.upper(): value
        for name, value in environment.items()
        if name.upper().startswith(VARIABLE)
    }


def forget(secrets: Iterable[str]) -> None:
    """Remove the secrets from this process's environment, so that children do not inherit them."""
    for name in set(os.environ) - without_secrets(os.environ, secrets).keys():
        del os.environ[name]


def handed_over(secrets: Mapping[str, str]) -> int:
    """A descriptor from which a child process reads the secrets once; close it after the start.

    Raises `Misconfigured` if they exceed the buffer of a pipe.
    """
    data = json.dumps(dict(secrets), ensure_ascii=False).encode(errors="surrogateescape")
    if len(data) > _MOST_BYTES:
        raise Misconfigured(
            f"the secrets in {VARIABLE}… take {len(data):,} bytes, of {_MOST_BYTES:,} at most: "
            "put them into files (TOOLPOOL_SECRETS=file:DIRECTORY)"
        )
    reading, writing = os.pipe()
    with open(writing, "wb") as pipe:
        pipe.write(data)
    return reading


def received(descriptor: int) -> dict[str, str]:
    """Read the secrets that the parent passed with `handed_over`."""
    with open(descriptor, "rb") as pipe:
        secrets: dict[str, str] = json.loads(pipe.read().decode(errors="surrogateescape"))
    return secrets


def sees_everything() -> bool:
    """Whether a process with these privileges may inspect every other one, even if concealed."""
    if sys.platform != "linux":
        return os.geteuid() == 0
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    rights = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(rights & 1 << _CAP_SYS_PTRACE)


def conceal() -> None:
    """Prevent other processes, except root's, from reading memory and environment (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
