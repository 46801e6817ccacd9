"""Settings read from files, as containers mount secrets: `TOOLPOOL_<NAME>_FILE`."""

import os
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource

from toolpool.contract.errors import Misconfigured

IN_FILES = ("signing_key", "redis_url", "broker_url", "approval_webhook_secret")
"""The settings that hold secrets."""
_LONGEST_BYTES = 1 << 16


class SettingFiles(PydanticBaseSettingsSource):
    """Reads setting files. Raises `Misconfigured` for an unreadable or empty file."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return no value: `__call__` reads all files."""
        return self().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """The settings that files provide."""
        environment = {name.upper(): value for name, value in os.environ.items()}
        found = {}
        for name in IN_FILES:
            variable = f"TOOLPOOL_{name.upper()}"
            if not (path := environment.get(f"{variable}_FILE")):
                continue
            if environment.get(variable):
                raise Misconfigured(f"{variable} and {variable}_FILE are both set: unset one")
            if name in self.current_state:  # passed as an argument
                continue
            found[name] = _read(f"{variable}_FILE", path)
        return found


def _read(variable: str, path: str) -> str:
    """The text of a file without its trailing newline."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_LONGEST_BYTES).removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise Misconfigured(
            f"{variable} names {path}, which cannot be read ({reason}): let this user read it, or "
            "name another file"
        ) from None
    if not text.strip():
        raise Misconfigured(f"{variable} names {path}, which is empty")
    return text
