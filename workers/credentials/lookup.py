"""Resolves the secrets that a call's tool declares, for the call's user, before it runs.

Nothing is cached, so that no user ever gets another's secret.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolpool.contract import encoding
from toolpool.contract.credentials import USER, MissingReason, MissingSecret, missing_secret_outcome
from toolpool.contract.envelope import CallMessage
from toolpool.contract.exception_report import faults_in, faults_of
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.settings import Settings
from toolpool.workers import safe_text
from toolpool.workers.credentials.resolver import SecretAnswer, SecretResolver, is_none, sign_in_of
from toolpool.workers.credentials.secret_sources import Source
from toolpool.workers.tool import Tool
from toolpool.workers.worker_observer import Unresolved

_TEXT_CHARACTERS = 500
_VALUE_CHARACTERS = 1 << 16


@dataclass(frozen=True, slots=True)
class _User:
    """The user of a call, or the reason (`why`) for which the context names none."""

    name: str | None = None
    why: str = ""


class Credentials:
    """Resolves the secrets of one worker's calls. `tell` is called if they cannot be resolved."""

    def __init__(
        self,
        source: Source | None,
        settings: Settings,
        tell: Callable[[Unresolved], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._asker = SecretResolver(source.resolve) if source is not None else None
        self._seconds = settings.hook_timeout
        self._with_texts = settings.error_texts
        self._tell = tell

    def close(self) -> None:
        """Stop resolving."""
        if self._asker is not None:
            self._asker.close()

    async def of(
        self, tool: Tool, call: CallMessage, *, tenant: str, within: float
    ) -> dict[str, str] | Outcome:
        """The tool's declared secrets by name, or why its call is not run.

        Takes at most `within` seconds, and at most the hook timeout.
        """
        if self._asker is None:
            why = "TOOLPOOL_SECRETS is not set"
            return self._unresolved(tool, tool.secrets[0], why, 0.0, lack=MissingReason.MISSING)
        user = _user_of(call.context)
        if user.why:
            return self._unresolved(tool, tool.secrets[0], user.why, 0.0)
        began = time.monotonic()
        answers = await asyncio.gather(
            *(
                self._ask(self._asker, tenant, user.name, name, min(within, self._seconds))
                for name in tool.secrets
            )
        )
        seconds = time.monotonic() - began
        found: dict[str, str] = {}
        for name, answer in zip(tool.secrets, answers, strict=True):
            if answer is None and within < self._seconds:  # the call's own time ran out
                return failure(Code.EXPIRED, "", Executed.NO)
            value = self._judged(tool, name, answer, seconds, user)
            if isinstance(value, Outcome):
                return value
            found[name] = value
        return found

    @staticmethod
    async def _ask(
        asker: SecretResolver, tenant: str, user: str | None, name: str, seconds: float
    ) -> SecretAnswer | None:
        """The resolver's answer; None on a timeout."""
        try:
            async with asyncio.timeout(seconds):
                return await asker.ask(tenant=tenant, user=user, name=name)
        except TimeoutError:
            return None

    def _judged(
        self, tool: Tool, name: str, answer: SecretAnswer | None, seconds: float, user: _User
    ) -> str | Outcome:
        assert self._source is not None
        if answer is None:
            why = f"it did not answer within {self._seconds:g} s"
            return self._unresolved(tool, name, why, seconds)
        if (sign_in := sign_in_of(answer)) is not None:
            lack = MissingSecret(
                lack=MissingReason.SIGN_IN, name=name, url=safe_text.url_of(sign_in.url)
            )
            return missing_secret_outcome(lack, Executed.NO)
        if is_none(answer):
            if self._source.knows_users and user.name is not None:
                return missing_secret_outcome(
                    MissingSecret(lack=MissingReason.MISSING, name=name), Executed.NO
                )
            return self._unresolved(
                tool, name, "it is not set up", seconds, lack=MissingReason.MISSING
            )
        if answer.error is not None:
            why = f"it raised {safe_text.name_of(answer.error)}"
            return self._unresolved(tool, name, why, seconds, answer.error)
        if why := _fault_of(answer.value):
            return self._unresolved(tool, name, why, seconds)
        return str.__str__(answer.value)

    def _unresolved(
        self,
        tool: Tool,
        name: str,
        why: str,
        seconds: float,
        error: BaseException | None = None,
        *,
        lack: MissingReason = MissingReason.UNAVAILABLE,
    ) -> Outcome:
        """Report a failure to operators; the model does not see the exception."""
        faults = faults_of(error) if error is not None else []
        shows = error is not None and self._with_texts
        self._tell(
            Unresolved(
                name=name,
                tool=tool.name,
                source=self._source.name if self._source is not None else "none",
                why=why,
                is_missing=lack is MissingReason.MISSING,
                seconds=round(seconds, 6),
                faults=faults_in({"faults": faults}),
                text=safe_text.text_of(error, _TEXT_CHARACTERS) if shows else None,
            )
        )
        return missing_secret_outcome(MissingSecret(lack=lack, name=name), Executed.NO)


def _fault_of(value: object) -> str:
    """Why a returned value is not a secret; "" if it is one."""
    if not isinstance(value, str):
        return f"it returned {type(value).__name__}, not text"
    if len(value) > _VALUE_CHARACTERS:
        return f"it returned more than {_VALUE_CHARACTERS:,} characters"
    if encoding.printable(value) != value:
        return "it returned text that is not Unicode"
    return ""


def _user_of(context: Mapping[str, Any] | None) -> _User:
    """The user that a call's context names: text or an integer."""
    user = (context or {}).get(USER)
    if user is None or user == "":
        return _User()
    if isinstance(user, str):
        return _User(user)
    if isinstance(user, int) and not isinstance(user, bool):
        return _User(str(user))
    return _User(why=f"the context's {USER!r} is {type(user).__name__}, not text")
