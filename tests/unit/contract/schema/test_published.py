"""Schemas that large projects publish, as they are: none is refused for its references (R54)."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import jsonschema_specifications
import pytest

from tests.cost import cost
from tests.unit.contract.schema.instances import like, values
from tests.unit.contract.schema.test_validator_attacks import LIMIT
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import Caps

Object = dict[str, Any]

REFUSED = {
    "azure-pipelines": "at most 10,000 values",
    "renovate": "at most 10,000 values",
    "drone-ci": "nothing is fetched",
}
"""Two of some two megabytes, and one that needs another document."""

STEP = {"name": "test", "run": "make test", "env": {"CI": "true"}}
DOCUMENTS: dict[str, Object] = {
    "github-workflows": {
        "name": "check",
        "on": {"push": {"branches": ["main"]}, "pull_request": None},
        "jobs": {
            "test": {
                "runs-on": "ubuntu-latest",
                "strategy": {"matrix": {"python": ["3.11", "3.12"]}},
                "steps": [{"uses": "actions/checkout@v4"}, STEP],
            }
        },
    },
    "circle-ci": {
        "version": 2.1,
        "jobs": {
            "build": {
                "docker": [{"image": "cimg/python:3.12"}],
                "steps": ["checkout", {"run": {"name": "test", "command": "make test"}}],
            }
        },
        "workflows": {"all": {"jobs": ["build"]}},
    },
    "compose-spec": {
        "services": {
            "web": {"image": "nginx", "ports": ["80:80"], "depends_on": ["db"]},
            "db": {"image": "postgres", "environment": {"POSTGRES_PASSWORD": "x"}},
        },
        "volumes": {"data": None},
    },
    "gitlab-ci": {
        "stages": ["test"],
        "unit": {"stage": "test", "image": "python:3.12", "script": ["make test"]},
    },
    "buildkite": {"steps": [{"label": "test", "command": "make test"}, "wait"]},
    "travis": {"language": "python", "python": ["3.11"], "script": "make test"},
    "dependabot": {
        "version": 2,
        "updates": [
            {
                "package-ecosystem": "pip",
                "directory": "/",
                "schedule": {"interval": "weekly"},
            }
        ],
    },
    "snapcraft": {
        "name": "toolpool",
        "base": "core22",
        "version": "1",
        "summary": "A pool of tools",
        "description": "Runs tools",
        "grade": "stable",
        "confinement": "strict",
        "parts": {"all": {"plugin": "python", "source": "."}},
    },
    "draft7": {
        "type": "object",
        "properties": {"a": {"items": {"anyOf": [{"type": "string"}, {"enum": [1, 2]}]}}},
        "required": ["a"],
    },
}


def published() -> dict[str, Path]:
    found = {}
    package = importlib.util.find_spec("check_jsonschema")
    if package is not None and package.origin is not None:
        folder = Path(package.origin).parent / "builtin_schemas" / "vendor"
        found = {path.stem: path for path in folder.glob("*.json")}
    folder = Path(jsonschema_specifications.__file__).parent / "schemas"
    return found | {path.parent.name: path for path in folder.glob("draft[4-9]/metaschema.json")}


PUBLISHED = published()
NAMES = sorted(PUBLISHED.keys() | DOCUMENTS.keys() | REFUSED.keys())


def schema_of(name: str) -> Object:
    if name not in PUBLISHED:
        pytest.skip("check-jsonschema, which brings the schema, is not installed")
    schema: Object = json.loads(PUBLISHED[name].read_text(encoding="utf-8"))
    return schema


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_it_compiles_and_explains_within_the_bounds(name: str) -> None:
    schema = schema_of(name)
    validator, spent = cost(lambda: SchemaValidator(schema), most=LIMIT)
    assert spent < LIMIT
    if name in REFUSED:
        assert isinstance(validator, ToolDeclarationInvalid)
        assert REFUSED[name] in str(validator)
        return
    assert isinstance(validator, SchemaValidator)
    for sent in [*values(schema, 1, 6), {}, {"a": 1}]:
        problems, spent = cost(lambda sent=sent: validator.problems(sent), most=LIMIT)
        assert spent < LIMIT
        if problems:
            text, spent = cost(
                lambda problems=problems: texts.invalid_arguments(
                    problems, shapes=validator.shapes
                ),
                most=LIMIT,
            )
            assert spent < LIMIT
            assert len(text) <= Caps().shape_characters


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_it_is_for_is_taken_and_what_is_wrong_with_it_is_told(name: str) -> None:
    document = DOCUMENTS[name]
    validator = SchemaValidator(schema_of(name))
    assert validator.problems(document) == ()
    told = [validator.problems(broken) for broken in like(document, count=60)]
    kinds = [problems[0].kind for problems in told if problems]
    assert len(kinds) > 10
    assert not {"schema", "tooDeep"} & set(kinds)
