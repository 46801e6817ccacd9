"""Loads a worker's tools: from modules, packages with their submodules, or files."""

import importlib
import importlib.util
import math
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType

from toolpool.contract.errors import Misconfigured, ToolDeclarationInvalid, ToolsUnimportable
from toolpool.contract.exception_report import faults_in, faults_of, own_frame, tools_imported
from toolpool.contract.spec import RunIn
from toolpool.workers import safe_text
from toolpool.workers.running.process_role import Importing, import_from_here
from toolpool.workers.tool import Tool

BUILT_IN = "toolpool.workers.tools"
"""The tools of a worker if none are named."""
_LONGEST_TEXT = 1_000
_OF_CODE = (
    ImportError, SyntaxError, NameError, AttributeError, LookupError, TypeError, OSError
)  # fmt: skip
"""Python's messages of these types describe code and files; others may contain secrets."""


class Catalog:
    """The tools of one worker by name. Raises `ToolDeclarationInvalid` for duplicate names."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        by_name: dict[str, Tool] = {}
        for tool in tools:
            other = by_name.setdefault(tool.name, tool)
            if other is not tool:
                raise ToolDeclarationInvalid(
                    f"two tools are called {tool.name!r}: one in {other.__module__}, one in "
                    f"{tool.__module__}; give one of them another name with @tool(name=…)"
                )
        self.tools: Mapping[str, Tool] = MappingProxyType(by_name)
        self.imported_at = tools_imported()

    def of_processes(self, queues: Sequence[str]) -> list[Tool]:
        """The tools of these queues that run in child processes; of all queues if none is named."""
        return [
            tool
            for tool in self.tools.values()
            if tool.spec.run_in is RunIn.PROCESS and (not queues or tool.spec.queue in queues)
        ]

    @classmethod
    def load(cls, sources: Iterable[str]) -> "Catalog":
        """Import every source and collect its module-level tools.

        Raises `ToolsUnimportable` if a source does not exist, fails, or contains no tool.
        """
        tools_imported(math.inf)  # show source lines if an import fails
        found: dict[int, Tool] = {}
        for source in list(sources) or [BUILT_IN]:
            count = 0
            for module in _modules(source):
                for value in vars(module).values():
                    if isinstance(value, Tool):
                        found[id(value)] = value
                        count += 1
            if not count:
                raise ToolsUnimportable(
                    f"{source} has no tools: decorate a module-level function with @tool"
                )
        return cls(found.values())


def _modules(source: str) -> Iterator[ModuleType]:
    is_built_in = f"{source}.".startswith(f"{BUILT_IN}.")
    if not is_built_in:  # the current folder may be the workspace of the file tools
        import_from_here()
    with Importing(source):
        module = _import_file(source) if source.endswith(".py") else _import(source)
    yield module
    for info in pkgutil.walk_packages(getattr(module, "__path__", ()), module.__name__ + "."):
        with Importing(info.name):
            submodule = _import(info.name)
        yield submodule


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ToolDeclarationInvalid, KeyboardInterrupt):
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and _is_or_holds(error.name, name):
            raise ToolsUnimportable(
                f"there is no tools module {name!r} on the import path (the current directory is "
                "on it); name a module like `shop.tools` or a file like `./tools.py`"
            ) from None
        raise failed(name, "was imported", error) from error


def _import_file(source: str) -> ModuleType:
    path = Path(source).resolve()
    if not path.is_file():
        raise ToolsUnimportable(f"there is no tools file {source}")
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
        raise ToolsUnimportable(
            f"{source} cannot be loaded: a module called {name!r} is loaded already; rename it"
        )
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ToolDeclarationInvalid | KeyboardInterrupt):
            raise
        raise failed(source, "was imported", error) from error
    return module


def _is_or_holds(missing: str | None, name: str) -> bool:
    """Whether the missing module is the named one or one of its parent packages."""
    return missing is not None and f"{name}.".startswith(f"{missing}.")


def failed(source: str, when: str, error: BaseException) -> ToolsUnimportable:
    """The error for code of a tools module that failed while it, for example, "was imported".

    Its message is for the log; only `explained` has the exception's own text.
    """
    if isinstance(error, ModuleNotFoundError) and error.name:
        return ToolsUnimportable(
            f"{source} imports {error.name!r}, which is not installed: install it where the tools "
            "run, or make it importable from the current directory"
        )
    place = own_frame(faults_in({"faults": faults_of(error)}))
    where = f" in {place.file}, line {place.line}" if place is not None else ""
    if isinstance(error, SyntaxError):  # its text names the place
        where = ""
    said = f"{source} failed while it {when}: {type(error).__name__}{where}"
    text = " ".join(safe_text.text_of(error, _LONGEST_TEXT).split())
    explained = f"{said}: {text}" if text else said
    is_python_s = type(error).__module__ == "builtins" and isinstance(error, _OF_CODE)
    if isinstance(error, OSError):
        is_python_s = is_python_s and error.errno is not None  # else a module raised it itself
    if is_python_s or isinstance(error, Misconfigured):
        return ToolsUnimportable(explained)
    return ToolsUnimportable(f"{said}: import it by itself to see what it says", explained)
