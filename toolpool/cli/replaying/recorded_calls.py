"""Reads the calls of session records."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolpool.cli.exit_codes import ExitCode, ExitNow


@dataclass(slots=True)
class Recorded:
    """One call. `input` is None if the record does not have it; `payload` is its answer."""

    row: str
    tool: str
    input: Any
    payload: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> str:
        """Its failure code; empty if it succeeded, or if its result is unknown."""
        return str(self.metadata.get("code") or (self.payload or {}).get("code") or "")

    @property
    def was_rejected(self) -> bool:
        """Whether it was rejected at once; a tool's own check rejects only at a worker."""
        return self.code.startswith("validation.") and not self.metadata.get("duration")


@dataclass(slots=True)
class Calls:
    """The calls of records, and the number of invalid lines."""

    calls: list[Recorded] = field(default_factory=list)
    unread: int = 0


def files_of(paths: Iterable[Path]) -> list[Path]:
    """The files of records. For a folder, all its files, rotated ones first."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            files = (file for file in path.rglob("*.jsonl*") if file.is_file())  # no pipes
            inside = sorted(files, key=lambda p: (p.name.partition(".")[0], -_age(p)))
            found += inside
            if not inside:
                raise ExitNow(f"there is no record in {path}", ExitCode.USAGE)
        else:
            found.append(path)
    return found


def _age(path: Path) -> int:
    last = path.name.rpartition(".")[2]
    return int(last) if last.isdigit() else 0


def read(paths: Iterable[Path]) -> Calls:
    """Every call in the records. A last line that a crash cut off is ignored."""
    found = Calls()
    by_row: dict[str, Recorded] = {}
    for path in files_of(paths):
        try:
            with path.open(encoding="utf-8", errors="replace") as lines:
                for row in _rows(lines, found):
                    _add_row(row, by_row, found)
        except OSError as error:
            raise ExitNow(
                f"cannot read the record {path} ({error.strerror}): name files or folders that "
                "TOOLPOOL_RECORD named",
                ExitCode.USAGE,
            ) from None
    return found


def _rows(lines: Iterable[str], found: Calls) -> Iterator[dict[str, Any]]:
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            found.unread += line.endswith("\n")
            continue
        if isinstance(row, dict):
            yield row
        else:
            found.unread += 1


def _add_row(row: dict[str, Any], by_row: dict[str, Recorded], found: Calls) -> None:
    try:
        if row["type"] == "tool_call":
            content = json.loads(row["content"])
            is_whole = "truncated" not in content
            call = Recorded(
                str(row["id"]), str(content["name"]), content["input"] if is_whole else None
            )
            by_row[call.row] = call
            found.calls.append(call)
        elif row["type"] == "tool_result" and row.get("parentId") in by_row:
            call = by_row[row["parentId"]]
            payload, metadata = json.loads(row["content"]), row.get("metadata")
            call.payload = payload if isinstance(payload, dict) else None
            call.metadata = metadata if isinstance(metadata, dict) else {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        found.unread += 1
