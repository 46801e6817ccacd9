"""`docs/wire-format.md` shows what is on the wire, and leaves nothing out."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.contract.samples import SAMPLES, body_of, golden
from toolpool.contract.redis_keys import RedisKeys

TEXT = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text(encoding="utf-8")
SHOWN = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]


def newest(name: str) -> Any:
    return json.loads(body_of(golden(name)[-1]))


def test_every_example_is_a_golden_message() -> None:
    pinned = [newest(name) for name in SAMPLES]
    pinned.append(json.loads(golden("celery")[-1]) | {"body": "…"})
    assert [block for block in SHOWN if block not in pinned] == []


KINDS = {type(sample.value).__name__: type(sample.value) for sample in SAMPLES.values()}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_message_has_an_example(kind: type) -> None:
    names = [name for name, sample in SAMPLES.items() if type(sample.value) is kind]
    assert any(newest(name) in SHOWN for name in names)


def test_every_kind_of_key_is_listed() -> None:
    names = RedisKeys("p")
    fixed = [value for key, value in vars(names).items() if key not in ("prefix", "call_prefix")]
    made = [
        make("x")
        for key in dir(names)
        if not key.startswith("_") and callable(make := getattr(names, key))
        and key not in ("catalog_field", "queue")
    ]  # fmt: skip
    listed = TEXT[TEXT.index("## Redis keys") :]
    kinds = {str(key).split(":")[1] for key in (*fixed, *made)} - {"dispatcher"}  # not in use yet
    missing = [kind for kind in sorted(kinds) if not re.search(rf"`{kind}[:`]", listed)]
    assert not missing


@pytest.mark.parametrize(
    "word",
    [
        "foreign",
        "unsigned",
        "unknown_key",
        "bad_signature",
        "too_large",
        "version",
        "malformed",
        "late",
    ],
)
def test_every_reason_is_explained_and_used(word: str) -> None:
    assert f"| `{word}` |" in TEXT
    sources = Path(__file__).parents[2]
    files = [*(sources / "contract").glob("**/*.py"), *(sources / "workers").glob("**/*.py")]
    assert any(f'"{word}"' in file.read_text(encoding="utf-8") for file in files)
