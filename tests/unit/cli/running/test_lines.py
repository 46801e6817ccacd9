"""Reading lines: from anything, in any encoding, without holding much of it."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest

from toolpool.cli.running import lines
from toolpool.cli.running.lines import Line, LineSource
from toolpool.contract.errors import Misconfigured


async def read_all(path: Path) -> list[Line]:
    return [line async for line in LineSource(str(path)).lines()]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"a", [(1, b"a")]),
        (b"a\n", [(1, b"a")]),
        (b"a\nb", [(1, b"a"), (2, b"b")]),
        (b"\n  \n\r\na\n\n", [(4, b"a")]),
        (b"a\r\nb\r\n", [(1, b"a"), (2, b"b")]),
        (b"\xef\xbb\xbfa\n", [(1, b"a")]),
        (b"\xff\xfe\n\x00\n", [(1, b"\xff\xfe"), (2, b"\x00")]),
    ],
)
async def test_lines_are_numbered_and_blank_ones_left_out(
    tmp_path: Path, content: bytes, expected: list[tuple[int, bytes]]
) -> None:
    path = tmp_path / "in"
    path.write_bytes(content)
    found = await read_all(path)
    assert [(line.number, line.text) for line in found] == expected
    if found:
        assert found[-1].read == len(content.rstrip(b"\n")) + content.endswith(b"\n") or (
            content.endswith(b"\n\n")
        )


async def test_a_line_over_many_chunks_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_CHUNK", 7)
    path = tmp_path / "in"
    content = b"\n".join(b"x" * length for length in range(1, 60))
    path.write_bytes(content)
    found = await read_all(path)
    assert [len(line.text) for line in found] == list(range(1, 60))
    assert [line.read for line in found][-1] == len(content)


@pytest.mark.parametrize("end", [b"\n", b""])
async def test_a_huge_line_is_left_out_and_the_next_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    monkeypatch.setattr(lines, "_CHUNK", 10)
    monkeypatch.setattr(lines, "LONGEST_LINE", 100)
    path = tmp_path / "in"
    path.write_bytes(b"a\n" + b"x" * 1000 + b"\nb\n" + b"y" * 101 + end)
    found = await read_all(path)
    assert [(line.number, line.text, line.too_long) for line in found] == [
        (1, b"a", False),
        (2, b"", True),
        (3, b"b", False),
        (4, b"", True),
    ]


async def test_a_pipe_gives_each_line_as_it_arrives(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    source = LineSource(str(path))
    assert source.size is None
    found = source.lines()
    for text in (b"one", b"two"):
        os.write(writer, text + b"\n")
        assert (await asyncio.wait_for(anext(found), 5)).text == text
    os.close(writer)
    await cast("AsyncGenerator[Line, None]", found).aclose()


@pytest.mark.parametrize("name", ["absent", "."])
def test_what_cannot_be_read_says_so_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(Misconfigured, match="cannot read .*: name a JSONL file"):
        LineSource(str(tmp_path / name))
