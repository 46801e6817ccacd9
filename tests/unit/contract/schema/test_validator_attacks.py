"""Schemas that fetch, open files, explode, recurse or backtrack: refused or bounded (R20).

None may hold a dispatcher for more than 50 ms: not when it is compiled, not when it checks, and not
when it explains. Times are CPU time of this thread, so that a busy machine does not fail the test.
"""

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cost import cost
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.schema.validator import SchemaCache, SchemaValidator
from toolpool.contract.spec import ToolSpec, sealed
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import Caps
from toolpool.workers.tool import tool

LIMIT = 20.0
"""Of what `cost` counts in: an attack that works costs hundreds, or never ends."""


def nested(levels: int, inner: Any, wrap: Callable[[Any], Any]) -> Any:
    for _ in range(levels):
        inner = wrap(inner)
    return inner


def chain(length: int, link: Callable[[str], dict[str, Any]], last: Any) -> dict[str, Any]:
    """`length` definitions, each made of a reference to the next."""
    definitions = {f"d{n}": link(f"#/$defs/d{n + 1}") for n in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{length}": last}}


def twice(keyword: str) -> Callable[[str], dict[str, Any]]:
    return lambda ref: {keyword: [{"$ref": ref}, {"$ref": ref}]}


def expression(*operators: str) -> dict[str, Any]:
    """The honest schema that doubles: every operator has operands of the same kind."""
    options = [
        {
            "type": "object",
            "properties": {"args": {"items": {"$ref": "#/$defs/e"}}, "op": {"const": operator}},
            "required": ["op", "args"],
        }
        for operator in operators
    ]
    return {"$ref": "#/$defs/e", "$defs": {"e": {"anyOf": [{"type": "string"}, *options]}}}


def untagged(*operators: str) -> dict[str, Any]:
    """The same where nothing tells the branches apart but all that is inside."""
    options = [
        {
            "type": "object",
            "properties": {"args": {"items": {"$ref": "#/$defs/e"}}, f"is_{operator}": {}},
            "required": [f"is_{operator}", "args"],
        }
        for operator in operators
    ]
    return {"$ref": "#/$defs/e", "$defs": {"e": {"anyOf": [{"type": "null"}, *options]}}}


DEEP_EXPRESSION = nested(31, "x!", lambda inner: {"op": "none", "args": [inner, 1]})
WIDE = {"a": [1] * 200_000}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "remote reference": ({"$ref": "http://127.0.0.1:9/schema"}, "nothing is fetched"),
    "remote reference, deep": (
        {"properties": {"a": {"items": {"$ref": "https://example.org/x#/a"}}}},
        "nothing is fetched",
    ),
    "remote through $id": (
        {"$id": "http://127.0.0.1:9/base", "properties": {"a": {"$ref": "other.json"}}},
        "nothing is fetched",
    ),
    "remote meta-schema": ({"$schema": "http://127.0.0.1:9/meta"}, "Unknown meta-schema"),
    "file": ({"$ref": "file:///etc/passwd"}, "nothing is fetched"),
    "file, relative": ({"$ref": "../../etc/passwd"}, "nothing is fetched"),
    "pointer to nothing": ({"$ref": "#/$defs/absent"}, "does not compile"),
    "references that double in place": (
        chain(30, twice("anyOf"), {"type": "null"}),
        "so recursive",
    ),
    "references that double in allOf": (chain(30, twice("allOf"), {}), "so recursive"),
    "references that double, by anchor": (
        {
            "$ref": "#a0",
            "$defs": {
                **{
                    f"d{n}": {"$anchor": f"a{n}", **twice("oneOf")(f"#a{n + 1}")} for n in range(30)
                },
                "d30": {"$anchor": "a30"},
            },
        },
        "so recursive",
    ),
    "a huge enum": ({"enum": [f"member {n}" for n in range(200_000)]}, "too large"),
    "a million properties": ({"properties": {f"p{n}": {} for n in range(100_000)}}, "too large"),
    "a huge description": ({"description": "x" * 10_000_000}, "at most 524,288 are compiled"),
    "deep nesting": (nested(5_000, {}, lambda inner: {"properties": {"a": inner}}), "too large"),
    "deep anyOf": (nested(400, {}, lambda inner: {"anyOf": [inner]}), "too large"),
    "a pattern that grows": ({"pattern": "((a{100}){100}){100}"}, "does not compile"),
    "many patterns that grow": (
        {"properties": {f"p{n}": {"pattern": f"(a{{1,50}}){{1,50}}{n}"} for n in range(1_000)}},
        "compile to more than",
    ),
    "a pattern that grows, looking": ({"pattern": "(?=x)((a{100}){100}){100}"}, "not compile"),
    "a huge pattern": (
        {"pattern": "|".join(f"x{n}" for n in range(50_000))},
        "patterns of more than",
    ),
    "many long patterns": (
        {"properties": {f"p{n}": {"pattern": "a?" * 1_900 + str(n)} for n in range(500)}},
        "patterns of more than",
    ),
    "many short patterns": (
        {"properties": {f"p{n}": {"pattern": f"a{n}"} for n in range(3_000)}},
        "patterns of more than",
    ),
    "a pattern of many escapes": ({"pattern": r"\s" * 2_000}, "patterns of more than"),
    "a broken pattern": ({"pattern": "("}, "does not compile"),
    "half of a surrogate pair": ({"const": "\ud800"}, "does not compile"),
    "not JSON": ({"const": object()}, "does not compile"),
    "no schema": ({"type": "objekt"}, "does not compile"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason_and_at_once(name: str) -> None:
    schema, reason = REFUSED[name]
    error, spent = cost(lambda: SchemaValidator(schema), most=LIMIT)
    assert isinstance(error, ToolDeclarationInvalid)
    assert reason in str(error)
    assert len(str(error)) < 500
    assert spent < LIMIT


BOUNDED: dict[str, tuple[dict[str, Any], Any]] = {
    "a chain of references": (chain(1_200, lambda ref: {"allOf": [{"$ref": ref}]}, False), 1),
    "a tangle of references": (
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                f"d{n}": {
                    "properties": {f"p{n}_{m}": {"type": "null"} for m in range(40)},
                    "allOf": [{"$ref": f"#/$defs/d{min(n + 1, 90)}"}],
                }
                for n in range(91)
            },
        },
        {f"p{n}_3": 1 for n in range(91)},
    ),
    "refers to itself": ({"$ref": "#"}, 1),
    "refers to itself in turns": (
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
        },
        1,
    ),
    "refers to itself, fanned out": (
        {
            "$ref": "#/$defs/a",
            "$defs": {
                "a": {"anyOf": [{"$ref": "#/$defs/b"}] * 40},
                "b": {"anyOf": [{"$ref": "#/$defs/a"}] * 40},
            },
        },
        1,
    ),
    "recursive by dynamic reference": (
        {"$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}}, "required": ["b"]},
        nested(60, {"b": 1}, lambda inner: {"a": inner}),
    ),
    "a list of itself": (
        {"items": {"$ref": "#"}, "type": ["array", "integer"]},
        nested(60, "x", lambda inner: [inner] * 2)[:1],
    ),
    "doubles with every level": (untagged("and", "or"), DEEP_EXPRESSION),
    "quadruples with every level": (untagged("a", "b", "c", "d"), DEEP_EXPRESSION),
    "doubles, and is to be explained": (expression("and", "or"), DEEP_EXPRESSION),
    "quadruples, and is to be explained": (expression("a", "b", "c", "d"), DEEP_EXPRESSION),
    "doubles by name": (
        {
            "$ref": "#/$defs/a",
            "$defs": {
                "a": {
                    "anyOf": [
                        {"properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["p"]},
                        {"properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["q"]},
                    ]
                }
            },
        },
        nested(60, {}, lambda inner: {"x": inner}),
    ),
    "catastrophic pattern": ({"pattern": "^(a+)+$"}, "a" * 500_000 + "b"),
    "catastrophic alternatives": ({"pattern": "^(a|a|aa)*$"}, "a" * 500_000 + "b"),
    "catastrophic and looking": ({"pattern": "^(?=a)(a+)+$"}, "a" * 5_000 + "b"),
    "catastrophic and looking back": ({"pattern": r"^(a+)+\1$"}, "a" * 5_000 + "b"),
    "catastrophic property names": (
        {"patternProperties": {"^(a+)+$": {"type": "null"}}},
        {"a" * 100_000 + "b": 1},
    ),
    "repetitions in repetitions": ({"pattern": "(a{1,50}){1,50}c"}, "a" * 60_000),
    "a pattern with many states": ({"pattern": "([ab]{1,20}a){1,20}[cd]"}, "ab" * 100_000),
    "lookahead in a long text": ({"pattern": "(?=a*b)x"}, "a" * 500_000),
    "lookbehind in a long text": ({"pattern": "(?<!x)a*b"}, "a" * 500_000),
    "lookahead around repetitions": ({"pattern": "(?!(a{1,50}){1,50}c)b"}, "a" * 2_000),
    "lookahead around repetitions, anchored": (
        {"pattern": "^(?!(a{1,50}){1,50}c)(?!x)b"},
        "a" * 60_000,
    ),
    "lookahead in a group that repeats": ({"pattern": "^(?:(?=a*b)a|a)*c"}, "a" * 500_000),
    "a repetition before what it also matches": (
        {"pattern": "^.{1,}a" + "." * 900 + "[c-z]"},
        "ab" * 150_000,
    ),
    "a small pattern with many states": (
        {"allOf": [{"pattern": f"[ab]*a[ab]{{60}}[{letter}-z]"} for letter in "cdefghijkl"]},
        "abaab" * 100_000,
    ),
    "many small patterns": (
        {"allOf": [{"pattern": f"[ab]*a[ab]{{9}}{n}"} for n in range(400)]},
        "abaab" * 100_000,
    ),
    "short texts in many states": (
        {"items": {"pattern": "(([ab]?){20}a[ab]?){10}[c-z]"}},
        ["abaababb" * 8] * 15_000,
    ),
    "large integers in a set": ({"uniqueItems": True}, [2**70 + n for n in range(4_000)]),
    "large integers in a set of lists": (
        {"uniqueItems": True},
        [[2**63 + n] for n in range(4_000)],
    ),
    "large integers beside an enum": (
        {"items": {"anyOf": [{"enum": list(range(100, 160))}, {"type": "integer"}]}},
        [10**4_200 + n for n in range(240)],
    ),
    "large integers beside limits": (
        {"items": {"anyOf": [{"maximum": n} for n in range(100)]}},
        [10**4_000 + n for n in range(100)],
    ),
    "few objects that are listed in many branches": (
        {
            "items": {
                "not": {"anyOf": [{"enum": [{"a": [n, m]} for m in range(19)]} for n in range(90)]}
            }
        },
        [{"a": [n, -1]} for n in range(30_000)],
    ),
    "many fields that need others": (
        {"items": {"dependentRequired": {f"p{n}": ["q"] for n in range(3_000)}}},
        [{} for _ in range(100_000)],
    ),
    "many numbers that are listed": (
        {"items": {"enum": [n + 0.5 for n in range(1_000)]}},
        [999.5] * 20_000,
    ),
    "many texts and numbers that are listed": (
        {"items": {"enum": [*range(4_500), *(f"c{n}" for n in range(4_500))]}},
        ["c4499"] * 60_000,
    ),
    "many constants": (
        {"items": {"oneOf": [{"const": n} for n in range(400)]}},
        [399] * 30_000,
    ),
    "small patterns in many states": (
        {"anyOf": [{"pattern": f"1[01]{{14}}[{n}a]"} for n in range(2, 10)] * 3},
        "01101" * 60_000,
    ),
    "many objects that are listed": (
        {"items": {"enum": [{"a": n} for n in range(4_000)]}},
        [{"a": 3_999} for _ in range(30_000)],
    ),
    "many patterns for many names": (
        {"patternProperties": {f"^x{n}": {"type": "null"} for n in range(500)}},
        {f"y{n}": 1 for n in range(40_000)},
    ),
    "lookahead in long names": (
        {"patternProperties": {"(?=a*b)x": {"type": "null"}}},
        {"a" * 200_000: 1},
    ),
    "lookahead in long names, by a reference": (
        {"propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"not": {"pattern": "(?=a*b)x"}}}},
        {"a" * 200_000: 1},
    ),
    "lookahead in many texts, by references": (
        {
            "items": {"allOf": [{"$ref": "#/$defs/n"}]},
            "$defs": {"n": {"anyOf": [{"pattern": "(?=a*b)x"}, {"pattern": "(?=a*b)y"}]}},
        },
        ["a" * 5_000] * 200,
    ),
    "a pattern in the arguments": ({"format": "regex"}, "((a{100}){100}){100}" * 100),
    "a large enum": ({"enum": [f"member {n}" for n in range(4_500)]}, "x"),
    "many properties": (
        {"properties": {f"p{n}": {} for n in range(2_200)}, "additionalProperties": False},
        {f"q{n}": 1 for n in range(2_200)},
    ),
    "many wrong fields beside one without a name": (
        {"properties": {f"p{n}": {"type": "null"} for n in range(1_900)}},
        {"": 1, **{f"p{n}": 1 for n in range(1_900)}},
    ),
    "much that is required": ({"required": [f"p{n}" for n in range(4_500)]}, {}),
    "many branches": (
        {"anyOf": [{"properties": {"a": {"const": n}}, "required": ["a"]} for n in range(700)]},
        {"a": "x"},
    ),
    "many branches of what is referred to": (
        {
            "anyOf": [{"$ref": "#/$defs/x"}] * 2_000,
            "$defs": {"x": {"required": [f"r{n}" for n in range(10)]}},
        },
        {},
    ),
    "many branches for every item": (
        {"items": {"anyOf": [{"const": n, "required": ["a", "b"]} for n in range(400)]}},
        [{}] * 1_000,
    ),
    "many branches for every field": (
        {"additionalProperties": {"anyOf": [{"type": "null", "const": n} for n in range(400)]}},
        {f"f{n}": n for n in range(1_900)},
    ),
    "many branches for every item of every item": (
        {"items": {"items": {"anyOf": [{"const": n} for n in range(400)]}}},
        [["x"] * 32] * 32,
    ),
    "a choice of many values": (
        {"properties": {"a": {"oneOf": [{"const": n} for n in range(1_000)]}}, "required": ["a"]},
        {},
    ),
    "a choice of many values that no object has": (
        {
            "properties": {"a": {"oneOf": [{"type": "object", "const": n} for n in range(3_000)]}},
            "additionalProperties": False,
        },
        {"b": 1},
    ),
    "a choice of many tags": (
        {
            "additionalProperties": False,
            "properties": {
                "a": {
                    "oneOf": [
                        {
                            "type": "object",
                            "properties": {"k": {"const": n}},
                            "required": ["k"],
                        }
                        for n in range(1_000)
                    ]
                }
            },
        },
        {"b": 1},
    ),
    "many wrong values of a large enum": (
        {"additionalProperties": {"enum": [f"member {n}" for n in range(1_000)]}},
        {f"k{n}": "x" for n in range(1_900)},
    ),
    "many values that are nearly one of many": (
        {"additionalProperties": {"enum": [f"member value {n}" for n in range(400)]}},
        {f"k{n}": f"membr value {n}" for n in range(990)},
    ),
    "many wrong fields of many items": (
        {
            "items": {
                "properties": {
                    name: {"enum": [f"{a}{b}" for a in range(26) for b in range(10)]}
                    for name in "abcdef"
                }
            }
        },
        [dict.fromkeys("abcdef", "xx")] * 32,
    ),
    "many fields and none of them": (
        {
            "properties": {f"field_{n}_name": {} for n in range(900)},
            "required": [f"field_{n}_name" for n in range(900)],
            "additionalProperties": False,
        },
        {f"fild_{n}_nam": 1 for n in range(900)},
    ),
    "a long list of wrong items": ({"properties": {"a": {"items": {"type": "string"}}}}, WIDE),
    "a long list of wrong unions": (
        {"properties": {"a": {"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}},
        WIDE,
    ),
    "a wide object of wrong fields": (
        {"additionalProperties": {"type": "string"}},
        {f"k{n}": n for n in range(50_000)},
    ),
    "unique items": ({"uniqueItems": True}, [[n] for n in range(100_000)] + [[1]]),
    "a large number": ({"multipleOf": 0.0001}, 10**4_000),
}


ACCEPTED = {
    "refers to itself",
    "refers to itself in turns",
    "refers to itself, fanned out",
    "catastrophic property names",
    "a pattern in the arguments",
    "a large number",
}


CANONICAL: dict[str, tuple[dict[str, Any], Any]] = {
    "a union at each level": (
        {
            "$ref": "#/$defs/a",
            "$defs": {
                "a": {
                    "anyOf": [
                        {"items": {"$ref": "#/$defs/a"}, "type": "array"},
                        {"pattern": "(a{1,50}){1,50}[c-z]?", "type": "string"},
                        {"type": "integer"},
                    ]
                }
            },
        },
        nested(50, "a" * 1_500, lambda inner: [inner]),
    ),
    "many tagged objects": (
        {
            "items": {
                "oneOf": [
                    {"properties": {"k": {"const": n}}, "required": ["k"]} for n in range(300)
                ]
            }
        },
        [{"k": 299}] * 20_000,
    ),
    "many constants and a text": (
        {"items": {"anyOf": [*({"const": f"c{n}"} for n in range(300)), {"type": "string"}]}},
        ["text"] * 50_000,
    ),
}


@pytest.mark.parametrize("name", CANONICAL)
def test_the_canonical_form_is_bounded_in_time(name: str) -> None:
    schema, arguments = CANONICAL[name]
    validator = SchemaValidator({"properties": {"x": schema}} | {"$defs": schema.get("$defs", {})})
    found, spent = cost(lambda: validator.canonical({"x": arguments}), most=5 * LIMIT)
    assert spent < 5 * LIMIT
    assert isinstance(found, ValueError) is (name != "many constants and a text")


@pytest.mark.parametrize("name", BOUNDED)
def test_bounded_in_time(name: str) -> None:
    schema, arguments = BOUNDED[name]
    validator, spent = cost(lambda: SchemaValidator(schema), most=LIMIT)
    assert isinstance(validator, SchemaValidator)
    assert spent < LIMIT
    problems, spent = cost(lambda: validator.problems(arguments), most=LIMIT)
    assert spent < LIMIT
    assert len(problems) <= 1_000
    assert bool(problems) is (name not in ACCEPTED)
    if problems:
        text, spent = cost(
            lambda: texts.invalid_arguments(problems, shapes=validator.shapes), most=LIMIT
        )
        assert spent < LIMIT
        assert len(text) <= Caps().shape_characters
        assert not text.endswith("arguments: …")


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ("^[0-9a-f]{64}$", ["a1" * 32] * 10_000),
        ("^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$", ["some-host-name-7"] * 5_000),
        (r"^[^\x00]*$", ["text " * 150_000]),
        (r"^(?=.*\d)(?=.*[a-z]).{8,128}$", ["long and 1 secret"] * 1_000),
        (r"^(?!.*\.\.)[\w./-]{1,255}$", ["folder/name.py"] * 1_000),
        (r"^(?!\s)[\s\S]*$", ["text " * 150_000]),
        (r"^(?![\s\S]*<script)[\s\S]*$", ["text " * 150_000]),
        (r"^(?=.*\S)[\s\S]+$", ["text " * 150_000]),
        (r"^((?!<script)[\s\S])*$", ["text " * 1_700]),
        (r"^\d{4}-\d{2}-\d{2}$", ["2026-01-31"] * 30_000),
        (r"^.{0,4096}$", ["text"] * 30_000 + ["é" * 4_096]),
        (r"^(?!-)[\w-]{1,63}$", ["name"] * 10_000),
    ],
)
def test_ordinary_patterns_are_not_in_the_way(pattern: str, value: list[str]) -> None:
    validator = SchemaValidator({"properties": {"a": {"items": {"pattern": pattern}}}})
    assert validator.problems({"a": value}) == ()


def test_large_integers_are_not_in_the_way() -> None:
    schema = {"properties": {"a": {"items": {"type": "integer", "minimum": 0}}}}
    assert SchemaValidator(schema).problems({"a": [10**27 + n for n in range(2_000)]}) == ()


def test_an_honest_recursive_schema_is_not_in_the_way() -> None:
    """A tree, a linked list and an expression as models really send them."""
    tree = {
        "$ref": "#/$defs/t",
        "$defs": {
            "t": {
                "type": "object",
                "properties": {
                    "left": {"$ref": "#/$defs/t"},
                    "right": {"$ref": "#/$defs/t"},
                    "value": {"type": "integer"},
                },
                "required": ["value"],
            }
        },
    }
    validator = SchemaValidator(tree)
    assert validator.problems(nested(60, {"value": 1}, lambda t: {"left": t, "value": 1})) == ()
    deep = nested(60, {"value": "x"}, lambda t: {"right": t, "value": 1})
    assert validator.problems(deep)[0].kind == "type"
    validator = SchemaValidator(expression("and", "or", "not"))
    call = nested(6, "x", lambda inner: {"op": "and", "args": [inner, "y"]})
    assert validator.problems(call) == ()
    wrong = nested(6, 3, lambda inner: {"op": "and", "args": [inner, "y"]})
    assert validator.problems(wrong)
    right = nested(30, "x", lambda inner: {"op": "not", "args": [inner, "y"]})
    assert validator.problems(right) == ()
    strange = SchemaValidator(untagged("and", "or")).problems(DEEP_EXPRESSION)
    assert [problem.kind for problem in strange] == ["tooDeep"]


def test_nothing_is_fetched(tmp_path: Path) -> None:
    """Held to a real server and a real file, which would make these schemas compile."""
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object"}')
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        asked = threading.Event()

        def answer() -> None:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                return
            asked.set()
            connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            connection.close()

        listener = threading.Thread(target=answer)
        listener.start()
        for reference in (f"http://127.0.0.1:{server.getsockname()[1]}/a.json", path.as_uri()):
            for schema in ({"$ref": reference}, {"$schema": reference}, {"$dynamicRef": reference}):
                with pytest.raises(ToolDeclarationInvalid):
                    SchemaValidator(schema)
        listener.join()
        assert not asked.is_set()


def test_a_broken_schema_refuses_its_tool_alone() -> None:
    good = sealed(ToolSpec(name="good", input_schema={"type": "object"}))
    specs = [
        sealed(ToolSpec(name=name.replace(" ", "_"), input_schema=schema))
        for name, (schema, _) in REFUSED.items()
        # a worker cannot publish these:
        if name not in ("half of a surrogate pair", "not JSON", "deep nesting", "deep anyOf")
    ]
    catalog = Catalog()
    catalog.replace([*specs[:8], good, *specs[8:]])
    assert list(catalog.listed) == ["good"]
    assert set(catalog.refused) == {spec.name for spec in specs}
    assert all(reason.startswith("its input_schema") for reason in catalog.refused.values())


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": ["array", "null"]},
        {"type": "ARRAY"},
        {"const": 1},
        {"enum": ["a", []]},
        {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "null"}}},
        {"allOf": [{}, {"type": "array"}]},
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "number"}}},
    ],
)
def test_a_schema_that_takes_no_object_is_no_tool_s(schema: dict[str, Any]) -> None:
    """Every call would be refused, and the model blamed for it."""
    with pytest.raises(ToolDeclarationInvalid, match="takes no object"):
        SchemaCache().validator(sealed(ToolSpec(name="a", input_schema=schema)))
    with pytest.raises(ToolDeclarationInvalid, match="tool 'a' in .* takes no object"):
        tool(name="a", input_schema=schema)(lambda arguments: None)
    catalog = Catalog()
    catalog.replace([sealed(ToolSpec(name="a", input_schema=schema))])
    assert list(catalog.refused) == ["a"]


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": ["null", "object"]},
        {"type": "OBJECT"},
        {"anyOf": [{"type": "string"}, {"required": ["a"]}]},
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object"}}},
        {"$ref": "#"},
        {"const": {}},
    ],
)
def test_a_schema_that_takes_objects_is(schema: dict[str, Any]) -> None:
    SchemaCache().validator(sealed(ToolSpec(name="a", input_schema=schema)))


def test_a_schema_is_compiled_once() -> None:
    """R21."""
    cache = SchemaCache()
    spec = sealed(ToolSpec(name="a", input_schema={"type": "object"}))
    assert cache.validator(spec) is cache.validator(spec)
    assert cache.validator(ToolSpec(name="b")) is None
    off = ToolSpec(name="c", input_schema={"type": "objekt"}, check_schema=False)
    assert cache.validator(off) is None
