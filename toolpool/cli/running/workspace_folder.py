"""The folder that the file tools of a run work on."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolpool.contract.errors import Misconfigured


@contextmanager
def workspace(directory: Path | None, copy_of: Path | None) -> Iterator[Path | None]:
    """`directory` itself, or a copy of `copy_of` that is removed at the end, or None for neither.

    Raises `Misconfigured` if there is no such folder or it cannot be copied.
    """
    if copy_of is None:
        yield _existing(directory) if directory is not None else None
        return
    with tempfile.TemporaryDirectory(
        prefix="toolpool-workspace-", ignore_cleanup_errors=True
    ) as parent:
        copy = Path(parent, "workspace")
        try:
            shutil.copytree(_existing(copy_of), copy, symlinks=True)
        except OSError as error:
            raise Misconfigured(
                f"cannot copy the workspace {copy_of} ({error.strerror or 'some of its files'}): "
                "make its files readable, or work on it directly with --workspace"
            ) from None
        yield copy


def _existing(directory: Path) -> Path:
    if not directory.is_dir():
        raise Misconfigured(f"there is no folder {directory} to work on: make it, or name another")
    return directory.resolve()
