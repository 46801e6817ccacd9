"""The JSON-Schema-Test-Suite's required tests, as schemas that name their draft."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}


@dataclass(frozen=True)
class Group:
    """A schema with the values it is tried on; `fetches` where it refers to a remote document."""

    draft: str
    file: str
    name: str
    schema: dict[str, Any]
    tests: list[dict[str, Any]]

    @property
    def fetches(self) -> bool:
        return "http://localhost:1234" in json.dumps(self.schema)


def groups(shared_data: Path) -> Iterator[Group]:
    """Every group of the required tests."""
    for draft, uri in DRAFTS.items():
        folder = shared_data / "json-schema-test-suite" / "tests" / draft
        for path in sorted(folder.glob("*.json")):
            for group in json.loads(path.read_text(encoding="utf-8")):
                schema = group["schema"]
                if isinstance(schema, dict):
                    schema = {"$schema": uri, **schema}
                else:  # a tool's schema is an object
                    schema = {"$schema": uri, "allOf": [schema]}
                yield Group(draft, path.name, group["description"], schema, group["tests"])
