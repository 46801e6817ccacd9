"""toolpool: runs LLM tool calls on Celery workers, with one classified result for every call.

Only the names that this module exports are public. `toolpool.contract`, `toolpool.dispatcher` and
`toolpool.workers` are private: names in them change without notice.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolpool.adapters.anthropic import anthropic_tools as anthropic_tools
    from toolpool.adapters.langchain import langchain_tool as langchain_tool
    from toolpool.adapters.langgraph import langgraph_tool_node as langgraph_tool_node
    from toolpool.adapters.openai_agents import (
        openai_agents_tool as openai_agents_tool,
        openai_agents_tools as openai_agents_tools,
    )
    from toolpool.adapters.pydantic_ai import (
        pydantic_ai_tool as pydantic_ai_tool,
        pydantic_ai_toolset as pydantic_ai_toolset,
    )
    from toolpool.contract.errors import (
        ApprovalRefused as ApprovalRefused,
        BrokerUnreachable as BrokerUnreachable,
        CatalogEmpty as CatalogEmpty,
        CommandRejected as CommandRejected,
        InvalidResponse as InvalidResponse,
        Misconfigured as Misconfigured,
        NeedsSignIn as NeedsSignIn,
        PackageMissing as PackageMissing,
        ServerError as ServerError,
        ServerUnavailable as ServerUnavailable,
        ServerUnsuitable as ServerUnsuitable,
        SigningKeyMissing as SigningKeyMissing,
        ToolDeclarationInvalid as ToolDeclarationInvalid,
        ToolError as ToolError,
        ToolpoolError as ToolpoolError,
        ToolsUnimportable as ToolsUnimportable,
    )
    from toolpool.contract.outcome import Code as Code, ErrorType as ErrorType, Executed as Executed
    from toolpool.contract.result import State as State, ToolResult as ToolResult
    from toolpool.contract.settings import Settings as Settings
    from toolpool.contract.spec import ToolSpec as ToolSpec
    from toolpool.contract.version import VERSION as __version__
    from toolpool.conversation import (
        Conversation as Conversation,
        CorrectionFailed as CorrectionFailed,
        anthropic_model as anthropic_model,
        converse as converse,
        openai_model as openai_model,
        openai_responses_model as openai_responses_model,
    )
    from toolpool.dispatcher.events import Event as Event
    from toolpool.dispatcher.formats.response_reader import UnreadableResponse as UnreadableResponse
    from toolpool.dispatcher.observer import (
        Alert as Alert,
        Audit as Audit,
        CallFacts as CallFacts,
        Ended as Ended,
        HookFailure as HookFailure,
        Loop as Loop,
        Observer as Observer,
        Progressed as Progressed,
        Pulse as Pulse,
        Rejected as Rejected,
        SwitchChanged as SwitchChanged,
    )
    from toolpool.dispatcher.observers.metrics import Metrics as Metrics
    from toolpool.dispatcher.observers.otel import OpenTelemetry as OpenTelemetry
    from toolpool.dispatcher.observers.sentry import Sentry as Sentry
    from toolpool.dispatcher.observers.session_record import SessionRecord as SessionRecord
    from toolpool.dispatcher.policy.approval_view import Approval as Approval
    from toolpool.dispatcher.policy.hooks import Hooks as Hooks
    from toolpool.dispatcher.policy.verdict_types import (
        Allow as Allow,
        AskApproval as AskApproval,
        Deny as Deny,
        Preview as Preview,
        ProposedCall as ProposedCall,
        Replace as Replace,
        Rewrite as Rewrite,
    )
    from toolpool.dispatcher.turn_result import TurnResult as TurnResult
    from toolpool.pool import Dispatcher as Dispatcher
    from toolpool.sync import SyncDispatcher as SyncDispatcher
    from toolpool.workers.context import ToolContext as ToolContext
    from toolpool.workers.lifespan import lifespan as lifespan
    from toolpool.workers.tool import Tool as Tool, tool as tool
    from toolpool.workers.worker_observer import (
        Blocked as Blocked,
        LeftBehind as LeftBehind,
        Received as Received,
        RunEnded as RunEnded,
        RunFacts as RunFacts,
        Unresolved as Unresolved,
        WorkerFacts as WorkerFacts,
        WorkerObserver as WorkerObserver,
        WorkerPulse as WorkerPulse,
    )

_HOMES = {
    "toolpool.adapters.anthropic": ("anthropic_tools",),
    "toolpool.adapters.langchain": ("langchain_tool",),
    "toolpool.adapters.langgraph": ("langgraph_tool_node",),
    "toolpool.adapters.openai_agents": ("openai_agents_tool", "openai_agents_tools"),
    "toolpool.adapters.pydantic_ai": ("pydantic_ai_tool", "pydantic_ai_toolset"),
    "toolpool.contract.errors": (
        "ApprovalRefused",
        "BrokerUnreachable",
        "CatalogEmpty",
        "CommandRejected",
        "InvalidResponse",
        "Misconfigured",
        "NeedsSignIn",
        "PackageMissing",
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
    "toolpool.conversation": (
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
    "toolpool.workers.lifespan": ("lifespan",),
    "toolpool.workers.tool": ("Tool", "tool"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    """Import each name on first use.

    So the command line starts fast, and a worker's children never load the dispatching side.
    """
    from importlib import import_module

    if name == "__version__":
        return import_module("toolpool.contract.version").VERSION
    if name not in _HOME_OF:
        raise AttributeError(f"module 'toolpool' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOME_OF[name]), name)
    except ModuleNotFoundError as error:
        from toolpool.contract.importing import require_package

        require_package((error.name or "").partition(".")[0], f"toolpool.{name}")
        raise
