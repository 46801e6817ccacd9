"""The folders whose code this process imports: the file tools must not write there.

A file that a model writes into one of them would run with the worker's rights as soon as something
imports it, in this process or in the next one.
"""

import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path


def holds_code(root: str, parts: Sequence[str]) -> bool:
    """Whether a folder, by its path below the workspace `root`, is one of code.

    The file tools follow no link below the root, so none is followed here.
    """
    root = os.path.realpath(root)
    folder = os.path.join(root, *parts).casefold()  # some file systems ignore the case
    folders = _code_folders(root, tuple(sys.path), len(sys.modules))
    return any(folder == each or folder.startswith(each + os.sep) for each in folders)


@lru_cache(maxsize=4)
def _code_folders(root: str, path: tuple[str, ...], modules: int) -> frozenset[str]:
    """The import path and the folders of loaded modules, as far as they are in the workspace.

    `modules` is how many are loaded: the answer is found again if others were.
    """
    files = [getattr(module, "__file__", None) for module in sys.modules.copy().values()]
    found = {os.path.dirname(file) for file in files if isinstance(file, str)}
    found |= {os.path.abspath(entry) for entry in (*path, sys.prefix)}
    real = {os.path.realpath(each) for each in found}
    inside = {each for each in real if each == root or Path(root) in Path(each).parents}
    return frozenset(each.casefold() for each in inside)
