"""One error tree.

ToolpoolError
├── Misconfigured              the set-up is wrong; raised in the caller, says how to fix it
│   ├── ToolDeclarationInvalid     a @tool function or its schema cannot be used
│   ├── ToolsUnimportable          a tools module cannot be loaded
│   ├── SigningKeyMissing          messages could not be signed or verified
│   ├── ServerUnsuitable           Redis is too old, evicts keys or is a Cluster
│   ├── BrokerUnreachable          no Redis or broker answers at the URL
│   ├── PackageMissing             an optional package is not installed
│   └── CatalogEmpty               no worker has published a tool
├── InvalidResponse            the dispatched value is not a model response
├── UnreadableResponse         the response has no calls that could be answered one by one
├── ServerError                the Redis server did not do what it was asked
│   ├── ServerUnavailable          it did not confirm a step in time, or takes no writes
│   └── CommandRejected            it rejects the command, as for a missing permission
├── MessageRejected            bytes from the network are foreign or damaged
├── ApprovalRefused            a decision about a call is not accepted
└── ToolError                  raised by a tool: it ran, and reports failure to the model
    └── NeedsSignIn                raised by a tool or a credential resolver: the user must sign in

A model's mistake is never an exception: it is a `ToolResult`.
"""

from collections.abc import Sequence


class ToolpoolError(Exception):
    """Base of every error toolpool raises."""


class Misconfigured(ToolpoolError):
    """Raised when the set-up is wrong; the message says how to fix it."""


class ToolDeclarationInvalid(Misconfigured):
    """Raised when a `@tool` function, its signature or its schema cannot be used."""


class ToolsUnimportable(Misconfigured):
    """Raised when a tools module does not exist or fails while it is imported.

    `explained` includes the text of the module's exception, which may hold a secret: show it to the
    user who started the process and do not log it.
    """

    def __init__(self, message: str, explained: str = "") -> None:
        super().__init__(message)
        self.explained = explained or message


class SigningKeyMissing(Misconfigured):
    """Raised when a network Redis is used without `TOOLPOOL_SIGNING_KEY`."""


class ServerUnsuitable(Misconfigured):
    """Raised when the Redis server is too old, evicts keys, or is a Cluster."""


class BrokerUnreachable(Misconfigured):
    """Raised when no server answers at the configured URL within the connect timeout."""


class PackageMissing(Misconfigured, ImportError):
    """Raised when a feature needs a package that is not installed; the message names the extra."""


class ServerError(ToolpoolError):
    """Base of the errors raised when the Redis server did not do what it was asked."""


class ServerUnavailable(ServerError):
    """Raised when the Redis server did not confirm a step, because it is unreachable or full.

    `sent` says whether the step was sent; if so, it may have been executed.
    """

    def __init__(self, step: str, *, sent: bool, reason: str = "in time") -> None:
        super().__init__(f"the server did not confirm {step!r} {reason}")
        self.sent, self.reason = sent, reason


class CommandRejected(ServerError):
    """Raised when the Redis server rejects a command, for example because a right is missing."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"the server rejected {step!r} ({reason})")


class CatalogEmpty(Misconfigured):
    """Raised when no worker has published a tool within the time to wait for one."""


class InvalidResponse(ToolpoolError, ValueError):
    """Raised when the host passes something that is not a model response, such as None."""


class MessageRejected(ToolpoolError):
    """Raised when bytes are rejected: malformed, unsigned, foreign, too large or too new.

    `reason` is one word for counters; the message never contains the payload.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ApprovalRefused(ToolpoolError):
    """Raised when a person's decision about a call is refused; the message says why.

    `reason` is `decided` (already decided, or expired), `not_allowed` (this person may not decide)
    or `other_arguments`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ToolError(ToolpoolError):
    """Raised by a tool to report a failure that the model should read (`logical.reported`).

    `recommendations` are shown to the model in place of the generated ones; `retry_after` is in
    seconds.
    """

    def __init__(
        self,
        message: str,
        *,
        recommendations: Sequence[str] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        one = isinstance(recommendations, str)
        self.recommendations = (recommendations,) if one else tuple(recommendations)
        self.retry_after = retry_after


class NeedsSignIn(ToolError):
    """Raised when a call needs its user to sign in, at `url` if there is one.

    A credential resolver raises it for a user without a credential, a tool when its API rejects the
    credential. The model and the host see the URL, and records keep it: it must not contain
    secrets.
    """

    def __init__(self, url: str | None = None, message: str = "sign-in is needed") -> None:
        super().__init__(message)
        self.url = url
