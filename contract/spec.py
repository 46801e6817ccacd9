"""A tool as workers publish it: its name, schema, execution mode and permissions."""

from enum import StrEnum
from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.rates import Rate, RatePer, rate_of
from toolpool.contract.schema.annotations import without_annotations

DEFAULT_TIMEOUT = 60.0
BACKGROUND_TIMEOUT = 86_400.0
"""For how many seconds a tool may run, unless it declares another time."""
CATALOG_TTL_SECONDS = 604_800
"""How long a published tool outlives the last worker that had it."""


class RunIn(StrEnum):
    """Where a tool's code runs inside a worker."""

    LOOP = "loop"  # a coroutine on the worker's event loop
    THREAD = "thread"
    PROCESS = "process"  # a child process that can be killed


BATCH_CALLS = {RunIn.LOOP: 128, RunIn.THREAD: 64, RunIn.PROCESS: 32}
"""The most calls that one message carries, by how they run: the longer each takes, the fewer."""


class Effects(StrEnum):
    """What a tool does to the outside world. Undeclared effects are `None`."""

    READ = "read"
    WRITE = "write"


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One tool as workers publish it and dispatchers use it.

    `input_schema` is JSON Schema (None accepts any object). `timeout` is in seconds from when the
    tool begins, `heartbeat` the longest time without a sign of life in seconds, `max_output` in
    bytes; `retries` counts attempts by the pool beyond the first. An `exclusive` tool is stopped if
    its worker can no longer be sure that no other worker runs the call. `text_parameter` is the one
    argument of a free-text tool, `text_format` the grammar of that text. `output_schema` is the
    JSON Schema of its results. `title`, `strict`, `defer_loading`, `allowed_callers` and
    `input_examples` are passed to providers that support them. `rate` limits its starts, as
    `100/min`, counted per `rate_per` (UNSET: the fleet). `concurrency` applies to each dispatcher,
    or to the fleet if `concurrency_scope` is `fleet`. Equal calls of a `single_flight` tool share a
    run, and its result is reused for `cache_seconds`. `version` is the author's version of the
    tool's behaviour: a policy verdict is bound to it. UNSET fields are not encoded, so that a tool
    without them keeps the digest of older versions.
    """

    name: str
    description: str = ""
    input_schema: dict[str, Any] | None = None
    run_in: RunIn = RunIn.LOOP
    effects: Effects | None = None
    idempotent: bool = False
    timeout: float = DEFAULT_TIMEOUT
    queue: str = "default"
    background: bool = False
    max_output: int = 65_536
    recommendations: tuple[str, ...] = ()
    check_schema: bool = True
    repair: bool = True
    concurrency: int | None = None
    retries: int = 0
    injected: tuple[str, ...] = ()
    heartbeat: float | msgspec.UnsetType = msgspec.UNSET
    exclusive: bool | msgspec.UnsetType = msgspec.UNSET
    text_parameter: str | msgspec.UnsetType = msgspec.UNSET
    text_format: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    output_schema: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    title: str | msgspec.UnsetType = msgspec.UNSET
    strict: bool | msgspec.UnsetType = msgspec.UNSET
    defer_loading: bool | msgspec.UnsetType = msgspec.UNSET
    allowed_callers: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    input_examples: tuple[dict[str, Any], ...] | msgspec.UnsetType = msgspec.UNSET
    rate: str | msgspec.UnsetType = msgspec.UNSET
    rate_per: str | msgspec.UnsetType = msgspec.UNSET
    concurrency_scope: str | msgspec.UnsetType = msgspec.UNSET
    approval: bool | msgspec.UnsetType = msgspec.UNSET
    single_flight: bool | msgspec.UnsetType = msgspec.UNSET
    cache_seconds: float | msgspec.UnsetType = msgspec.UNSET
    secrets: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    version: str | msgspec.UnsetType = msgspec.UNSET
    digest: str = ""

    @property
    def bound_digest(self) -> str:
        """The digest of a tool that approvals and policy verdicts are bound to.

        It covers how arguments are read, the effects, the secrets used and the author's version;
        not the descriptions.
        """
        schema = without_annotations(self.input_schema)
        return encoding.digest([schema, self.effects, self.secrets or (), self.version or ""])

    @property
    def silence(self) -> float | None:
        """The longest time without a sign of life in seconds; None if it is not watched."""
        return None if self.heartbeat is msgspec.UNSET else self.heartbeat

    @property
    def is_exclusive(self) -> bool:
        """Whether a run is stopped when its worker's lease is lost."""
        return self.exclusive is True

    @property
    def is_shared(self) -> bool:
        """Whether equal calls may share a run; only foreground reads may."""
        is_declared = self.single_flight is True or self.cache_seconds is not msgspec.UNSET
        return is_declared and self.effects is Effects.READ and not self.background

    @property
    def cached_for(self) -> float:
        """Seconds for which a result is reused for equal calls; 0.0 if it is not cached."""
        return 0.0 if self.cache_seconds is msgspec.UNSET else max(0.0, self.cache_seconds)

    @property
    def limit(self) -> tuple[Rate, RatePer] | None:
        """The rate limit and its scope; None without a rate limit.

        Raises ValueError for a rate or scope that this version does not know.
        """
        if self.rate is msgspec.UNSET:
            return None
        per = RatePer.FLEET if self.rate_per is msgspec.UNSET else RatePer(self.rate_per)
        return rate_of(self.rate), per

    @property
    def at_once(self) -> int | None:
        """How many of its calls may run at once in the fleet; None if not limited.

        Raises ValueError for a scope that this version does not know.
        """
        if self.concurrency_scope is msgspec.UNSET:
            return None
        if self.concurrency_scope != "fleet":
            raise ValueError(f"concurrency_scope={self.concurrency_scope!r}")
        return self.concurrency

    @property
    def text_input(self) -> str | None:
        """The argument that takes a free-text call's input; None for a tool with JSON arguments."""
        return None if self.text_parameter is msgspec.UNSET else self.text_parameter

    @property
    def rerunnable(self) -> bool:
        """Whether a second start does no harm: a read, or declared idempotent."""
        return self.idempotent or self.effects is Effects.READ


def sealed(spec: ToolSpec) -> ToolSpec:
    """`spec` with its digest, which changes with anything that callers could notice."""
    bare = msgspec.structs.replace(spec, digest="")
    return msgspec.structs.replace(spec, digest=encoding.digest(bare))
