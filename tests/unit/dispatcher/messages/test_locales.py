"""Languages: every word that is asked for is there, and adding one is adding one file (R12)."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from toolpool import Dispatcher, tool
from toolpool.contract.errors import Misconfigured
from toolpool.contract.settings import Settings
from toolpool.dispatcher.messages import locales

SOURCE = "\n".join(
    path.read_text(encoding="utf-8")
    for path in sorted((REPOSITORY / "toolpool" / "dispatcher").glob("**/*.py"))
    if path.parent.name != "locales"
)


def texts(words: locales.Locale) -> dict[str, str]:
    """Every text of a language, by field, or by field and key."""
    found: dict[str, str] = {}
    for field in words.__dataclass_fields__:
        value = getattr(words, field)
        if isinstance(value, str):
            found[field] = value
        else:
            found |= {f"{field}.{key}": text for key, text in value.items()}
    return found


@pytest.mark.parametrize("name", locales.names())
def test_every_language_has_every_sentence_with_the_same_blanks(name: str) -> None:
    english, theirs = texts(locales.locale("en")), texts(locales.locale(name))
    assert english.keys() == theirs.keys()
    for key, text in english.items():
        blanks = re.findall(r"\{\w*\}", text)
        assert sorted(blanks) == sorted(re.findall(r"\{\w*\}", theirs[key])), key


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("flaws", r'Flaw\(\s*Code\.\w+,\s*f?"(\w+)'),
        ("unreadable", r'NotAResponse\(\s*"(\w+)"'),
        ("text_repairs", r'done\["(\w+)"(?: if .+ else "(\w+)")?\]|or \("(\w+)",\)'),
    ],
)
def test_every_reason_that_the_code_gives_has_words_and_no_other(field: str, asked: str) -> None:
    given = {
        name
        for found in re.finditer(asked, SOURCE, re.MULTILINE)
        for name in found.groups()
        if name is not None
    }
    # A call without a name is told the names there are, in a sentence of its own.
    assert given - {"no_name"} == set(getattr(locales.locale("en"), field))


def test_whatever_breaks_json_has_words_and_no_other() -> None:
    [table] = re.findall(r"^_BREAKS = \((.*?)^\)", SOURCE, re.MULTILINE | re.DOTALL)
    given = set(re.findall(r', "(\w+)"\),', table))
    by_place = {"early", "other"}  # by where the text ends, and where nothing else is known
    assert given | by_place == set(locales.locale("en").json_breaks)


def test_every_text_is_used() -> None:
    for field in locales.Locale.__dataclass_fields__:
        assert re.search(rf"\.{field}\b", SOURCE), field


def test_the_chinese_texts_are_chinese() -> None:
    """Names and types are not translated; sentences are."""
    for key, text in texts(locales.locale("zh")).items():
        words = re.sub(r"\{\w*\}|'[^']*'|`[^`]*`", "", text)
        assert not re.search(r"[A-Za-z]{2,} [a-z]{2,} [a-z]{2,}", words), key


@tool
async def search(limit: int) -> str:
    """Search."""
    return "found"


def ask(arguments: Any) -> dict[str, Any]:
    return {"id": "", "name": "search", "input": arguments}


async def test_what_is_said_of_reading_a_call_is_in_the_model_s_language() -> None:
    """R15, R25: the reason, the note on the id, and the note on repaired text."""
    async with Dispatcher.in_memory([search], settings=Settings(locale="zh")) as dispatcher:
        [broken] = await dispatcher.dispatch(ask('{"limit": 1'), turn="t")
        assert broken.error == (
            "参数不是有效的 JSON：在对象闭合之前就结束了，位于第 11 个字符（共 11 个），"
            '附近为 `{"limit": 1`。请重新发送该调用：一个 JSON 对象，键和字符串使用双引号。'
        )
        assert broken.note == "该调用没有可用的 id，已给定 id 't-0'。"
        [repaired] = await dispatcher.dispatch(ask('{"limit": 1,}'), turn="t")
        assert repaired.ok
        assert repaired.note == (
            "该调用没有可用的 id，已给定 id 't-0'。 "
            "参数不是严格的 JSON（右括号之前的逗号），已修正。"
        )
        turn = await dispatcher.dispatch({"choices": []})
        assert turn.error == "请使用有效格式重试。无法读取上一个响应：completion 没有 choices。"


async def test_adding_a_language_is_adding_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is found by its name; nothing else is told of it."""
    english = Path(locales.__file__).with_name("en.py").read_text(encoding="utf-8")
    theirs = english.replace('"default": "Required"', '"default": "Påkrevd"')
    (tmp_path / "nb.py").write_text(theirs, encoding="utf-8")
    monkeypatch.setattr(locales, "__path__", [*locales.__path__, str(tmp_path)])
    locales.names.cache_clear()
    try:
        async with Dispatcher.in_memory([search], settings=Settings(locale="nb")) as dispatcher:
            [result] = await dispatcher.dispatch(ask({}))
            assert str(result.error).endswith("Errors: limit: Påkrevd, expected integer")
    finally:
        monkeypatch.undo()
        locales.names.cache_clear()
        locales.locale.cache_clear()


def test_a_language_that_is_not_there_says_which_are() -> None:
    with pytest.raises(Misconfigured, match="no locale 'xx': use one of en, zh"):
        locales.locale("xx")
