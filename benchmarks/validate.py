"""What a verdict costs: text in, verdict out, over real tools and calls.

    python -m benchmarks.validate DATA [--json FILE] [--rounds 5]

DATA is the folder of recorded data that the tests use too. Accept is measured against
`json.loads` and jsonschema's compiled validator on the same texts, reject as it stands.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, validators

from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec, sealed
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.dispatcher.admission.validate import validate
from toolpool.dispatcher.formats.call_blocks import Reader
from toolpool.dispatcher.messages.wording import Wording

READER = Reader("turn", 2**20)
WORDING = Wording()


@dataclass
class Case:
    """One call: its text, our catalog for it, and the other side's validator."""

    text: str
    offers: Any
    other: Any

    def ours(self) -> Any:
        """The whole way of one call: parse, check, verdict or the text of a rejection."""
        call = READER.call(0, id="c", name="t", raw=self.text)
        return validate(call, self.offers, None, WORDING, repairs=False)

    def theirs(self) -> bool:
        """What everybody writes first."""
        return bool(self.other.is_valid(json.loads(self.text)))


def case(schema: dict[str, Any], arguments: Any) -> Case:
    """A case, compiled."""
    catalog = Catalog()
    catalog.replace([sealed(ToolSpec(name="t", input_schema=schema))])
    other = validators.validator_for(schema, Draft202012Validator)(schema)
    return Case(json.dumps(arguments), catalog.offers, other)


def bfcl(data: Path) -> Iterator[tuple[Case, bool]]:
    """Every recorded call, and whether it is valid."""
    for line in (data / "bfcl_calls.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield case(row["tool"]["input_schema"], row["arguments"]), row["valid"]


def mcp(data: Path) -> Iterator[tuple[Case, bool]]:
    """For each tool of real servers: arguments made from its schema, and the same misspelt."""
    for line in (data / "mcp_tools.jsonl").read_text().splitlines():
        schema = json.loads(line)["inputSchema"]
        made = example(schema, schema)
        if Draft202012Validator(schema).is_valid(made):
            yield case(schema, made), True
        broken = {**made, **{name: {"no": [1]} for name in list(made)[:1]}}
        if not Draft202012Validator(schema).is_valid(broken):
            yield case(schema, broken), False


def blind(data: Path) -> Iterator[tuple[Case, bool]]:
    """Calls of tools that nobody knows, guessed from name and description: shapes are needed."""
    for line in (data / "blind_tools.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield case(row["schema"], row["example"]), True
        yield case(row["schema"], row["blind_call"]), False


def example(schema: Any, root: Any, depth: int = 6) -> Any:
    """A value that most schemas of this shape take."""
    if not isinstance(schema, dict) or not depth:
        return {}
    if "$ref" in schema:
        node = root
        for step in schema["$ref"].lstrip("#/").split("/"):
            node = node[step]
        return example(node, root, depth - 1)
    for key in ("const", "default"):
        if schema.get(key) is not None:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example(schema[key][0], root, depth - 1)
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        return {name: example(inner, root, depth - 1) for name, inner in properties.items()}
    if kind == "array":
        return [example(schema.get("items", {}), root, depth - 1)] * schema.get("minItems", 1)
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    texts = {
        "uri": "https://example.org/a",
        "date": "2026-01-01",
        "date-time": "2026-01-01T00:00:00Z",
        "email": "a@example.org",
        "uuid": "12345678-1234-4234-8234-123456789abc",
    }
    text = texts.get(schema.get("format", ""), "a" * max(1, schema.get("minLength", 1)))
    return {"string": text, "integer": int(low) + 1, "number": low + 1, "boolean": True}.get(kind)


def quantiles(calls: list[Callable[[], Any]], rounds: int) -> tuple[float, float]:
    """p50 and p99 over the calls, in microseconds; each call's best round counts."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for position, call in enumerate(calls):
            began = time.perf_counter()
            call()
            best[position] = min(best[position], time.perf_counter() - began)
    best.sort()
    return best[len(best) // 2] * 1e6, best[int(len(best) * 0.99)] * 1e6


def measure(name: str, cases: list[tuple[Case, bool]], rounds: int) -> dict[str, Any]:
    """The figures of one set of calls."""
    for each, valid in cases:
        assert isinstance(each.ours(), ToolResult) is not valid, each.text[:200]
    good = [each for each, valid in cases if valid]
    bad = [each for each, valid in cases if not valid]
    accept = quantiles([each.ours for each in good], rounds)
    other = quantiles([each.theirs for each in good], rounds)
    reject = quantiles([each.ours for each in bad], rounds)
    return {
        "name": name,
        "accepted": len(good),
        "rejected": len(bad),
        "accept_p50_us": accept[0],
        "accept_p99_us": accept[1],
        "json_jsonschema_p50_us": other[0],
        "json_jsonschema_p99_us": other[1],
        "ratio_p50": accept[0] / other[0],
        "reject_p50_us": reject[0],
        "reject_p99_us": reject[1],
    }


def main() -> None:
    """Measure and print; `--json FILE` keeps the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validate")
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = [
        measure("BFCL", list(bfcl(options.data)), options.rounds),
        measure("MCP tools", list(mcp(options.data)), options.rounds),
        measure("blind", list(blind(options.data)), options.rounds),
    ]
    for row in found:
        print(
            f"{row['name']:10} accept p50 {row['accept_p50_us']:6.1f} us, "
            f"p99 {row['accept_p99_us']:6.1f}   json.loads + jsonschema p50 "
            f"{row['json_jsonschema_p50_us']:6.1f}, p99 {row['json_jsonschema_p99_us']:6.1f}   "
            f"ratio {row['ratio_p50']:.2f}   ({row['accepted']} calls)\n"
            f"{'':10} reject p50 {row['reject_p50_us']:6.1f} us, "
            f"p99 {row['reject_p99_us']:6.1f}   ({row['rejected']} calls)"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
