"""A value that a schema takes in several forms is judged in each, or the call is denied."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from toolpool.dispatcher.policy import conditions
from toolpool.dispatcher.policy.conditions import Condition
from toolpool.dispatcher.policy.equality import RuleFailed
from toolpool.dispatcher.policy.schema_fit import ToolSchema, Useless

TEXT, NUMBER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}
LINE = {"type": "object", "properties": {"sku": TEXT}, "additionalProperties": False}
CHOICE = {"enum": ["auto", "none"]}


def listed(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def by_key(values: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}


def root(field: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": field}, "additionalProperties": False}


def either(*branches: Any) -> dict[str, Any]:
    return {"anyOf": list(branches)}


JUDGED: list[tuple[str, dict[str, Any], Any]] = [
    ("x.sku", either(LINE, listed(LINE)), [{"sku": "evil"}]),
    ("x.sku", either(LINE, listed(listed(LINE))), [[], [{"sku": "evil"}]]),
    ("x.sku", listed(LINE), [{"sku": "a"}, {"sku": "evil"}]),
    ("x[0].sku", either(LINE, listed(LINE)), {"sku": "evil"}),
    ("x[0]", either(TEXT, listed(TEXT)), "evil"),
    ("x", either(TEXT, listed(TEXT)), ["a", "evil"]),
    ("x", either(TEXT, {"type": "array", "prefixItems": [NUMBER, TEXT]}), [1, "evil"]),
    ("x[*]", either(TEXT, listed(listed(TEXT))), [["evil"]]),
    ("x", {}, ["evil"]),
    ("x.sku", {}, [{"sku": "evil"}]),
]


def equals_evil(path: str) -> conditions.Test:
    return conditions.Test(Condition(argument=path, equals="evil"))


def read(test: conditions.Test, field: Any, *, is_named: bool = True) -> conditions.Test:
    """The test for a tool with this field; raises `Useless`."""
    return test.read_by(ToolSchema(root(field)).reading(test, is_named=is_named))


@pytest.mark.parametrize(("path", "schema", "value"), JUDGED)
def test_one_value_and_a_list_of_them_are_judged_alike(
    path: str, schema: dict[str, Any], value: Any
) -> None:
    assert read(equals_evil(path), schema).holds({"x": value}, for_all=False)
    other = read(conditions.Test(Condition(argument=path, equals="good")), schema)
    assert not other.holds({"x": value}, for_all=False)


ROWS = either(listed(TEXT), listed(listed(TEXT)))


@pytest.mark.parametrize(
    "value", [["evil", "a"], [["evil", "a"]], [["b"], ["evil", "a"]], [["a", "evil"], ["b", "c"]]]
)
def test_a_list_that_a_rule_names_is_found_in_a_list_of_lists(value: Any) -> None:
    for comparison in ({"equals": ["evil", "a"]}, {"one_of": [["z"], ["evil", "a"]]}):
        test = conditions.Test(Condition(argument="x", **comparison))  # type: ignore[arg-type]
        assert read(test, ROWS).holds({"x": value}, for_all=False)
        assert not read(test, ROWS).holds({"x": [["evil"], ["b"]]}, for_all=False)
        each = conditions.Test(Condition(argument="x[*]", **comparison))  # type: ignore[arg-type]
        with pytest.raises(Useless, match="one list or a list of lists: give x"):
            read(each, ROWS, is_named=False)


def test_the_objects_of_a_map_are_no_maps_of_it() -> None:
    """Their other fields are no reason to deny a call."""
    account = {
        "type": "object",
        "properties": {"role": TEXT, "tags": listed(TEXT), "more": by_key(TEXT)},
    }
    test = read(equals_evil("x[*].role"), by_key(account))
    anna = {"role": "clerk", "tags": ["a"], "more": {"role": "evil"}}
    assert not test.holds({"x": {"anna": anna}}, for_all=False)
    assert test.holds({"x": {"anna": anna | {"role": "evil"}}}, for_all=False)


OPEN = [
    {"type": "object", "minProperties": 1},
    {"type": "object", "allOf": [{"minProperties": 1}]},
    {"anyOf": [{"description": "Any JSON."}, {"type": "null"}]},
    {"oneOf": [{"title": "Any JSON."}, {"type": "null"}]},
    {"type": "object", "if": {"required": ["a"]}, "then": {"maxProperties": 3}},
    {"type": "object", "allOf": [{"not": {"required": ["forbidden"]}}]},
]
"""Schemas of an object with any fields, some of whose parts say nothing of its fields."""


@pytest.mark.parametrize("schema", OPEN, ids=str)
@pytest.mark.parametrize("within", [None, listed, by_key], ids=["alone", "in a list", "in a map"])
def test_the_elements_of_a_map_are_its_values_however_its_schema_is_written(
    schema: dict[str, Any], within: Any
) -> None:
    path = "x[*]" if within is None else "x[*][*]"
    admin, clerk = {"role": "admin"}, {"role": "clerk"}

    def holds(labels: dict[str, Any], *, for_all: bool = False, **comparison: Any) -> bool:
        value = {None: labels, listed: [labels], by_key: {"k": labels}}[within]
        test = conditions.Test(Condition(argument=path, **comparison))
        return read(test, within(schema) if within else schema).holds({"x": value}, for_all=for_all)

    assert holds({"team": "x" * 12}, longer_than=10)
    assert holds({"anna": admin}, equals=admin)
    assert not holds({"anna": clerk}, equals=admin)
    assert holds({"a": "q", "b": None}, missing=True)
    assert not holds({"anna": admin}, for_all=True, differs_from=admin)
    assert holds({"anna": clerk}, for_all=True, differs_from=admin)


def test_the_fields_of_an_object_are_compared_where_a_part_leaves_others_open() -> None:
    schema = {"type": "object", "properties": {"a": TEXT}, "allOf": [{"minProperties": 1}]}
    test = read(conditions.Test(Condition(argument="x[*]", longer_than=10)), schema)
    assert test.holds({"x": {"a": "x" * 12}}, for_all=False)


@pytest.mark.parametrize("told", ["1767348000", "2026-01-02_10:00:00Z", "2026-01-02 10:00:00Z"])
def test_a_time_that_a_rule_writes_in_another_way_is_found_with_another_offset(told: str) -> None:
    test = read(
        conditions.Test(Condition(argument="x", equals=told)),
        {"type": "string", "format": "date-time"},
    )
    for sent in ("2026-01-02T10:00:00Z", "2026-01-02T11:00:00+01:00"):
        assert test.holds({"x": sent}, for_all=False)
    assert not test.holds({"x": "2026-01-02T10:00:00+01:00"}, for_all=False)


def test_nested_lists_are_compared_within_the_budget() -> None:
    """The index of each list of the value costs as many steps as it takes time."""
    nested: Any = 1
    for _ in range(16):
        nested = [nested, nested]
    test = conditions.Test(Condition(argument="x", equals=[1, 2]))
    with pytest.raises(RuleFailed, match="too large"):
        test.holds({"x": nested}, for_all=False)


def test_a_list_has_another_length_than_one_value_in_its_place() -> None:
    test = conditions.Test(Condition(argument="x", longer_than=3))
    with pytest.raises(Useless, match="one value or a list"):
        read(test, either(TEXT, listed(TEXT)), is_named=False)
    with pytest.raises(Useless, match="one value or a list"):
        read(test, ROWS, is_named=False)
    assert read(test, listed(TEXT)).holds({"x": ["a"] * 4}, for_all=False)


def test_a_rule_that_allows_needs_every_element() -> None:
    test = equals_evil("x.sku")
    assert test.holds({"x": [{"sku": "evil"}, {"sku": "evil"}]}, for_all=True)
    assert not test.holds({"x": [{"sku": "evil"}, {"sku": "a"}]}, for_all=True)
    assert not test.holds({"x": []}, for_all=True)
    assert conditions.Test(Condition(argument="x", differs_from=True)).holds(
        {"x": []}, for_all=False
    )


@pytest.mark.parametrize("value", [["a", 1, ["b", "c"]], [1, ["c", "b"], "a"]], ids=str)
def test_a_list_that_may_stand_for_a_set_is_compared_in_the_strictest_order(value: Any) -> None:
    """The tool may get a set of it. `for_all` is how a rule that allows asks."""
    given, told = {"x": value}, ["a", 1, ["b", "c"]]
    for comparison in ({"equals": told}, {"one_of": [["z"], told]}):
        test = conditions.Test(Condition(argument="x", **comparison))  # type: ignore[arg-type]
        assert test.holds(given, for_all=False)
        assert test.holds(given, for_all=True) is (value == told)
    for comparison in ({"differs_from": told}, {"none_of": [["z"], told]}):
        test = conditions.Test(Condition(argument="x", **comparison))  # type: ignore[arg-type]
        assert test.holds(given, for_all=False) is (value != told)
        assert not test.holds(given, for_all=True)
    test = conditions.Test(Condition(argument="x", equals=["a", "b"]))
    assert test.holds({"x": ["b", "a", "b"]}, for_all=False)
    assert not test.holds({"x": ["a", "a"]}, for_all=False)
    assert not test.holds({"x": ["a", "b", "c"]}, for_all=False)


EVIL = "evil"
LEAVES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [TEXT, NUMBER, NULL, CHOICE, {"type": "boolean"}, {}]
)


def _deeper(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    fields = st.dictionaries(st.sampled_from(["a", "b"]), inner, min_size=1)
    return st.one_of(
        inner.map(listed),
        inner.map(by_key),
        st.lists(inner, min_size=1, max_size=2).map(
            lambda first: {"type": "array", "prefixItems": first, "items": False}
        ),
        fields.map(lambda f: {"type": "object", "properties": f, "additionalProperties": False}),
        st.tuples(inner, inner).map(lambda pair: either(*pair)),
    )


SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(LEAVES, _deeper, max_leaves=6)
PATHS = st.lists(st.sampled_from([".a", ".b", "[*]", "[0]"]), max_size=3)


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What fits; the keys of a map are no names of fields."""
    if not schema:
        return st.sampled_from([EVIL, [EVIL], {"a": EVIL}, {"b": [EVIL]}, {"a": {"b": EVIL}}, 5])
    if "anyOf" in schema:
        return st.one_of([values(branch) for branch in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema["type"] == "array":
        if "prefixItems" in schema:
            return st.tuples(*map(values, schema["prefixItems"])).map(list)
        return st.lists(values(schema["items"]), max_size=2)
    if schema["type"] == "object":
        fields = {name: values(inner) for name, inner in schema.get("properties", {}).items()}
        if fields:
            return st.fixed_dictionaries({}, optional=fields)
        return st.dictionaries(st.just("key"), values(schema["additionalProperties"]))
    plain = {"string": st.sampled_from([EVIL, "b"]), "integer": st.integers(0, 1)}
    return plain.get(schema["type"], st.none() if schema == NULL else st.booleans())


def hidden(value: Any, steps: tuple[str | int | None, ...]) -> bool:
    """Whether the value is at the path in any form: alone, in a list, or in a map by `[*]`."""
    if value == EVIL:
        return True  # also where it stands for an object that would hold it
    step, rest = (steps[0], steps[1:]) if steps else (None, ())
    if isinstance(value, list):
        if isinstance(step, int):
            return any(hidden(one, rest) for one in value[step : step + 1])
        return any(hidden(one, rest if step is None else steps) for one in value)
    if not isinstance(value, dict) or not steps:
        return False
    if isinstance(step, str) and step in value:
        return hidden(value[step], rest)
    if isinstance(step, str):  # of a map a path may name a key: see DENIED for one beside objects
        return False
    return step is None and hidden(value["key"], rest) if "key" in value else hidden(value, rest)


@pytest.mark.long
@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_no_form_of_a_value_hides_it_from_a_rule(
    data: st.DataObject,
) -> None:
    schema, path = data.draw(SCHEMAS), "x" + "".join(data.draw(PATHS))
    try:
        test = read(equals_evil(path), schema)
    except Useless:
        return
    value = {"x": data.draw(values(schema))}
    if hidden(value, test.steps):
        with contextlib.suppress(RuleFailed):  # such a call is denied
            assert test.holds(value, for_all=False)
