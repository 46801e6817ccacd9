"""Which calls this dispatcher accepts, and which tools it offers."""

from collections.abc import Collection

from toolpool.contract.call import ToolCall
from toolpool.contract.ledger.failure_memory import FailureHistory
from toolpool.contract.outcome import Code
from toolpool.contract.result import ToolResult
from toolpool.contract.settings import Settings
from toolpool.dispatcher.admission.catalog import Catalog, Offer
from toolpool.dispatcher.admission.validate import Accepted, validate
from toolpool.dispatcher.classifier import rejected
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import Wording
from toolpool.dispatcher.turn_options import tool_names


class Acceptance:
    """Validates calls of the tools on the dispatcher's allow-list.

    Raises ValueError for an invalid list of names.
    """

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        wording: Wording,
        only: Collection[str] | None,
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._wording = wording
        self._allowed = tool_names("only", only)

    def allowed(self, only: Collection[str] | None) -> Collection[str] | None:
        """The names that are also on a narrower list; None for all. Raises ValueError."""
        if only is None:
            return self._allowed
        asked = tool_names("only", only)
        return asked if asked is None or self._allowed is None else asked & self._allowed

    def offers(self, name: str) -> bool:
        """Whether the allow-list has a tool."""
        return self._allowed is None or name in self._allowed

    def has(self, name: str) -> bool:
        """Whether a tool of this name exists, even if it is not allowed or is withheld."""
        return self._catalog.spec_of(name) is not None

    def shares(self, name: str) -> bool:
        """Whether equal calls of a tool may share a run; such calls have no record of their own."""
        spec = self._catalog.spec_of(name)
        return spec is not None and spec.is_shared

    def listed(self, only: Collection[str] | None) -> dict[str, Offer]:
        """The tools that a model is offered."""
        allowed = self.allowed(only)
        offers = self._catalog.offers
        return {n: offer for n, offer in offers.items() if allowed is None or n in allowed}

    def judge(
        self,
        call: ToolCall,
        allowed: Collection[str] | None,
        format: str,
        seen: FailureHistory | None = None,
    ) -> Accepted | ToolResult:
        """The call to queue, or its rejection. See `validate`."""
        cap = self._settings.calls_per_turn
        if call.index >= cap:
            text = texts.too_many_calls(cap, self._wording)
            return rejected(call, Code.TOO_MANY_CALLS, text, self._wording)
        return validate(
            call,
            self._catalog.offers,
            allowed,
            self._wording,
            aliases=self._catalog.aliases,
            format=format,
            repairs=self._settings.repair,
            seen=seen,
        )
