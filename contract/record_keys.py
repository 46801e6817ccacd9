"""The ledger keys of a call: one for the call and one for each retry."""

import uuid

_IDEMPOTENCY = uuid.UUID("6f0c3a0e-4d0b-5c8e-9a57-2f1d1c6b8e44")
"""Never change it: the APIs behind tools identify calls by the keys derived from it."""


def root_of(key: str) -> str:
    """The common part of the keys of a call and its retries."""
    return key.partition(".")[0]


def retry_key(root: str, number: int) -> str:
    """The key of retry `number`, counted from 1; 0 is the call itself."""
    return f"{root}.{number}" if number else root


def retry_of(key: str) -> int:
    """The number of the retry that a key belongs to; 0 for the call itself."""
    number = key.partition(".")[2]
    return int(number) if number.isdecimal() else 0


def idempotency_key(key: str) -> str:
    """One UUID for a call and its retries that does not reveal their keys."""
    return str(uuid.uuid5(_IDEMPOTENCY, root_of(key)))
