"""A tool function's parameters: their JSON Schema, and typed values from validated JSON."""

import contextlib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaError, SchemaValidator
from pydantic_core.core_schema import (
    CoreSchema,
    DatetimeSchema,
    DefinitionsSchema,
    TimeSchema,
    UrlSchema,
    WithDefaultSchema,
    definitions_schema,
)

from toolpool.contract import encoding
from toolpool.contract.envelope import PolicyVerdict, Switch
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.kill_switches import values_match
from toolpool.contract.outcome import ARGUMENTS_DIFFER
from toolpool.contract.schema.annotations import without
from toolpool.contract.schema.object_fields import fields_of
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.suggestions import closest
from toolpool.workers.context import ToolContext
from toolpool.workers.judged_arguments import (
    argument_differences,
    is_judged,
    is_switched_off,
    with_argument,
)

_FIELD = "p_"  # a parameter called `json` must not shadow a method of the model


_NOTHING: Mapping[str, str] = {}


class ArgumentsRefused(Exception):
    """Raised when arguments do not fit the function's types. `problems` say where and why."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("arguments do not fit")
        self.problems = problems


class ArgumentsDiffer(Exception):
    """Raised when the types read arguments differently than a policy judged them."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("arguments are read in another way than they were judged")
        self.problems = problems


class SwitchedOff(Exception):
    """Raised when a kill switch denies the typed arguments; the message says why."""


class _JsonSchema(GenerateJsonSchema):
    """Shows `default_factory=list` as a default, and only fields that may be sent."""

    _definitions: Sequence[CoreSchema] = ()

    def field_is_present(self, field: Any) -> bool:
        """Whether to show a field; a dataclass's must be a constructor parameter."""
        return field.get("init") is not False and super().field_is_present(field)

    def datetime_schema(self, schema: DatetimeSchema) -> dict[str, Any]:
        """`NaiveDatetime` has no offset, which `date-time` requires."""
        made = super().datetime_schema(schema)
        return _local(made) if schema.get("tz_constraint") == "naive" else made

    def time_schema(self, schema: TimeSchema) -> dict[str, Any]:
        """Python's `time` may lack the UTC offset that JSON Schema's format `time` requires."""
        made = super().time_schema(schema)
        return made if schema.get("tz_constraint") == "aware" else _local(made)

    def url_schema(self, schema: UrlSchema) -> dict[str, Any]:
        """URLs may have international characters, which are encoded when parsed.

        Those with a default host, port or path have a spelling that only the type knows.
        """
        has_defaults = any(schema.get(f"default_{part}") for part in ("host", "port", "path"))
        return {**super().url_schema(schema), "format": "multi-host-uri" if has_defaults else "iri"}

    def get_default_value(self, schema: WithDefaultSchema) -> Any:
        """The default to show."""
        factory = schema.get("default_factory")
        return factory() if factory in (list, dict, set) else super().get_default_value(schema)

    def definitions_schema(self, schema: DefinitionsSchema) -> dict[str, Any]:
        """Also keeps the definitions, to which the schemas of fields refer."""
        self._definitions = schema["definitions"]
        return super().definitions_schema(schema)

    def default_schema(self, schema: WithDefaultSchema) -> dict[str, Any]:
        """Shows a default only if it is read back as itself: a policy fills it in.

        A SecretStr's is shown as asterisks, and that of `Path | str` would become a text.
        """
        made = super().default_schema(schema)
        if "default" in made and not self._is_read_back(schema, made["default"]):
            del made["default"]
        return made

    def _is_read_back(self, schema: WithDefaultSchema, shown: Any) -> bool:
        inner, default = schema["schema"], self.get_default_value(schema)
        try:
            validator = SchemaValidator(definitions_schema(inner, list(self._definitions)))
        except SchemaError:
            return True
        try:
            read = validator.validate_python(shown)
            if type(read) is not type(default):
                default = validator.validate_python(default)
            return type(read) is type(default) and bool(read == default)
        except Exception:  # noqa: BLE001 - validators and comparisons are user code
            return False


def _local(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a local time: OpenAPI's registry has formats without an offset."""
    known = schema.get("format") in ("date-time", "time")
    return {**schema, "format": f"{schema['format']}-local"} if known else schema


class Signature:
    """Binds JSON arguments to a function's parameters.

    With a raw `input_schema` the arguments are passed unchanged: as keywords, or as one dict if the
    function has a single parameter called `arguments`. Raises `ToolDeclarationInvalid` if a
    parameter has no type, cannot be filled from JSON or does not fit the `input_schema`, and for a
    method. `returned` is the return annotation.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        where: str,
        input_schema: dict[str, Any] | None = None,
    ) -> None:
        parameters = _parameters(function, where)
        _require_no_method(function, parameters, where)
        hints = _hints(function, where)
        self.injected = tuple(n for n in parameters if _is_context(hints.get(n)))
        self.returned = hints.get("return")
        named = {n: p for n, p in parameters.items() if n not in self.injected}
        self._takes_dict = input_schema is not None and list(named) == ["arguments"]
        self._takes_any = any(p.kind is p.VAR_KEYWORD for p in named.values())
        self._model: type[BaseModel] | None = None
        self._names: tuple[str, ...] = ()
        fields = {n: p for n, p in named.items() if p.kind is not p.VAR_KEYWORD}
        self._names = tuple(fields)
        self._defaults = {n: p.default for n, p in fields.items() if p.default is not p.empty}
        if input_schema is None:
            _require_types(fields, hints, where)
            self._model = _model(fields, hints, where, open_ended=self._takes_any)
        elif not self._takes_dict:
            _require_fit(input_schema, fields, where, takes_any=self._takes_any)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that the model sends."""
        return self._names

    def json_schema(self, described: Mapping[str, str] = _NOTHING) -> dict[str, Any]:
        """The schema shown to the model: a JSON Schema 2020-12 object, without generated titles.

        `described` adds descriptions to parameters that have none.
        """
        assert self._model is not None
        made = self._model.model_json_schema(schema_generator=_JsonSchema)
        schema = typing.cast(dict[str, Any], without(made, ("title",)))
        properties = schema.setdefault("properties", {})
        for name, text in described.items():
            if name in properties:
                properties[name].setdefault("description", text)
        return schema

    def bind(
        self,
        arguments: dict[str, Any],
        context: ToolContext | None,
        verdict: PolicyVerdict | None = None,
        switches: Sequence[Switch] = (),
    ) -> dict[str, Any]:
        """Keyword arguments for the function, typed and defaulted.

        `context` fills the parameters of its type; None if the function has no such parameter.

        Raises `ArgumentsRefused` if the types reject the values, `SwitchedOff` if one of `switches`
        denies the typed values, and `ArgumentsDiffer` if they differ from what a policy judged.
        """
        bound: dict[str, Any] = dict.fromkeys(self.injected, context)
        if self._takes_dict:
            return bound | {"arguments": arguments}
        if self._model is None:
            return self._keywords(arguments, verdict, switches) | bound
        judged = arguments
        if verdict is not None and (verdict.paths or verdict.is_whole):
            judged = encoding.decode(encoding.encode(arguments))  # validators may change them
        try:
            values = self._model.model_validate(arguments)
        except pydantic.ValidationError as error:
            raise ArgumentsRefused(_problems(error)) from None
        extra = values.__pydantic_extra__ or {}
        # A parameter with an alias has another name in the schema: its own is no option's.
        if extra and (given := extra.keys() & {*self.injected, *self._names}):
            raise _unknown(given)
        for switch in switches:
            if is_switched_off(values, _FIELD + str(switch.argument), switch.value):
                raise SwitchedOff(switch.reason)
        if verdict is not None and (problems := argument_differences(judged, values, verdict)):
            raise ArgumentsDiffer(problems)
        for name in self._names:
            bound[name] = getattr(values, _FIELD + name)
        return bound | extra

    def can_read(self, argument: str, value: Any) -> bool:
        """Whether the type of an argument accepts a value, or a list of it; True if it has none."""
        if self._model is None or _FIELD + argument not in self._model.model_fields:
            return True
        for each in (value, [value]):
            with contextlib.suppress(Exception):  # validators are user code
                with_argument(self._model.model_construct(), _FIELD + argument, each)
                return True
        return False

    def _keywords(
        self,
        arguments: dict[str, Any],
        verdict: PolicyVerdict | None,
        switches: Sequence[Switch],
    ) -> dict[str, Any]:
        """The arguments of a raw schema, which may allow fields that it does not name.

        Raises `ArgumentsRefused` for arguments that the function does not take. For parameters
        whose default is not in the schema, raises `SwitchedOff` if a switch denies the default and
        `ArgumentsDiffer` if a rule compares it.
        """
        unknown = {n for n in arguments if n in self.injected or n not in self._names}
        if self._takes_any:
            unknown &= set(self.injected)
        if unknown:
            raise _unknown(unknown)
        left_out = self._defaults.keys() - arguments.keys()
        for switch in switches:
            if switch.argument in left_out and values_match(
                switch.value, self._defaults[switch.argument]
            ):
                raise SwitchedOff(switch.reason)
        if verdict is not None and verdict.paths:
            added = [(name,) for name in left_out if self._defaults[name] is not None]
            if paths := [path for path in added if is_judged(path, verdict)]:
                raise ArgumentsDiffer(tuple(Problem(path, ARGUMENTS_DIFFER) for path in paths))
        return arguments


def _unknown(names: Iterable[str]) -> ArgumentsRefused:
    kind = _KINDS["extra_forbidden"]
    return ArgumentsRefused(tuple(Problem((name,), kind) for name in sorted(names)))


def _parameters(function: Callable[..., Any], where: str) -> dict[str, inspect.Parameter]:
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise ToolDeclarationInvalid(f"{where}: its signature cannot be read: {error}") from None
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ToolDeclarationInvalid(
                f"{where}: parameter {name!r} is positional; arguments come by name, "
                "so make it an ordinary or keyword-only parameter"
            )
    return parameters


def _require_no_method(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], where: str
) -> None:
    first = next(iter(parameters.values()), None)
    if first is None or first.name not in ("self", "cls") or first.annotation is not first.empty:
        return
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    if owner and not owner.endswith("<locals>"):
        raise ToolDeclarationInvalid(
            f"{where}: it is a method of {owner.rpartition('.')[2]}, and nothing would fill in "
            f"{first.name!r}: declare a function of the module, which may call the method"
        )


def _require_fit(
    schema: Any, parameters: Mapping[str, inspect.Parameter], where: str, *, takes_any: bool
) -> None:
    """Raise `ToolDeclarationInvalid` if valid calls could fail to call the function."""
    named, required = fields_of(schema)
    unknown = sorted(named - parameters.keys())
    if unknown and not takes_any:
        near = closest(unknown[0], [name for name in parameters if name not in named])
        hint = f"did you mean {near!r}" if near else "add it, take **kwargs"
        raise ToolDeclarationInvalid(
            f"{where}: input_schema has {unknown[0]!r}, and the function has no parameter of this "
            f"name: {hint}, or take all arguments as one `arguments: dict`"
        )
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in required:
            raise ToolDeclarationInvalid(
                f"{where}: parameter {name!r} has no default, and input_schema does not require "
                "it: give it a default, or add it to `required`"
            )


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # noqa: BLE001 - annotations are user code
        raise ToolDeclarationInvalid(
            f"{where}: its annotations cannot be resolved ({error}); "
            "import the types at module level, not under TYPE_CHECKING"
        ) from None


def _require_types(names: Iterable[str], hints: dict[str, Any], where: str) -> None:
    untyped = [name for name in names if name not in hints]
    if untyped:
        raise ToolDeclarationInvalid(
            f"{where}: parameter {untyped[0]!r} has no type: annotate it, as in "
            f"`{untyped[0]}: str` (`Any` takes anything, `ToolContext` is filled in by the "
            "worker), or declare input_schema="
        )


def _is_context(hint: Any) -> bool:
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(map(_is_context, typing.get_args(hint)))
    return ToolContext in (hint, typing.get_origin(hint))


def _model(
    parameters: dict[str, inspect.Parameter],
    hints: dict[str, Any],
    where: str,
    *,
    open_ended: bool,
) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for name, parameter in parameters.items():
        hint = hints[name]
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[_FIELD + name] = (Annotated[hint, Field(alias=name)], default)
    config = ConfigDict(extra="allow" if open_ended else "forbid", protected_namespaces=())
    try:
        model: type[BaseModel] = pydantic.create_model("Arguments", __config__=config, **fields)
        model.model_json_schema()
    except (PydanticUserError, pydantic.errors.PydanticInvalidForJsonSchema, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ToolDeclarationInvalid(
            f"{where}: a parameter's type cannot come from JSON ({reason}); "
            "use types pydantic can build, or declare input_schema="
        ) from None
    return model


_KINDS = {
    "missing": "required",
    "extra_forbidden": "additionalProperties",
    # pydantic's messages for these repeat the value, which may be a secret
    "union_tag_invalid": "schema",
    "import_error": "schema",
}
_JSON_TYPES: dict[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string",
    list: "array", dict: "object", type(None): "null",
}  # fmt: skip


def _problems(error: pydantic.ValidationError) -> tuple[Problem, ...]:
    return tuple(
        Problem(
            path=tuple(item["loc"]),
            kind=_KINDS.get(item["type"], "value"),
            expected=item["msg"],
            received=_JSON_TYPES.get(type(item["input"]), ""),
        )
        for item in error.errors(include_url=False, include_context=False)
    )
