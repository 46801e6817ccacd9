"""What the tests of clients share: environments, variables, and the programs of documents."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.environments import environment
from toolpool.local import LocalFleet

HERE = Path(__file__).parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PROMPT = pytest.mark.timeout(400)  # the first time, packages are downloaded


def client_environment(name: str, packages: list[str]) -> Path:
    """The programs of an environment with what toolpool itself brings, and these packages."""
    return environment(f"client-{name}", [*packages, *PROJECT["dependencies"]])


def variables(fleet: LocalFleet, **more: str) -> dict[str, str]:
    """The environment variables of a program that dispatches to this fleet."""
    key = fleet.settings.signing_key
    assert key is not None
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{HERE}",
        "PYTHONWARNINGS": "error::DeprecationWarning:toolpool",
        "TOOLPOOL_REDIS_URL": fleet.settings.redis_url or "",
        "TOOLPOOL_SIGNING_KEY": key.get_secret_value(),
        **more,
    }


def written(document: str, folder: Path) -> Path:
    """Write the files of a document, whose first lines name them."""
    text = (REPOSITORY / "docs" / document).read_text(encoding="utf-8")
    for name, code in re.findall(r"```python\n# (\w+\.py)[^\n]*\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(code, encoding="utf-8")
    return folder
