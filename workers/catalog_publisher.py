"""Publishes a worker's tools in the catalog and restores lost entries.

Each signer has its own entries, so that foreign ones cannot replace them. An entry keeps the date
at which its version of the tool was first published: of two versions, the one published later is
newer.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

import redis

from toolpool.contract import encoding, logs
from toolpool.contract.envelope import CatalogEntry, Envelope, Toolset
from toolpool.contract.errors import MessageRejected
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.settings import Settings
from toolpool.contract.spec import CATALOG_TTL_SECONDS, ToolSpec
from toolpool.contract.version import VERSION

log = logs.logger("catalog_publisher")

_LOOK_SECONDS = 15.0
"""The interval in seconds at which entries are checked even without a new version."""
_RENEWALS = 24
"""How many times an entry's expiry is renewed during its lifetime."""


def toolset_of(specs: Sequence[ToolSpec]) -> Toolset:
    """The toolset of workers with these tools."""
    tools = {spec.name: spec.digest for spec in specs}
    return Toolset(digest=encoding.digest(tools), tools=tools)


class CatalogPublisher:
    """The entries of one worker."""

    def __init__(
        self,
        client: "redis.Redis",
        specs: Sequence[ToolSpec],
        *,
        envelope: Envelope,
        settings: Settings,
    ) -> None:
        self._client = client
        self._specs = {
            RedisKeys.catalog_field(spec.name, spec.digest, envelope.key_id): spec for spec in specs
        }
        self._envelope = envelope
        self._names = RedisKeys(settings.key_prefix)
        self._entries: dict[str, bytes] = {}
        self._version: bytes | None = None
        self._is_stocked = False
        self._look_at = 0.0
        self._renew_at = 0.0
        self.toolset = toolset_of(specs)

    def stock(self, version: bytes, server_time: float) -> None:
        """Ensure that every entry exists. Raises RedisError.

        `version` is the catalog's, `server_time` Unix time by the server's clock.
        """
        now = time.monotonic()
        if version == self._version and version and now < min(self._look_at, self._renew_at):
            return
        self._look_at = now + _LOOK_SECONDS
        missing = self._missing(server_time)
        is_lost = self._is_stocked and not version
        if missing or is_lost or now >= self._renew_at:
            self._put(missing, server_time, is_lost=is_lost)
            self._renew_at = now + CATALOG_TTL_SECONDS / _RENEWALS
        self._version = version if not missing else None
        self._is_stocked = True

    def _missing(self, server_time: float) -> dict[str, bytes]:
        """The entries to write, by field."""
        fields = list(self._specs)
        found: Any = self._client.hmget(self._names.catalog, fields) if fields else []
        missing: dict[str, bytes] = {}
        for field, body in zip(fields, found, strict=True):
            known = self._entries.get(field)
            if known is None:
                known = self._entries[field] = self._entry(field, body, server_time)
            if body == known or self._is_removal(body):
                continue
            if body is not None and self._is_older(body, known):
                self._entries[field] = body  # of two published at once, the older stays
            else:
                missing[field] = known
        return missing

    def _entry(self, field: str, body: bytes | None, server_time: float) -> bytes:
        """The existing entry, to keep its date; else a new one."""
        if body is not None:
            try:
                if not self._envelope.decode(CatalogEntry, body).removed:
                    return body
            except MessageRejected:
                pass
        spec = self._specs[field]
        entry = CatalogEntry(spec=spec, published_at=server_time, version=VERSION)
        return self._envelope.encode(entry)

    def _is_older(self, body: bytes, known: bytes) -> bool:
        try:
            found = self._envelope.decode(CatalogEntry, body)
        except MessageRejected:
            return False
        ours = self._envelope.decode(CatalogEntry, known)
        return not found.removed and found.published_at <= ours.published_at

    def _is_removal(self, body: bytes | None) -> bool:
        """Whether an operator removed the tool since this worker started."""
        if body is None or not self._is_stocked:
            return False
        try:
            return self._envelope.decode(CatalogEntry, body).removed
        except MessageRejected:
            return False

    def _put(self, missing: dict[str, bytes], server_time: float, *, is_lost: bool) -> None:
        """Write missing entries, and a new version if any was missing or the last one `is_lost`."""
        names, kept_ms = self._names, CATALOG_TTL_SECONDS * 1000
        old = self._client.zrangebyscore(
            names.catalog_ages, "-inf", server_time - CATALOG_TTL_SECONDS
        )
        pipeline = self._client.pipeline(transaction=True)
        if old:
            pipeline.hdel(names.catalog, *old)
            pipeline.zrem(names.catalog_ages, *old)
        if missing:
            log.info("tools_published count=%d", len(missing))
            for field, body in missing.items():
                pipeline.hset(names.catalog, field, body)
        if self._specs:
            pipeline.zadd(names.catalog_ages, dict.fromkeys(self._specs, server_time))
        body = self._envelope.encode(self.toolset)
        pipeline.set(names.toolset(self.toolset.digest), body, px=kept_ms)
        for key in (names.catalog, names.catalog_ages):
            pipeline.pexpire(key, kept_ms)
        if missing or old or is_lost:  # never the version from before a loss
            is_same = not missing and not old
            pipeline.set(names.catalog_version, secrets.token_hex(8), nx=is_same)
        pipeline.pexpire(names.catalog_version, kept_ms)
        pipeline.execute()
