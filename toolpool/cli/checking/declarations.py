"""Finds the faults of tools that are visible without running them."""

import math
import pkgutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, cast

import msgspec

from toolpool.cli.checking.schema_gaps import Gaps, named
from toolpool.contract.errors import Misconfigured, ToolDeclarationInvalid, ToolsUnimportable
from toolpool.contract.schema.dialect import plain
from toolpool.contract.schema.object_fields import NO_OBJECT, takes_objects
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats import FORMATS, offered_name
from toolpool.workers.tool import Tool
from toolpool.workers.tool_loading import BUILT_IN, Catalog

_DEFAULT_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Level(StrEnum):
    """How bad a problem is: `broken` keeps the tool from working, a `warning` misleads a model."""

    BROKEN = "broken"
    WARNING = "warning"
    HINT = "hint"


@dataclass(frozen=True, slots=True)
class Problem:
    """`where` is a tool or a source."""

    level: Level
    where: str
    message: str


@dataclass(slots=True)
class Report:
    """All problems found in some sources."""

    tools: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def broken(self) -> list[Problem]:
        """The problems that must be corrected."""
        return [problem for problem in self.problems if problem.level is Level.BROKEN]

    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "ok": not self.broken,
            "tools": self.tools,
            "problems": [asdict(problem) for problem in self.problems],
        }


def check_sources(sources: Sequence[str], kinds: Sequence[str] | None = None) -> Report:
    """Load every module on its own, so that one failure does not hide the others' problems.

    `kinds` are the kinds of tools that the workers serve; None for all.
    """
    report = Report()
    by_name: dict[str, list[Tool]] = defaultdict(list)
    for source in sources or [BUILT_IN]:
        for tool in _load(source, report):
            if not any(known is tool for known in by_name[tool.name]):
                by_name[tool.name].append(tool)
    for name, tools in sorted(by_name.items()):
        report.tools += 1
        if len(tools) > 1:
            modules = " and ".join(tool.__module__ for tool in tools)
            report.problems.append(
                Problem(Level.BROKEN, name, f"two tools have this name, in {modules}; rename one")
            )
        for tool in tools:
            report.problems += check_tool(tool.spec)
            if kinds is not None and tool.spec.run_in.value not in kinds:
                report.problems.append(_not_taken(tool, kinds))
    return report


def _not_taken(tool: Tool, kinds: Sequence[str]) -> Problem:
    kind = tool.spec.run_in.value
    loop = "" if tool.is_coroutine else "declare it `async def`, or "
    message = (
        f"it runs in {kind}, and a worker with --run-in {','.join(kinds)} does not take it: "
        f"{loop}start another with --run-in {kind}"
    )
    return Problem(Level.WARNING, tool.name, message)


def _load(source: str, report: Report) -> Iterator[Tool]:
    try:
        yield from Catalog.load([source]).tools.values()
        return
    except Misconfigured as error:
        package = getattr(sys.modules.get(source), "__path__", None)
        if package is None:
            report.problems.append(Problem(Level.BROKEN, source, _explained(error)))
            return
    for info in pkgutil.iter_modules(package, f"{source}."):
        if info.ispkg:
            yield from _load(info.name, report)
            continue
        try:
            yield from Catalog.load([info.name]).tools.values()
        except Misconfigured as error:
            loaded = sys.modules.get(info.name)
            if loaded is None or any(isinstance(value, Tool) for value in vars(loaded).values()):
                report.problems.append(Problem(Level.BROKEN, info.name, _explained(error)))


def _explained(error: Misconfigured) -> str:
    return error.explained if isinstance(error, ToolsUnimportable) else str(error)


def check_tool(spec: ToolSpec) -> list[Problem]:
    """The problems of one tool."""
    problems = []
    if not spec.description.strip():
        problems.append(
            Problem(Level.WARNING, spec.name, "no description: write a docstring for the model")
        )
    if not math.isfinite(spec.timeout):
        problems.append(Problem(Level.BROKEN, spec.name, "its timeout must be a number of seconds"))
    problems += _names_mapped(spec.name)
    if spec.output_schema is not msgspec.UNSET:
        problems += [
            Problem(Level.BROKEN, spec.name, fault.replace("input_schema", "output_schema"))
            for fault in _schema_faults(spec.output_schema, "output schema")
        ]
    if spec.input_schema is None:
        problems.append(
            Problem(Level.HINT, spec.name, "no schema: any object is taken as its arguments")
        )
        return problems
    faults = list(_schema_faults(spec.input_schema, "schema"))
    if not faults and not takes_objects(spec.input_schema):
        faults = [NO_OBJECT]
    problems += [Problem(Level.BROKEN, spec.name, fault) for fault in faults]
    if not faults:
        problems += _parameter_problems(spec.name, spec.input_schema)
    return problems


def _schema_faults(schema: dict[str, Any], name: str) -> Iterator[str]:
    """Why a schema is unusable: the broken rule of its dialect, or the validator's message."""
    from jsonschema import validators
    from jsonschema.exceptions import SchemaError

    from toolpool.contract.schema.validator import SchemaValidator

    dialect = schema.get("$schema", _DEFAULT_DIALECT)
    validator: Any = validators.validator_for({"$schema": dialect}, default=cast(Any, None))
    if validator is None:
        yield f"its $schema {dialect!r} is no dialect of JSON Schema from draft 4 to 2020-12"
        return
    try:
        validator.check_schema(plain(schema))
        SchemaValidator(schema)
    except SchemaError as error:
        path = ".".join(str(part) for part in error.absolute_path)
        # Of several alternatives, such as a type's, the first lists the choices.
        message = error.context[0].message if error.context else error.message
        yield f"its {name} is not valid JSON Schema: {f'{path}: ' if path else ''}{message}"
    except ToolDeclarationInvalid as error:
        yield str(error)


def _parameter_problems(tool: str, schema: dict[str, Any]) -> Iterator[Problem]:
    gaps = Gaps(schema)
    if silent := gaps.undescribed():
        message = f"no description of {named(silent)}: the model sees only the names"
        yield Problem(Level.WARNING, tool, message)
    for path in gaps.ambiguous():
        yield Problem(
            Level.WARNING,
            tool,
            f"{path} takes several kinds of object with nothing to tell them apart: give each a "
            'const field such as "kind"',
        )
    if unbounded := gaps.unbounded():
        message = f"{named(unbounded)} may be of any length: maxLength sets a limit"
        yield Problem(Level.HINT, tool, message)


def _names_mapped(name: str) -> Iterator[Problem]:
    """Which providers refuse the name, and its alias there."""
    by_alias: dict[str, list[str]] = defaultdict(list)
    for format in FORMATS:
        other = offered_name(name, format)
        if other != name:
            by_alias[other].append(format)
    for other, formats in by_alias.items():
        message = f"{', '.join(sorted(formats))} refuse this name: it is offered there as "
        yield Problem(Level.HINT, name, f"{message}{other!r}, and calls of that are mapped to it")
