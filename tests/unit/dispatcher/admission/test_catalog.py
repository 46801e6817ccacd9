"""The tools a dispatcher offers, from what workers have published."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolpool import Dispatcher, SyncDispatcher, tool
from toolpool.contract.envelope import CatalogEntry, Envelope
from toolpool.contract.errors import Misconfigured
from toolpool.contract.signing import Keyring, generate_key
from toolpool.contract.spec import ToolSpec, sealed
from toolpool.dispatcher.admission.catalog import Catalog, read_file

ENVELOPE = Envelope(Keyring.local())


def entry(name: str, *, at: float = 1.0, key: Envelope = ENVELOPE, **fields: Any) -> bytes:
    spec = sealed(ToolSpec(name=name, **fields))
    return key.encode(CatalogEntry(spec=spec, published_at=at, version="0.1.0"))


def described(catalog: Catalog) -> dict[str, str]:
    return {name: offer.spec.description for name, offer in catalog.listed.items()}


@pytest.mark.parametrize("newest_first", [True, False])
def test_the_newest_of_a_name_wins(newest_first: bool) -> None:
    """Old and new workers publish side by side during an upgrade."""
    old, new = entry("a", at=1.0, description="old"), entry("a", at=2.0, description="new")
    catalog = Catalog()
    catalog.replace_published([new, old] if newest_first else [old, new], ENVELOPE)
    assert described(catalog) == {"a": "new"}


def test_a_schema_that_does_not_compile_refuses_that_tool_alone() -> None:
    broken = {"type": "object", "properties": {"a": {"type": "no such type"}}}
    catalog = Catalog()
    catalog.replace_published([entry("good"), entry("bad", input_schema=broken)], ENVELOPE)
    assert list(catalog.listed) == ["good"]
    assert list(catalog.refused) == ["bad"]
    assert "input_schema" in catalog.refused["bad"]
    catalog.replace_published([entry("good"), entry("bad", at=2.0)], ENVELOPE)
    assert (sorted(catalog.listed), catalog.refused) == (["bad", "good"], {})


@tool(input_schema={"type": "object", "properties": {"a": {"type": "no such type"}}})
async def broken(a: Any = None) -> None:
    """Has a schema that nothing can be held to."""


@tool
async def whole(a: int) -> None:
    """Has one that is in order."""


async def test_a_dispatcher_says_which_tools_it_refuses_and_why() -> None:
    async with Dispatcher.in_memory([broken, whole]) as dispatcher:
        assert "whole" in {each["name"] for each in dispatcher.tools()}
        assert "broken" not in {each["name"] for each in dispatcher.tools()}
        assert list(dispatcher.refused) == ["broken"]
        assert "does not compile" in dispatcher.refused["broken"]
    with pytest.raises(RuntimeError):
        _ = dispatcher.refused
    with SyncDispatcher.in_memory([broken, whole]) as blocking:
        assert list(blocking.refused) == ["broken"]


def test_a_remote_reference_is_never_fetched() -> None:
    remote = {"$ref": "http://127.0.0.1:1/schema.json"}
    catalog = Catalog()
    catalog.replace_published([entry("a", input_schema=remote)], ENVELOPE)
    assert list(catalog.refused) == ["a"]


def test_an_entry_without_a_trusted_signature_is_skipped() -> None:
    """A foreign entry cannot replace a tool, nor add one."""
    foreign = Envelope(Keyring([generate_key()]))
    entries = [
        entry("a", description="ours"),
        entry("a", at=9.0, key=foreign, description="theirs"),
        entry("b", key=foreign),
        b"\xff", b"",
    ]  # fmt: skip
    catalog = Catalog()
    catalog.replace_published(entries, ENVELOPE)
    assert described(catalog) == {"a": "ours"}


def test_a_tool_that_did_not_change_is_not_compiled_again() -> None:
    catalog = Catalog()
    catalog.replace_published([entry("a", input_schema={"type": "object"})], ENVELOPE)
    known = catalog.listed["a"]
    catalog.replace_published([entry("a", at=5.0, input_schema={"type": "object"})], ENVELOPE)
    assert catalog.listed["a"] is known


def test_a_tool_without_a_schema_takes_any_object() -> None:
    """R28; so does one whose check is switched off."""
    catalog = Catalog()
    off = {"type": "object", "required": ["a"]}
    catalog.replace([ToolSpec(name="a"), ToolSpec(name="b", input_schema=off, check_schema=False)])
    assert {name: offer.validator for name, offer in catalog.listed.items()} == {
        "a": None, "b": None,
    }  # fmt: skip


def test_an_exported_catalog_is_read_back(tmp_path: Path) -> None:
    specs = [sealed(ToolSpec(name="a", input_schema={"type": "object"}))]
    file = tmp_path / "catalog.json"
    file.write_text(json.dumps({"tools": msgspec.to_builtins(specs)}))
    assert read_file(file) == specs


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is not a catalog that `toolpool tools export` wrote"),
        ("[]", "is not a catalog that `toolpool tools export` wrote"),
        ('{"tools": [{}]}', "is not a catalog that `toolpool tools export` wrote"),
        ('{"tools": [{"name": 1}]}', "is not a catalog that `toolpool tools export` wrote"),
    ],
)
def test_a_file_that_is_no_catalog_says_so(
    tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "catalog.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(Misconfigured) as caught:
        read_file(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
