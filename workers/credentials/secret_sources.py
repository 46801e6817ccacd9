"""Sources of secrets: the environment, a directory, or a function of the host."""

import inspect
import os
import re
import stat
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from toolpool.contract.errors import Misconfigured
from toolpool.contract.importing import loaded
from toolpool.contract.redis_keys import is_secret
from toolpool.contract.server.process_secrets import VARIABLE, variables_of
from toolpool.workers.running.process_role import import_from_here

_FILE = "file:"
_MOST_BYTES = 1 << 16
_NOT_IN_A_VARIABLE = re.compile(r"[^A-Z0-9]")


class Resolve(Protocol):
    """Returns the secret of this name for this user of this tenant, plain or awaitable.

    If it returns None or "", or raises a KeyError, there is no such secret. If it raises
    `NeedsSignIn`, the user has to sign in first. `user` is None if the call's context names none.
    """

    def __call__(
        self, *, tenant: str, user: str | None, name: str
    ) -> str | Awaitable[str | None] | None:
        """The secret, or an awaitable of it."""
        ...


class Source(NamedTuple):
    """A source of secrets, and its name for operators.

    `knows_users`: a missing secret may be one that its user has to set up.
    """

    name: str
    resolve: Resolve
    knows_users: bool = True


def source_of(setting: str, variables: Mapping[str, str] | None = None) -> Source | None:
    """The source that TOOLPOOL_SECRETS names; None if it is empty.

    `variables` are the TOOLPOOL_SECRET_… variables, by default those of this process. Raises
    `Misconfigured`.
    """
    if not setting:
        return None
    if setting == "env":
        held = variables_of(os.environ) if variables is None else variables
        return Source(setting, _environment(held), knows_users=False)
    if setting.startswith(_FILE):
        return Source(setting, _folder(Path(setting.removeprefix(_FILE))), knows_users=False)
    return Source(setting, _callable(setting))


def variable_of(name: str) -> str:
    """The variable that holds a secret: it ends in STRIPE_KEY for `stripe-key`."""
    return VARIABLE + _NOT_IN_A_VARIABLE.sub("_", name.upper())


def held_variables() -> list[str]:
    """The variables of this process that hold secrets, sorted."""
    return sorted(variables_of(os.environ))


def _environment(variables: Mapping[str, str]) -> Resolve:
    def resolve(*, tenant: str, user: str | None, name: str) -> str | None:
        return variables.get(variable_of(name))

    return resolve


def _folder(folder: Path) -> Resolve:
    if not folder.is_dir():
        raise Misconfigured(
            f"TOOLPOOL_SECRETS names the folder {folder}, which does not exist: make it, with a "
            "file for each secret"
        )
    folder = folder.absolute()  # a tool may change the current directory

    def resolve(*, tenant: str, user: str | None, name: str) -> str | None:
        return _content(folder / name) if is_secret(name) else None

    return resolve


def _content(path: Path) -> str | None:
    """The content of a file without its final newline. Never blocks on a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(f"{path} has more than {_MOST_BYTES:,} bytes")
    return data.decode().removesuffix("\n").removesuffix("\r")


def _callable(setting: str) -> Resolve:
    if not all(setting.partition(":")):
        raise Misconfigured(
            f"TOOLPOOL_SECRETS is {setting!r}: use `env`, `file:DIRECTORY` or `module:callable`, "
            "as in shop.vault:secret_of"
        )
    import_from_here()
    return usable(loaded("TOOLPOOL_SECRETS", setting), f"TOOLPOOL_SECRETS names {setting}, which")


def usable(resolve: Any, what: str) -> Resolve:
    """`resolve`, after a check that it accepts its arguments.

    Raises `Misconfigured`, with a message about `what`.
    """
    if not callable(resolve) or isinstance(resolve, type):
        raise Misconfigured(
            f"{what} is {type(resolve).__name__}, not a function of tenant, user and name"
        )
    try:
        inspect.signature(resolve).bind(tenant="", user=None, name="")
    except TypeError as error:
        raise Misconfigured(
            f"{what} cannot be called with (tenant=…, user=…, name=…): {error}"
        ) from None
    except ValueError:  # its signature cannot be inspected
        pass
    found: Resolve = resolve
    return found
