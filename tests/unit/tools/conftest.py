"""A workspace of its own for each test, and tools that see it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolpool.workers.tools.configured import settings


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root that the file tools are confined to; `tmp_path / "outside.txt"` is out of bounds."""
    root = tmp_path / "workspace"
    root.mkdir()
    (tmp_path / "outside.txt").write_text("the secret outside\n")
    monkeypatch.setenv("TOOLPOOL_WORKSPACE", str(root))
    settings.cache_clear()
    yield root
    settings.cache_clear()
