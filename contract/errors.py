"""One error tree.

ToolpoolError
├── Misconfigured              the set-up is wrong; raised in the caller, says how to fix it
│   ├── ToolDeclarationInvalid     a @tool function or its schema cannot be used
│   ├── ToolsUnimportable          a tools module cannot be loaded
│   ├── SigningKeyMissing          messages could not be signed or verified
│   ├── ServerUnsuitable           Redis is too old, evicts keys or is a Cluster
│   ├── BrokerUnreachable          no Redis or broker answers at the URL
│   └── CatalogEmpty               no worker has published a tool
├── InvalidResponse            what was dispatched cannot be a model's response
├── UnreadableResponse         a response without calls that could be answered one by one
├── ServerUnavailable          the Redis server did not confirm a step in time
├── MessageRejected            bytes from the network that are not ours, or not whole
├── ApprovalRefused            a person's decision about a call cannot be taken
└── ToolError                  raised by a tool: it ran, and reports failure to the model
    └── NeedsSignIn                by a tool, or by what knows its secrets: the user has to sign in

What a model gets wrong is never an exception: it is a `ToolResult`.
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

    `explained` also has the text of what the module raised, which may hold a secret: it is for
    whoever started the process, and for no log.
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


class ServerUnavailable(ToolpoolError):
    """Raised when the Redis server did not confirm a step: it is away, or full.

    `sent` says whether the step was sent at all: only then may it have happened nevertheless.
    """

    def __init__(self, step: str, *, sent: bool, reason: str = "in time") -> None:
        super().__init__(f"the server did not confirm {step!r} {reason}")
        self.sent = sent


class CatalogEmpty(Misconfigured):
    """Raised when no worker has published a tool within the time to wait for one."""


class InvalidResponse(ToolpoolError, ValueError):
    """Raised when the host passes what no model can have sent: None, a coroutine, a number ..."""


class MessageRejected(ToolpoolError):
    """Raised when bytes cannot be accepted: malformed, unsigned, foreign, too large or too new.

    `reason` is a short word for counters; the text never holds the payload.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ApprovalRefused(ToolpoolError):
    """Raised when a decision about a call cannot be taken; the message says why.

    `reason` is `decided` (somebody did before, or its time is over), `not_allowed` (it is not for
    this person to decide) or `other_arguments`.
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
    """Raised where a call can do nothing before its user has signed in, at `url` if there is one.

    By what resolves secrets, for a user whose it does not have; by a tool, where the API behind it
    does not take the secret any more. The model and the host are shown the URL, and records keep
    it: it must hold nothing that is secret.
    """

    def __init__(self, url: str | None = None, message: str = "sign-in is needed") -> None:
        super().__init__(message)
        self.url = url
