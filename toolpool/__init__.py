"""toolpool: runs LLM tool calls on Celery workers, with one classified result for every call.

Only the names that this module exports are public. `toolpool.contract`, `toolpool.dispatcher` and
`toolpool.workers` are private: names in them change without notice.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolpool.contract.errors import (
        ApprovalRefused,
        BrokerUnreachable,
        CatalogEmpty,
        CommandRejected,
        InvalidResponse,
        Misconfigured,
        NeedsSignIn,
        ServerError,
        ServerUnavailable,
        ServerUnsuitable,
        SigningKeyMissing,
        ToolDeclarationInvalid,
        ToolError,
        ToolpoolError,
        ToolsUnimportable,
    )
    from toolpool.contract.outcome import Code, ErrorType, Executed
    from toolpool.contract.result import State, ToolResult
    from toolpool.contract.settings import Settings
    from toolpool.contract.spec import ToolSpec
    from toolpool.contract.version import VERSION as __version__
    from toolpool.correction import (
        Conversation,
        CorrectionFailed,
        anthropic_model,
        converse,
        openai_model,
        openai_responses_model,
    )
    from toolpool.dispatcher.events import Event
    from toolpool.dispatcher.formats.response_reader import UnreadableResponse
    from toolpool.dispatcher.observer import (
        Alert,
        Audit,
        CallFacts,
        Ended,
        HookFailure,
        Loop,
        Observer,
        Progressed,
        Pulse,
        Rejected,
        SwitchChanged,
    )
    from toolpool.dispatcher.observers.metrics import Metrics
    from toolpool.dispatcher.observers.otel import OpenTelemetry
    from toolpool.dispatcher.observers.sentry import Sentry
    from toolpool.dispatcher.observers.session_record import SessionRecord
    from toolpool.dispatcher.policy.approval_view import Approval
    from toolpool.dispatcher.policy.hooks import Hooks
    from toolpool.dispatcher.policy.verdict_types import (
        Allow,
        AskApproval,
        Deny,
        Preview,
        ProposedCall,
        Replace,
        Rewrite,
    )
    from toolpool.dispatcher.turn_result import TurnResult
    from toolpool.pool import Dispatcher
    from toolpool.sync import SyncDispatcher
    from toolpool.workers.context import ToolContext
    from toolpool.workers.tool import Tool, tool
    from toolpool.workers.worker_observer import (
        Blocked,
        LeftBehind,
        Received,
        RunEnded,
        RunFacts,
        Unresolved,
        WorkerFacts,
        WorkerObserver,
        WorkerPulse,
    )

_HOMES = {
    "toolpool.contract.errors": (
        "ApprovalRefused",
        "BrokerUnreachable",
        "CatalogEmpty",
        "CommandRejected",
        "InvalidResponse",
        "Misconfigured",
        "NeedsSignIn",
        "ServerError",
        "ServerUnavailable",
        "ServerUnsuitable",
        "SigningKeyMissing",
        "ToolDeclarationInvalid",
        "ToolError",
        "ToolpoolError",
        "ToolsUnimportable",
    ),
    "toolpool.contract.outcome": ("Code", "ErrorType", "Executed"),
    "toolpool.contract.result": ("State", "ToolResult"),
    "toolpool.contract.settings": ("Settings",),
    "toolpool.contract.spec": ("ToolSpec",),
    "toolpool.dispatcher.events": ("Event",),
    "toolpool.dispatcher.formats.response_reader": ("UnreadableResponse",),
    "toolpool.dispatcher.observer": (
        "Alert",
        "Audit",
        "CallFacts",
        "Ended",
        "HookFailure",
        "Loop",
        "Observer",
        "Progressed",
        "Pulse",
        "Rejected",
        "SwitchChanged",
    ),
    "toolpool.dispatcher.observers.metrics": ("Metrics",),
    "toolpool.dispatcher.observers.sentry": ("Sentry",),
    "toolpool.dispatcher.observers.otel": ("OpenTelemetry",),
    "toolpool.dispatcher.observers.session_record": ("SessionRecord",),
    "toolpool.dispatcher.policy.approval_view": ("Approval",),
    "toolpool.dispatcher.policy.hooks": ("Hooks",),
    "toolpool.dispatcher.policy.verdict_types": (
        "Allow",
        "AskApproval",
        "Deny",
        "Preview",
        "ProposedCall",
        "Replace",
        "Rewrite",
    ),
    "toolpool.dispatcher.turn_result": ("TurnResult",),
    "toolpool.correction": (
        "Conversation",
        "CorrectionFailed",
        "anthropic_model",
        "converse",
        "openai_model",
        "openai_responses_model",
    ),
    "toolpool.pool": ("Dispatcher",),
    "toolpool.sync": ("SyncDispatcher",),
    "toolpool.workers.context": ("ToolContext",),
    "toolpool.workers.worker_observer": (
        "Blocked",
        "LeftBehind",
        "Received",
        "RunEnded",
        "RunFacts",
        "Unresolved",
        "WorkerFacts",
        "WorkerObserver",
        "WorkerPulse",
    ),
    "toolpool.workers.tool": ("Tool", "tool"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import each name on first use.

    So the command line starts fast, and a worker's children never load the dispatching side.
    """
    from importlib import import_module

    if name == "__version__":
        return import_module("toolpool.contract.version").VERSION
    if name not in _HOME_OF:
        raise AttributeError(f"module 'toolpool' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


__all__ = [
    "Alert",
    "Allow",
    "Approval",
    "ApprovalRefused",
    "AskApproval",
    "Audit",
    "Blocked",
    "BrokerUnreachable",
    "CallFacts",
    "CatalogEmpty",
    "Code",
    "CommandRejected",
    "Conversation",
    "CorrectionFailed",
    "Deny",
    "Dispatcher",
    "Ended",
    "ErrorType",
    "Event",
    "Executed",
    "HookFailure",
    "Hooks",
    "InvalidResponse",
    "LeftBehind",
    "Loop",
    "Metrics",
    "Misconfigured",
    "NeedsSignIn",
    "Observer",
    "OpenTelemetry",
    "Preview",
    "Progressed",
    "ProposedCall",
    "Pulse",
    "Received",
    "Rejected",
    "Replace",
    "Rewrite",
    "RunEnded",
    "RunFacts",
    "Sentry",
    "ServerError",
    "ServerUnavailable",
    "ServerUnsuitable",
    "SessionRecord",
    "Settings",
    "SigningKeyMissing",
    "State",
    "SwitchChanged",
    "SyncDispatcher",
    "Tool",
    "ToolContext",
    "ToolDeclarationInvalid",
    "ToolError",
    "ToolResult",
    "ToolSpec",
    "ToolpoolError",
    "ToolsUnimportable",
    "TurnResult",
    "UnreadableResponse",
    "Unresolved",
    "WorkerFacts",
    "WorkerObserver",
    "WorkerPulse",
    "__version__",
    "anthropic_model",
    "converse",
    "openai_model",
    "openai_responses_model",
    "tool",
]
