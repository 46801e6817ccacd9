"""The keys of a call's records: its own, and one for each retry by the pool."""

import uuid

_IDEMPOTENCY = uuid.UUID("6f0c3a0e-4d0b-5c8e-9a57-2f1d1c6b8e44")
"""Never to be changed: the APIs behind tools know calls by what is made with it."""


def root_of(key: str) -> str:
    """What the keys of a call and of its retries have in common."""
    return key.partition(".")[0]


def retry_key(root: str, number: int) -> str:
    """The record of a call's retry, counted from 1; of the call itself for 0."""
    return f"{root}.{number}" if number else root


def retry_of(key: str) -> int:
    """The number of the retry that a record is of; 0 for the call itself."""
    number = key.partition(".")[2]
    return int(number) if number.isdecimal() else 0


def idempotency_key(key: str) -> str:
    """One UUID for all records of a call, that says nothing of them to whoever reads it."""
    return str(uuid.uuid5(_IDEMPOTENCY, root_of(key)))
