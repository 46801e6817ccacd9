"""Validates options of `@tool` and converts them for the spec."""

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.rates import RatePer, rate_of
from toolpool.contract.redis_keys import TASK_TOOLS, is_queue, is_secret
from toolpool.contract.schema.strict import OPENAI, NotStrict, strict_schema
from toolpool.contract.schema.suggestions import closest
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.contract.spec import Effects, RunIn, ToolSpec
from toolpool.workers.signature import Signature

_CALLER = re.compile(r"direct|programmatic|code_execution_\d{8}")
_UNSAID: dict[str, Any] = {
    "title": None,
    "strict": False,
    "defer_loading": False,
    "allowed_callers": (),
    "input_examples": (),
}


def offered_options(
    options: Mapping[str, Any], schema: dict[str, Any] | None, where: str
) -> dict[str, Any]:
    """`options` with the provider options in the spec's form, without defaults.

    `schema` is the tool's input schema. Raises `ToolDeclarationInvalid` with the option's name.
    """
    told = {name: options.get(name, unsaid) for name, unsaid in _UNSAID.items()}
    for name in ("strict", "defer_loading"):
        if not isinstance(told[name], bool):
            raise ToolDeclarationInvalid(f"{where}: {name} is True or False, not {told[name]!r}")
    title = told["title"]
    if title is not None and not (isinstance(title, str) and title.strip()):
        raise ToolDeclarationInvalid(f"{where}: title is a text for people, not {title!r}")
    told["allowed_callers"] = _callers(told["allowed_callers"], where)
    told["input_examples"] = _examples(told["input_examples"], schema, where)
    if told["strict"]:
        _require_strict(schema, where)
    others = {name: value for name, value in options.items() if name not in _UNSAID}
    return others | {name: value for name, value in told.items() if value != _UNSAID[name]}


def _callers(given: Any, where: str) -> tuple[str, ...]:
    callers = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if isinstance(given, str) or not all(
        isinstance(caller, str) and _CALLER.fullmatch(caller) for caller in callers
    ):
        raise ToolDeclarationInvalid(
            f"{where}: allowed_callers is a list of 'direct', 'programmatic' (OpenAI) and "
            f"'code_execution_YYYYMMDD' (Anthropic), not {given!r}"
        )
    return tuple(dict.fromkeys(callers))


def _examples(given: Any, schema: dict[str, Any] | None, where: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(given, (list, tuple)) or not all(
        isinstance(example, dict) and encoding.is_json(example) for example in given
    ):
        raise ToolDeclarationInvalid(
            f"{where}: input_examples is a list of arguments, each a dict that JSON can hold"
        )
    if given and schema is not None:
        try:
            validator = SchemaValidator(schema)
        except ToolDeclarationInvalid as error:
            raise ToolDeclarationInvalid(f"{where}: {error}") from None
        for number, example in enumerate(given, 1):
            problems = validator.problems(example)
            if problems:
                at = ".".join(map(str, problems[0].path)) or "the example as a whole"
                raise ToolDeclarationInvalid(
                    f"{where}: example {number} of input_examples does not fit the tool's schema, "
                    f"first at {at} ({problems[0].kind})"
                )
    return tuple(given)


def _require_strict(schema: dict[str, Any] | None, where: str) -> None:
    if schema is None:
        raise ToolDeclarationInvalid(f"{where}: strict=True needs a schema, and validate is off")
    try:
        strict_schema(schema, OPENAI)
    except NotStrict as error:
        raise ToolDeclarationInvalid(
            f"{where}: strict=True is not possible: {error}; change it, or leave strict out"
        ) from None


def rate_options(rate: Any, per: Any, where: str) -> dict[str, Any]:
    """`rate` and `rate_per`, without defaults. Raises `ToolDeclarationInvalid`."""
    scopes = [scope.value for scope in RatePer]
    if per not in scopes:
        known = ", ".join(scopes)
        raise ToolDeclarationInvalid(f"{where}: rate_per is one of {known}, not {per!r}")
    if rate is None:
        if per != RatePer.FLEET:
            raise ToolDeclarationInvalid(f"{where}: rate_per={per!r} needs a rate")
        return {}
    try:
        told: dict[str, Any] = {"rate": str(rate_of(rate))}
    except (ValueError, TypeError) as error:
        raise ToolDeclarationInvalid(f"{where}: rate: {error}") from None
    return told if per == RatePer.FLEET else told | {"rate_per": str(per)}


def scope_options(scope: Any, concurrency: Any, where: str) -> dict[str, Any]:
    """`concurrency_scope`, if it differs from the default.

    Raises `ToolDeclarationInvalid` for an unknown scope, or one without `concurrency`.
    """
    if scope not in ("dispatcher", "fleet"):
        raise ToolDeclarationInvalid(
            f"{where}: concurrency_scope is one of dispatcher, fleet, not {scope!r}"
        )
    if scope == "dispatcher":
        return {}
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise ToolDeclarationInvalid(
            f"{where}: concurrency_scope='fleet' needs concurrency= of at least 1, not "
            f"{concurrency!r}"
        )
    return {"concurrency_scope": scope}


_LONGEST_SECONDS = 31 * 86_400.0


def shared_options(
    *,
    single_flight: Any,
    cache_seconds: Any,
    effects: str | None,
    runs_alone: Mapping[str, bool],
    where: str,
) -> dict[str, Any]:
    """The two options for the spec, without defaults.

    `runs_alone` are the options that give each call its own run. Raises `ToolDeclarationInvalid`.
    """
    if not isinstance(single_flight, bool):
        raise ToolDeclarationInvalid(
            f"{where}: single_flight is True or False, not {single_flight!r}"
        )
    options: dict[str, Any] = {"single_flight": True} if single_flight else {}
    if cache_seconds is not None:
        is_number = isinstance(cache_seconds, (int, float)) and not isinstance(cache_seconds, bool)
        if not is_number or not 0 < cache_seconds <= _LONGEST_SECONDS:
            raise ToolDeclarationInvalid(
                f"{where}: cache_seconds is a number of seconds above 0 and at most "
                f"{_LONGEST_SECONDS:,.0f}, not {cache_seconds!r}"
            )
        options["cache_seconds"] = float(cache_seconds)
    if not options:
        return {}
    named = " and ".join(options)
    if effects != Effects.READ:
        raise ToolDeclarationInvalid(
            f"{where}: {named} requires effects='read': a shared run would perform a write once "
            "for several callers"
        )
    for option, is_on in runs_alone.items():
        if is_on:
            raise ToolDeclarationInvalid(
                f"{where}: {named} does not go with {option}=True, whose calls have a run each"
            )
    return options


_SYNTAXES = ("lark", "regex")


def text_options(input: Any, grammar: Any, schema: dict[str, Any], where: str) -> dict[str, Any]:
    """The spec's fields for a tool with text input; empty for any other tool.

    `schema` is the tool's input schema, whose only property holds the text. Raises
    `ToolDeclarationInvalid`.
    """
    if input not in (None, "text"):
        raise ToolDeclarationInvalid(f"{where}: input is 'text' or left out, not {input!r}")
    if input is None:
        if grammar is not None:
            raise ToolDeclarationInvalid(f"{where}: grammar needs input='text'")
        return {}
    options: dict[str, Any] = {"text_parameter": _parameter(schema, where)}
    if grammar is not None:
        options["text_format"] = _format(grammar, where)
    return options


def _parameter(schema: dict[str, Any], where: str) -> str:
    properties = schema.get("properties")
    named = list(properties.items()) if isinstance(properties, dict) else []
    if len(named) == 1:
        name, inner = named[0]
        is_text = isinstance(inner, dict) and inner.get("type") == "string"
        if is_text and schema.get("required") == [name]:
            return str(name)
    raise ToolDeclarationInvalid(
        f"{where}: input='text' needs one parameter of type str without a default, beside a "
        "ToolContext"
    )


def _format(grammar: Any, where: str) -> dict[str, Any]:
    is_pair = isinstance(grammar, (tuple, list)) and len(grammar) == 2
    syntax, definition = grammar if is_pair else (None, None)
    if syntax not in _SYNTAXES or not isinstance(definition, str) or not definition.strip():
        raise ToolDeclarationInvalid(
            f"{where}: grammar is a pair of 'lark' or 'regex' and the definition"
        )
    return {"type": "grammar", "syntax": syntax, "definition": definition}


def require_choice(option: str, given: Any, choices: Sequence[str], where: str) -> None:
    """Raise `ToolDeclarationInvalid` unless the option is None or one of its choices."""
    if given is None or given in choices:
        return
    near = closest(given, choices) if isinstance(given, str) else None
    hint = f"; did you mean {near!r}?" if near else ""
    raise ToolDeclarationInvalid(
        f"{where}: {option} is one of {', '.join(map(repr, choices))}, not {given!r}{hint}"
    )


def require_names(tool: str, queue: str, where: str) -> None:
    """Raise `ToolDeclarationInvalid` for an unusable name of the tool or its queue."""
    if not tool or len(tool) > 128 or not tool.isprintable() or " " in tool:
        raise ToolDeclarationInvalid(
            f"{where}: a tool's name is 1 to 128 printable characters without spaces"
        )
    if tool in TASK_TOOLS:
        raise ToolDeclarationInvalid(
            f"{where}: the pool has a tool of this name: give it another with @tool(name=…)"
        )
    if not is_queue(queue):
        raise ToolDeclarationInvalid(
            f"{where}: queue={queue!r} is not a queue name: letters, digits, _ and -, 64 at most"
        )


def require_values(spec: ToolSpec, where: str) -> None:
    """Raise `ToolDeclarationInvalid` for a value of another type, or one that is too small.

    Dispatchers decode the spec strictly, and would ignore an invalid one.
    """
    try:
        msgspec.convert(msgspec.to_builtins(spec), ToolSpec)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        wrong, _, option = str(error).partition(" - at `$.")
        name = f"{option.rstrip('`')}: " if option else ""
        raise ToolDeclarationInvalid(f"{where}: {name}{wrong}") from None
    least = {"concurrency": 1, "max_output": 1, "retries": 0}
    for option, smallest in least.items():
        value = getattr(spec, option)
        if value is not None and value < smallest:
            raise ToolDeclarationInvalid(f"{where}: {option} must be {smallest} or more")


def require_times(
    timeout: float, heartbeat: float | None, signature: Signature, where: str
) -> None:
    """Raise `ToolDeclarationInvalid` for a timeout or heartbeat that cannot be enforced."""
    if not 0 < timeout < math.inf:
        raise ToolDeclarationInvalid(f"{where}: timeout must be more than 0 seconds, and finite")
    if heartbeat is None:
        return
    if not 0 < heartbeat < math.inf:
        raise ToolDeclarationInvalid(f"{where}: heartbeat must be more than 0 seconds, and finite")
    if not signature.injected:
        raise ToolDeclarationInvalid(
            f"{where}: heartbeat= needs a parameter of type ToolContext, whose progress() or "
            "heartbeat() gives the sign of life"
        )


def secret_names(given: Any, signature: Signature, where: str) -> tuple[str, ...]:
    """The names of the secrets, without duplicates. Raises `ToolDeclarationInvalid`."""
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if not isinstance(name, str) or not is_secret(name):
            raise ToolDeclarationInvalid(
                f"{where}: {name!r} is not a secret name: use up to 64 letters, digits, _, . and "
                "-, and begin with a letter or digit"
            )
    if names and not signature.injected:
        raise ToolDeclarationInvalid(
            f"{where}: secrets= needs a parameter of type ToolContext, whose secret() gives them"
        )
    return tuple(dict.fromkeys(names))


def require_one_result(function: Callable[..., Any], where: str) -> None:
    """Raise `ToolDeclarationInvalid` for a generator."""
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise ToolDeclarationInvalid(
            f"{where}: it is a generator, and a call has one result: return a list, and report "
            "progress with a ToolContext"
        )


def run_in_of(
    function: Callable[..., Any], asked: str | None, where: str, *, exclusive: bool = False
) -> RunIn:
    """Where the function runs. Raises `ToolDeclarationInvalid` if it cannot run there."""
    is_coroutine = inspect.iscoroutinefunction(function)
    if asked is None:
        return RunIn.LOOP if is_coroutine else RunIn.PROCESS
    run_in = RunIn(asked)
    if run_in is RunIn.LOOP and not is_coroutine:
        raise ToolDeclarationInvalid(
            f"{where}: run_in='loop' needs `async def`: a plain function would block the loop; "
            "use run_in='thread' or leave it out for a child process"
        )
    if run_in is RunIn.THREAD and is_coroutine:
        raise ToolDeclarationInvalid(
            f"{where}: run_in='thread' needs a plain `def`; leave it out to run on the loop"
        )
    if run_in is RunIn.THREAD and exclusive:
        raise ToolDeclarationInvalid(
            f"{where}: exclusive=True does not go with run_in='thread': a thread cannot be stopped "
            "when its worker loses its lease; leave run_in out for a child process"
        )
    return run_in


_NOT_PLAIN = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


def require_plain(checks: Iterable[Callable[..., object]], where: str) -> None:
    """Raises `ToolDeclarationInvalid` for a check that has to be awaited or iterated."""
    for check in checks:
        # An object may have an `async def __call__`.
        functions = (check, getattr(type(check), "__call__", None))  # noqa: B004
        if any(is_other(each) for each in functions for is_other in _NOT_PLAIN):
            raise ToolDeclarationInvalid(
                f"{where}: check= must be a plain function, which is called and not awaited: make "
                "it a `def` that returns None, or a text that says why the call is refused"
            )
