"""The `@tool` decorator: one declaration serves validator, model, worker and docs."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, overload

import msgspec
from typing_extensions import ParamSpec, TypeVar

from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.rates import RatePer
from toolpool.contract.schema.object_fields import NO_OBJECT, takes_objects
from toolpool.contract.spec import (
    BACKGROUND_TIMEOUT,
    DEFAULT_TIMEOUT,
    Effects,
    ToolSpec,
    sealed,
)
from toolpool.workers.docstring import Docstring, read_docstring
from toolpool.workers.returns import Returns, returns_of
from toolpool.workers.signature import Signature
from toolpool.workers.tool_options import (
    offered_options,
    rate_options,
    require_choice,
    require_names,
    require_one_result,
    require_plain,
    require_times,
    require_values,
    run_in_of,
    scope_options,
    secret_names,
    shared_options,
    text_options,
)

# A bare `Tool` accepts any signature (PEP 696).
P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)
Check = Callable[..., object]


class Tool(Generic[P, R]):
    """A declared tool: its spec, its signature, and the function itself, which stays callable."""

    def __init__(
        self,
        function: Callable[P, R],
        spec: ToolSpec,
        signature: Signature,
        checks: tuple[Check, ...] = (),
        returns: Returns | None = None,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self.function = function
        self.spec = spec
        self.signature = signature
        self.checks = checks
        self.returns = returns
        self.secrets = secrets
        self.__name__ = spec.name
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    @property
    def name(self) -> str:
        """The name that the model uses."""
        return self.spec.name

    @property
    def is_coroutine(self) -> bool:
        """Whether the function is `async def`."""
        return inspect.iscoroutinefunction(self.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as in its own tests."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.spec.name} ({self.spec.run_in.value}) from {self.__module__}>"


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    title: str | None = None,
    input: Literal["text"] | None = None,
    grammar: tuple[Literal["lark", "regex"], str] | None = None,
    input_schema: dict[str, Any] | None = None,
    output_schema: dict[str, Any] | Literal[False] | None = None,
    timeout: float | None = None,
    heartbeat: float | None = None,
    effects: Literal["read", "write"] | None = None,
    idempotent: bool = False,
    exclusive: bool = False,
    approval: bool = False,
    version: str | None = None,
    run_in: Literal["loop", "thread", "process"] | None = None,
    queue: str = "default",
    background: bool = False,
    max_output: int = 65_536,
    recommendations: Sequence[str] = (),
    secrets: Sequence[str] = (),
    check: Check | Sequence[Check] = (),
    validate: Literal["on", "off"] = "on",
    repair: bool = True,
    concurrency: int | None = None,
    concurrency_scope: Literal["dispatcher", "fleet"] = "dispatcher",
    rate: str | None = None,
    rate_per: Literal["fleet", "tenant", "session"] = "fleet",
    retries: int = 0,
    single_flight: bool = False,
    cache_seconds: float | None = None,
    strict: bool = False,
    defer_loading: bool = False,
    allowed_callers: Sequence[str] = (),
    input_examples: Sequence[dict[str, Any]] = (),
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a function as a tool.

    `async def` runs on the worker's event loop; `def` runs in a child process, or in a thread with
    `run_in="thread"`, which declares it thread-safe although it cannot be killed there. `timeout`
    is in seconds from when the tool begins: 60 by default, a day for a `background` tool, whose
    caller gets a handle if it does not end soon. A call without a sign of life (`ctx.progress` or
    `ctx.heartbeat`) for `heartbeat` seconds is ended like one at its timeout; not checked by
    default.

    `effects="read"` may be run again after a lost worker; `effects="write"` never is, and orders
    its turn; undeclared effects are never run again. A run continues while Redis is away; an
    `exclusive` one is stopped if its worker cannot renew its lease, so that there is never a second
    run beside it. A call of a tool with `approval` waits until a person approves it. An approval is
    bound to the tool's input schema, effects, secrets and `version`: change the version when the
    same arguments begin to do something else.

    Equal calls of a `single_flight` read that are in flight at once share one run in the whole
    fleet; with `cache_seconds` a successful result is also reused for that long. Calls are equal if
    they have the same tenant, tool version and arguments and, if the function has a `ToolContext`,
    the same session and host context.

    With `input_schema` (raw JSON Schema) the function takes the validated arguments as keywords or
    as one `arguments` dict. Each `check` gets the typed arguments as keywords before the tool runs;
    a ValueError or a returned string refuses the call (`validation.arguments`, not executed).

    `rate` limits the starts in any window of its unit (`10/s`, `100/min`, `1000/h`, `5000/day`)
    over the whole fleet, or with `rate_per` for each tenant or session. Calls above the limit wait
    or are refused (TOOLPOOL_RATE_LIMIT_ACTION). `concurrency` limits the calls that run at once:
    per dispatcher, or with `concurrency_scope` in the whole fleet.

    `secrets` names secrets that the tool reads from its `ToolContext`, for the call's user. They
    are resolved before the tool begins; a call that lacks one is answered without being run.

    `input="text"` is for a function with one text parameter: providers with custom tools (OpenAI)
    let the model write it as free text instead of JSON, optionally constrained by a `grammar`,
    `("lark", …)` or `("regex", …)`; others are offered a tool with one argument.

    A result that breaks `output_schema`, by default that of the return annotation, is
    `runtime.bad_result`; False allows any. `title`, `strict`, `defer_loading`, `allowed_callers`
    and `input_examples` are passed to providers that support them. Parameter descriptions in a
    docstring section `Args:` (Google) or `Parameters` (NumPy) go into the schema.

    Raises `ToolDeclarationInvalid` with the reason if the tool could not work.
    """
    if function is not None:
        return _declare(function)
    return lambda decorated: _declare(decorated, **options)


def _declare(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    input: str | None = None,
    grammar: Any = None,
    input_schema: dict[str, Any] | None = None,
    output_schema: Any = None,
    run_in: str | None = None,
    queue: str = "default",
    effects: str | None = None,
    recommendations: Sequence[str] = (),
    secrets: Sequence[str] = (),
    check: Check | Sequence[Check] = (),
    validate: Literal["on", "off"] = "on",
    timeout: float | None = None,
    heartbeat: float | None = None,
    background: bool = False,
    exclusive: bool = False,
    rate: Any = None,
    rate_per: Any = RatePer.FLEET,
    concurrency_scope: Any = "dispatcher",
    approval: bool = False,
    version: str | None = None,
    single_flight: bool = False,
    cache_seconds: float | None = None,
    **options: Any,
) -> Tool:
    tool_name = name or str(getattr(function, "__name__", ""))
    where = f"tool {tool_name!r} in {getattr(function, '__module__', '?')}"
    if not inspect.isroutine(function):
        raise ToolDeclarationInvalid(f"{where}: @tool goes on a function")
    require_names(tool_name, queue, where)
    require_one_result(function, where)
    require_choice("effects", effects, ("read", "write"), where)
    require_choice("run_in", run_in, ("loop", "thread", "process"), where)
    require_choice("validate", validate, ("on", "off"), where)
    signature = Signature(function, where=where, input_schema=input_schema)
    doc = _documented(function, signature, input_schema)
    schema = signature.json_schema(doc.parameters) if input_schema is None else input_schema
    if not takes_objects(schema):
        raise ToolDeclarationInvalid(f"{where}: {NO_OBJECT}")
    shown = schema if validate == "on" or input_schema is not None else None
    returns = returns_of(signature.returned, output_schema, where)
    if timeout is None:
        timeout = BACKGROUND_TIMEOUT if background else DEFAULT_TIMEOUT
    named = secret_names(secrets, signature, where)
    try:
        spec = ToolSpec(
            name=tool_name,
            queue=queue,
            description=doc.text if description is None else description,
            input_schema=shown,
            output_schema=msgspec.UNSET if returns is None else returns.schema,
            run_in=run_in_of(function, run_in, where, exclusive=exclusive),
            effects=Effects(effects) if effects is not None else None,
            recommendations=tuple(recommendations),
            check_schema=validate == "on",
            injected=signature.injected,
            background=background,
            timeout=float(timeout),  # 20 and 20.0 must have the same digest
            heartbeat=msgspec.UNSET if heartbeat is None else float(heartbeat),
            exclusive=True if exclusive else msgspec.UNSET,
            **rate_options(rate, rate_per, where),
            **scope_options(concurrency_scope, options.get("concurrency"), where),
            approval=True if approval else msgspec.UNSET,
            version=msgspec.UNSET if version is None else version,
            **shared_options(
                single_flight=single_flight,
                cache_seconds=cache_seconds,
                effects=effects,
                runs_alone={"background": background, "approval": approval},
                where=where,
            ),
            secrets=named or msgspec.UNSET,
            **text_options(input, grammar, schema, where),
            **offered_options(options, shown, where),
        )
    except (ValueError, TypeError) as error:
        raise ToolDeclarationInvalid(f"{where}: {error}") from None
    require_values(spec, where)
    require_times(spec.timeout, heartbeat, signature, where)
    checks = (check,) if callable(check) else tuple(check)
    require_plain(checks, where)
    return Tool(function, sealed(spec), signature, checks, returns, named)


def _documented(
    function: Callable[..., Any], signature: Signature, input_schema: dict[str, Any] | None
) -> Docstring:
    """The parsed docstring.

    With a raw schema, which has its own descriptions, the docstring is not parsed.
    """
    text = inspect.getdoc(function) or ""
    if input_schema is not None:
        return Docstring(text, {})
    return read_docstring(text, (*signature.names, *signature.injected))
