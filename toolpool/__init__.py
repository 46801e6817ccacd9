"""toolpool: runs an LLM's tool calls on Celery workers, with one classified result for every call."""

from typing import TYPE_CHECKING, Any

from contract.errors import (
    BrokerUnreachable,
    CatalogEmpty,
    Misconfigured,
    ServerUnsuitable,
    SigningKeyMissing,
    ToolDeclarationInvalid,
    ToolError,
    ToolpoolError,
    ToolsUnimportable,
)
from contract.outcome import Code, ErrorType, Executed
from contract.result import ToolResult
from contract.settings import Settings
from contract.version import VERSION as __version__
from workers.context import ToolContext
from workers.tool import Tool, tool

if TYPE_CHECKING:
    from dispatcher.turn import TurnResult
    from toolpool.pool import Dispatcher
    from toolpool.sync import SyncDispatcher

_LATER = {
    "Dispatcher": "toolpool.pool",
    "SyncDispatcher": "toolpool.sync",
    "TurnResult": "dispatcher.turn",
}


def __getattr__(name: str) -> Any:
    """Import the dispatching side only where it is used: a worker's children never need it."""
    if name not in _LATER:
        raise AttributeError(f"module 'toolpool' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)


__all__ = [
    "BrokerUnreachable",
    "CatalogEmpty",
    "Code",
    "Dispatcher",
    "ErrorType",
    "Executed",
    "Misconfigured",
    "ServerUnsuitable",
    "Settings",
    "SigningKeyMissing",
    "SyncDispatcher",
    "Tool",
    "ToolContext",
    "ToolDeclarationInvalid",
    "ToolError",
    "ToolResult",
    "ToolpoolError",
    "ToolsUnimportable",
    "TurnResult",
    "__version__",
    "tool",
]
