"""What a call lacks that cannot be run, or cannot go on, for want of a secret."""

from enum import StrEnum
from typing import Any

import msgspec

from toolpool.contract.outcome import Code, Executed, Outcome, failure

UNAVAILABLE = "credentials"
"""The reason of a call whose secrets could not be asked for."""


class Lack(StrEnum):
    """Why there is none."""

    MISSING = "missing"  # nobody has set it up
    SIGN_IN = "sign_in"  # whose call it is has to sign in first
    UNAVAILABLE = "unavailable"  # what should know it failed, or did not answer


class Credential(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A secret that a call lacks: never its value. It stands in an outcome's details.

    `name` is empty where the tool itself asked for a sign-in; `url` is where to sign in.
    """

    lack: Lack
    name: str = ""
    url: str | None = None


class _Details(msgspec.Struct, frozen=True):
    credential: Credential | None = None


def lacking(credential: Credential, executed: Executed, error: str = "") -> Outcome:
    """The outcome of a call that lacks it; one that is unavailable is a fault of the pool's.

    `error` is what dispatchers say that know nothing of credentials.
    """
    details = {"credential": msgspec.to_builtins(credential)}
    if credential.lack is Lack.UNAVAILABLE:
        return failure(Code.INTERNAL, UNAVAILABLE, executed, details=details)
    error = error or f"{credential.lack.value} {credential.name} {credential.url or ''}".strip()
    return failure(Code.REPORTED, error, executed, details=details)


def lacked(details: dict[str, Any] | None) -> Credential | None:
    """The credential that these details of an outcome or a result say was lacking."""
    if not details or "credential" not in details:
        return None
    try:
        return msgspec.convert(details, _Details).credential
    except msgspec.ValidationError:
        return None
