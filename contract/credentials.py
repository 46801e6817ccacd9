"""A credential that a call needed and did not have."""

from enum import StrEnum
from typing import Any

import msgspec

from toolpool.contract.outcome import Code, Executed, Outcome, failure

USER = "user"
"""The key in a call's context whose value names the user.

The call's tool gets this user's secrets.
"""
UNAVAILABLE = "credentials"
"""The reason of a call whose secrets could not be resolved."""


class MissingReason(StrEnum):
    """Why a credential is lacking."""

    MISSING = "missing"  # the operator has not configured it
    SIGN_IN = "sign_in"  # the call's user has to sign in first
    UNAVAILABLE = "unavailable"  # the resolver failed or did not answer


class MissingSecret(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A secret that a call lacks, without its value, as stored in an outcome's details.

    `name` is empty if the tool itself asked for a sign-in; `url` is where to sign in.
    """

    lack: MissingReason
    name: str = ""
    url: str | None = None


class _Details(msgspec.Struct, frozen=True):
    credential: MissingSecret | None = None


def missing_secret_outcome(
    credential: MissingSecret, executed: Executed, error: str = ""
) -> Outcome:
    """The outcome of a call that lacks a credential; an unavailable one is a fault of the pool.

    `error` is the text for dispatchers of earlier versions, which do not know credentials.
    """
    details = {"credential": msgspec.to_builtins(credential)}
    if credential.lack is MissingReason.UNAVAILABLE:
        return failure(Code.INTERNAL, UNAVAILABLE, executed, details=details)
    error = error or f"{credential.lack.value} {credential.name} {credential.url or ''}".strip()
    return failure(Code.REPORTED, error, executed, details=details)


def missing_secret_in(details: dict[str, Any] | None) -> MissingSecret | None:
    """The lacking credential that the details of an outcome or result name, if any."""
    if not details or "credential" not in details:
        return None
    try:
        return msgspec.convert(details, _Details).credential
    except msgspec.ValidationError:
        return None
