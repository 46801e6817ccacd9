"""The tools that a dispatcher knows, updated live: the newest version of each name wins."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from toolpool.contract import logs
from toolpool.contract.envelope import CatalogEntry, Envelope
from toolpool.contract.errors import MessageRejected, Misconfigured, ToolDeclarationInvalid
from toolpool.contract.schema.validator import SchemaCache, SchemaValidator
from toolpool.contract.spec import ToolSpec, sealed
from toolpool.dispatcher.admission import task_tools
from toolpool.dispatcher.formats import tools_by_offered_name

log = logs.logger("catalog")

_GONE_SECONDS = 10.0
_UNSERVED = "no worker of its queue has it any more"


class Offer(msgspec.Struct, frozen=True):
    """A tool that can be called, with its compiled schema (None: any object is valid)."""

    spec: ToolSpec
    validator: SchemaValidator | None
    bound: str = ""
    """The spec's `bound_digest`."""

    def canonical(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Valid arguments in canonical form.

        Raises ValueError if the schema does not determine it.
        """
        return arguments if self.validator is None else self.validator.canonical(arguments)


class Catalog:
    """Offers by name. A spec whose schema does not compile is refused on its own."""

    def __init__(self) -> None:
        self._offers: dict[str, Offer] = {}
        self.offers: Mapping[str, Offer] = MappingProxyType(self._offers)
        """The tools that can be called."""
        self._gone: dict[str, float] = {}
        self._published: dict[str, list[CatalogEntry]] = {}
        self._live: Mapping[str, frozenset[str]] = {}
        self._unserved: frozenset[str] = frozenset()
        self._withheld: dict[str, ToolSpec] = {}
        self.published: Sequence[ToolSpec] = ()
        """The version to offer of each tool in the catalog."""
        self.strangers = 0
        """How many entries are not signed with our key."""
        self._schemas = SchemaCache()
        self.refused: dict[str, str] = {}
        """Why a tool is not offered, by name."""
        self.aliases: Mapping[str, str] = {}
        """Tool names by alias. A provider that refuses a tool's name is given the alias."""

    def spec_of(self, name: str) -> ToolSpec | None:
        """The spec of a tool, even if it is withheld; None if it is not published."""
        offer = self._offers.get(name)
        return offer.spec if offer is not None else self._withheld.get(name)

    def canonical(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments in canonical form; unchanged if the schema does not determine it."""
        offer = self._offers.get(name)
        try:
            return arguments if offer is None else offer.canonical(arguments)
        except ValueError:
            return arguments

    @property
    def has_tools(self) -> bool:
        """Whether any tool is offered besides the pool's own."""
        return bool(self.listed)

    @property
    def listed(self) -> dict[str, Offer]:
        """The tools of workers: all that can be called, except the pool's own."""
        offers = self._offers.items()
        return {name: offer for name, offer in offers if not task_tools.is_own(offer.spec)}

    def replace(self, specs: Iterable[ToolSpec]) -> None:
        """Offer exactly these tools, and the pool's own if there are any.

        The answer to a call of any tool may name `task_result`: its output may be cut, its host may
        not wait for it, a policy may require approval.
        """
        specs = list(specs)
        if specs:
            named = {spec.name for spec in specs}
            specs += [spec for name, spec in task_tools.SPECS.items() if name not in named]
        offers: dict[str, Offer] = {}
        refused: dict[str, str] = {}
        for spec in specs:
            known = self._offers.get(spec.name)
            if known is not None and known.spec.digest == spec.digest:
                offers[spec.name] = known
                continue
            try:
                _require_known_limit(spec)
                validator = self._schemas.validator(spec)
                offers[spec.name] = Offer(spec, validator, spec.bound_digest)
            except ToolDeclarationInvalid as error:
                refused[spec.name] = str(error)
                if self.refused.get(spec.name) != str(error):
                    log.error("tool_refused tool=%s: %s", spec.name, error)
        self._offers, self.offers = offers, MappingProxyType(offers)
        self.refused, self.aliases = refused, tools_by_offered_name(offers)

    def replace_published(self, entries: Iterable[bytes], envelope: Envelope) -> None:
        """Apply the published entries. Entries not signed with our key are ignored."""
        published: dict[str, dict[str, CatalogEntry]] = {}
        strangers = 0
        for data in entries:
            try:
                entry = envelope.decode(CatalogEntry, data)
            except MessageRejected:
                strangers += 1
                continue
            versions = published.setdefault(entry.spec.name, {})
            known = versions.get(entry.spec.digest)
            if known is None or entry.published_at > known.published_at:
                versions[entry.spec.digest] = entry
        if strangers != self.strangers:
            self.strangers = strangers
            log.warning("catalog_entries_rejected count=%d: not signed with our key", strangers)
        self._published = {
            name: found
            for name, versions in published.items()
            if (found := [entry for entry in versions.values() if not entry.removed])
        }
        self._choose()

    def follow_live(self, live: Mapping[str, frozenset[str]]) -> None:
        """Apply which versions live workers offer: these are preferred."""
        if live != self._live:
            self._live = live
            self._choose()

    def withhold(self, unserved: frozenset[str]) -> None:
        """Stop offering these tools: the workers of their queues do not have them."""
        if unserved != self._unserved:
            for name in sorted(unserved - self._unserved):
                log.warning("tool_unserved tool=%s: no worker of its queue has it any more", name)
            self._unserved = unserved
            self._choose()

    def _choose(self) -> None:
        """Choose for each tool the newest version that a live worker has, or the newest of all."""
        newest: dict[str, CatalogEntry] = {}
        for name, entries in self._published.items():
            live = self._live.get(name, frozenset())
            newest[name] = max(entries, key=lambda e: (e.spec.digest in live, e.published_at))
        now = time.monotonic()
        if [entry.spec for entry in newest.values()] != self.published:
            self.published = [entry.spec for entry in newest.values()]
        self._gone = {
            name: self._gone.get(name, now)
            for name, offer in self._offers.items()
            if name not in newest and not task_tools.is_own(offer.spec)
        }
        gone = [self._offers[name].spec for name in self._gone]
        self._withheld = {s.name: s for s in self.published if s.name in self._unserved}
        self.replace([*(s for s in self.published if s.name not in self._unserved), *gone])
        self.refused |= dict.fromkeys(self._unserved, _UNSERVED)

    def forget_gone(self) -> None:
        """Stop offering tools that have not been published for a while.

        Until then they stay: after data loss the workers publish them again one by one.
        """
        now = time.monotonic()
        for name in [name for name, since in self._gone.items() if now - since > _GONE_SECONDS]:
            del self._gone[name]
            self._offers.pop(name, None)


def _require_known_limit(spec: ToolSpec) -> None:
    """Reject a tool of a newer version that has a limit unknown here."""
    try:
        _ = spec.limit, spec.at_once
    except ValueError as error:
        raise ToolDeclarationInvalid(f"its limit is not known here: {error}") from None


def read_file(path: str | Path) -> list[ToolSpec]:
    """The specs in a file written by `toolpool tools export`. Raises `Misconfigured`."""
    try:
        content: Any = json.loads(Path(path).read_text())
        specs = msgspec.convert(content["tools"], list[ToolSpec])
    except OSError as error:
        raise Misconfigured(f"the catalog {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise Misconfigured(
            f"{path} is not a catalog that `toolpool tools export` wrote: {error}"
        ) from None
    return [sealed(spec) for spec in specs]
