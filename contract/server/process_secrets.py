"""Keeps keys and passwords out of what other processes of the same user can read.

A worker runs tools, and tools run programs, which can read what is in the environment of the worker
or of what started it. So secrets go from process to process through a pipe, and
a process that holds them lets nobody look into it.
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
"""Variables that begin so hold the secrets of tools, where the environment is asked for them."""
_URLS = ("redis_url", "broker_url")
_MOST_BYTES = 1 << 16


def secrets_of(settings: Settings) -> dict[str, str]:
    """The settings that are secret, by name: the keys, and every URL that holds a password."""
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
    """The variables without those that hold `secrets` or name their files, or hold a tool's."""
    variables = {f"TOOLPOOL_{name}{end}".upper() for name in secrets for end in ("", "_FILE")}
    return {
        name: value
        for name, value in environment.items()
        if name.upper() not in variables and not name.upper().startswith(VARIABLE)
    }


def variables_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold secrets of tools, in capitals."""
    return {
        name.upper(): value
        for name, value in environment.items()
        if name.upper().startswith(VARIABLE)
    }


def forget(secrets: Iterable[str]) -> None:
    """Take them out of this process's own environment, so that it passes none on."""
    for name in set(os.environ) - without_secrets(os.environ, secrets).keys():
        del os.environ[name]


def handed_over(secrets: Mapping[str, str]) -> int:
    """A descriptor to read them from once, for a process that is started with it; close it then.

    Raises `Misconfigured` where they are more than a pipe takes before somebody reads.
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
    """What `handed_over` was given."""
    with open(descriptor, "rb") as pipe:
        secrets: dict[str, str] = json.loads(pipe.read().decode(errors="surrogateescape"))
    return secrets


def sees_everything() -> bool:
    """Whether a process like this one may look into any other, concealed or not."""
    if sys.platform != "linux":
        return os.geteuid() == 0
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    rights = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(rights & 1 << _CAP_SYS_PTRACE)


def conceal() -> None:
    """Let no other process but root's look into this one's memory and environment (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
