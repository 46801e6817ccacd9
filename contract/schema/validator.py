"""Compiled JSON Schema validators, cached by the spec's digest.

Drafts 4 to 2020-12 by `$schema`, 2020-12 by default; `format` is asserted. Nothing is ever fetched:
a remote or file `$ref` is refused when the schema is compiled. Compiling and checking take bounded
time for any schema: see `toolpool.contract.schema.schema_limits`.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import jsonschema_rs

from toolpool.contract import encoding
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.schema import patterns, schema_limits
from toolpool.contract.schema.canonical import TYPED_FORMATS, Canonical
from toolpool.contract.schema.dialect import plain
from toolpool.contract.schema.explain import Explainer
from toolpool.contract.schema.json_values import (
    has_more_large_integers_than,
    has_more_values_than,
    json_type,
)
from toolpool.contract.schema.object_fields import NO_OBJECT, takes_objects
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.references import at_pointer
from toolpool.contract.schema.shape import Shapes
from toolpool.contract.schema.validation_cost import ValidationCost, ValidationTooCostly
from toolpool.contract.spec import ToolSpec

_CACHED_AT_MOST = 10_000
_BYTES_AT_MOST = 512 * 1024
"""Limits schemas that are mostly text, whose number of values is small."""
_EXPLAINED_NODES = 2_000
"""Limits thousands of wrong fields or items: each is an error to be made and described."""
_LARGEST_NAMED = 10_000
_ITEMS_EXPLAINED = 32
_STEPS_TO_DECIDE = 2_000_000
"""Limits unions that double at each level of the arguments, at some 20 nanoseconds a step, and
texts that patterns match slowly, at 0.2 microseconds at worst.
"""
_STEPS_TO_EXPLAIN = 5_000
"""The same for arguments that are invalid: each mismatch creates an error, some microseconds."""
_BRANCH_ERRORS = 5_000
"""Limits many branches for every item: all errors of a union are created before one is read."""
_CARRIED_AT_MOST = 300_000
"""Limits many wrong values of a large enum: each error carries the list. 100 nanoseconds each."""
_LARGE_INTEGERS, _LARGE_INTEGERS_OF_SETS = 5_000, 500
"""Limits integers of more than 64 bits, in words of 64 bits: they are compared slowly, and in sets
each with each, because all have one hash.
"""
_ABOUT_SIZE = frozenset({"minItems", "contains", "minContains", "unevaluatedItems"})
_ROOT = "urn:toolpool:schema"
_REMOTE = re.compile(r"Resource '(.*?)' is not present in a registry")


class SchemaValidator:
    """Validates and explains. Raises `ToolDeclarationInvalid` if the schema does not compile."""

    def __init__(self, schema: dict[str, Any]) -> None:
        schema = plain(schema)
        self._schema = schema
        extent = schema_limits.extent(schema)
        self._longest = extent.longest
        self._patterns = extent.patterns
        self._large_integers = (
            _LARGE_INTEGERS_OF_SETS if extent.unique
            else _LARGE_INTEGERS if extent.compares_numbers
            else None
        )  # fmt: skip
        self._cost = schema_limits.cost_of(schema, extent)
        self._fan = schema_limits.fan(schema, extent)
        self._validator = _compiled(schema)
        self.shapes = Shapes(schema)
        """The one-line shapes of the schema's parts."""
        self._explainer = Explainer(schema, self.shapes)

    def problems(self, arguments: Any) -> tuple[Problem, ...]:
        """All problems of `arguments`, most useful first; empty if they are valid.

        Only a part of very large arguments is explained. Raises ValueError for values that are not
        JSON.
        """
        most = self._large_integers
        is_slow = most is not None and has_more_large_integers_than(most, arguments)
        if is_slow or (
            self._cost is not None and not self._takes_few_steps(arguments, _STEPS_TO_DECIDE)
        ):
            return (Problem((), "tooDeep", received=json_type(arguments)),)
        if self._validator.is_valid(arguments):
            return ()
        return self._explain(arguments)

    def explains_all(self, arguments: Any) -> bool:
        """Whether `problems` covers these arguments completely rather than a part."""
        return self._part_to_explain(arguments) is arguments and self._takes_few_steps(
            arguments, _STEPS_TO_EXPLAIN, is_explained=True
        )

    def canonical(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments in canonical form; the same object if nothing changes.

        Defaults are filled in, and integers and formats get their canonical spelling. Values stay
        as they are if the change would make valid arguments invalid. Raises ValueError if the
        schema's defaults recurse without end.
        """
        found = self._canonical.of(arguments)
        if found is arguments or self._validator.is_valid(found):
            return found
        return arguments if self._validator.is_valid(arguments) else found

    def canonical_at(self, place: str, value: Any) -> tuple[bool, Any]:
        """Whether a value is valid at a JSON pointer into the schema, and its canonical form there.

        A text whose format has a Python type is valid only if that type accepts it. Raises
        ValueError if the schema's defaults recurse without end, or validation takes too long.
        """
        return self._typed.at(place, value)

    @functools.cached_property
    def _canonical(self) -> Canonical:
        return Canonical(self._schema, self._fits_at({}), self._steps_at)

    @functools.cached_property
    def _typed(self) -> Canonical:
        return Canonical(self._schema, self._fits_at(TYPED_FORMATS), self._steps_at)

    def _steps_at(self, place: str, value: Any) -> int:
        """The steps of a validation at a place. Raises ValueError if they are too many."""
        if self._cost is None:
            size = len(encoding.encode(value))
            return size // 20 + self._patterns.steps(size)
        try:
            return self._cost.steps_below(at_pointer(self._schema, place), value)
        except ValidationTooCostly:
            raise ValueError("its schema takes too many steps to validate a value") from None

    def _fits_at(self, formats: Mapping[str, Callable[[str], bool]]) -> Callable[[str, Any], bool]:
        """A test of a value against the schema at a place, with more formats."""
        registry = jsonschema_rs.Registry([(_ROOT, self._schema)])

        @functools.cache
        def at(place: str) -> jsonschema_rs.Validator:
            return _compiled({"$ref": f"{_ROOT}#{quote(place)}"}, registry, formats)

        def fits(place: str, value: Any) -> bool:
            try:
                return at(place).is_valid(value)
            except ToolDeclarationInvalid:  # a place below an embedded `$id`
                return False

        return fits

    def _explain(self, arguments: Any) -> tuple[Problem, ...]:
        part = self._part_to_explain(arguments)
        if part is not None and self._takes_few_steps(part, _STEPS_TO_EXPLAIN, is_explained=True):
            errors = self._validator.iter_errors(part)
            found = [
                error for error in errors if part is arguments or error.kind.name not in _ABOUT_SIZE
            ]
            if found or part is arguments:
                return self._explainer.problems(found, part)
        if (
            self._has_few_errors(arguments, 1)
            and not has_more_values_than(_LARGEST_NAMED, arguments)
            and self._takes_few_steps(arguments, _STEPS_TO_EXPLAIN, is_explained=True)
        ):
            try:
                self._validator.validate(arguments)
            except jsonschema_rs.ValidationError as error:
                return self._explainer.problems([error], arguments)
        return self._explainer.problems([], arguments)

    def _takes_few_steps(self, arguments: Any, most: int, *, is_explained: bool = False) -> bool:
        if self._cost is None:
            return True
        try:
            self._cost.require_few(arguments, most, is_explained=is_explained)
        except ValidationTooCostly:
            return False
        return True

    def _part_to_explain(self, arguments: Any) -> Any:
        """The arguments, with arrays cut so that explaining takes limited time; None if
        impossible.
        """
        items = _ITEMS_EXPLAINED
        while items:
            budget = [_EXPLAINED_NODES]
            part = _part_of(arguments, budget, items)
            values = _EXPLAINED_NODES - budget[0] + 1
            if budget[0] < 0:
                return None
            is_short = values * self._longest <= _CARRIED_AT_MOST
            if is_short and self._has_few_errors(part, values):
                return part
            items //= 2
        return None

    def _has_few_errors(self, part: Any, values: int) -> bool:
        """Whether all possible errors in union branches can be explained in time.

        Most schemas have so few branches that counting is unnecessary.
        """
        if values * self._fan <= _BRANCH_ERRORS:
            return True
        try:
            self._full_cost.require_few_errors(part, _BRANCH_ERRORS)
        except ValidationTooCostly:
            return False
        return True

    @functools.cached_property
    def _full_cost(self) -> ValidationCost:
        """The cost model, also for a schema whose cost cannot grow."""
        return self._cost or ValidationCost(self._schema)


def _compiled(
    schema: dict[str, Any],
    registry: "jsonschema_rs.Registry | None" = None,
    formats: Mapping[str, Callable[[str], bool]] | None = None,
) -> "jsonschema_rs.Validator":
    """Patterns run in linear time; with lookaround or backreferences, in bounded steps."""
    try:
        size = len(encoding.encode(schema))
        if size > _BYTES_AT_MOST:
            raise ToolDeclarationInvalid(
                f"its input_schema is {size:,} bytes; at most {_BYTES_AT_MOST:,} are compiled"
            )
        try:
            return _compile(schema, patterns.LINEAR, registry, formats)
        except jsonschema_rs.ValidationError as error:
            if "pattern" not in str(error):
                raise
            return _compile(schema, patterns.BACKTRACKING, registry, formats)
    except (
        jsonschema_rs.ValidationError,
        jsonschema_rs.ReferencingError,
        ValueError,
        TypeError,
        RecursionError,
    ) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if reason.endswith('is not a "regex"'):
            reason = f"{reason}, or it is too large: repetitions such as {{1,5000}} grow"
        if remote := _REMOTE.search(reason):
            reason = f"it refers to {remote[1]}, and nothing is fetched; put that under $defs"
        raise ToolDeclarationInvalid(f"its input_schema does not compile: {reason[:300]}") from None


def _compile(
    schema: dict[str, Any],
    options: Any,
    registry: "jsonschema_rs.Registry | None",
    formats: Mapping[str, Callable[[str], bool]] | None,
) -> "jsonschema_rs.Validator":
    return jsonschema_rs.validator_for(
        schema,
        validate_formats=True,
        formats=dict(formats) if formats else None,
        pattern_options=options,
        offline=True,
        registry=registry,
    )


def _part_of(value: Any, budget: list[int], items: int) -> Any:
    """`value` with long arrays cut, or itself; `budget` ends below zero if it is too big.

    Explaining costs some microseconds per error: a list of 100,000 wrong items would take seconds.
    """
    if budget[0] < 0:
        return value
    if isinstance(value, dict):
        budget[0] -= len(value)
        if budget[0] < 0:
            return value
        parts = {key: _part_of(inner, budget, items) for key, inner in value.items()}
        return parts if any(parts[key] is not value[key] for key in value) else value
    if isinstance(value, (list, tuple)):
        shown = value[:items]
        budget[0] -= len(shown)
        parts_shown = [_part_of(inner, budget, items) for inner in shown]
        same = len(shown) == len(value) and all(
            part is inner for part, inner in zip(parts_shown, shown, strict=True)
        )
        return value if same else parts_shown
    return value


class SchemaCache:
    """Validators by schema digest; None for a spec without a schema or with validation off."""

    def __init__(self) -> None:
        self._validators: dict[str, SchemaValidator] = {}

    def validator(self, spec: ToolSpec) -> SchemaValidator | None:
        """Raises `ToolDeclarationInvalid` if the schema does not compile or accepts no object."""
        if spec.input_schema is None or not spec.check_schema:
            return None
        digest = spec.digest or encoding.digest(spec.input_schema)
        validator = self._validators.get(digest)
        if validator is None:
            if len(self._validators) >= _CACHED_AT_MOST:
                self._validators.clear()
            validator = SchemaValidator(spec.input_schema)
            if not takes_objects(spec.input_schema):
                raise ToolDeclarationInvalid(NO_OBJECT)
            self._validators[digest] = validator
        return validator
