"""The policy file, reloaded while a dispatcher runs."""

import asyncio
import stat
from collections.abc import Callable
from pathlib import Path

from toolpool.contract import logs
from toolpool.contract.errors import Misconfigured
from toolpool.dispatcher.policy.rules import Rules, parse

log = logs.logger("policy")

_EVERY_SECONDS = 0.5
_LARGEST_BYTES = 1024 * 1024

_Stamp = tuple[int, int, int]


class RuleFile:
    """The current rules of a file. Raises `Misconfigured` if they are unusable.

    A later version that is unusable, or may have lost rules, is logged, and the previous rules stay
    in force.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()  # absolute, since the host may change its directory
        self._stamp: _Stamp | None = None
        self._seen: _Stamp | None = None
        self._text = ""
        self.rules = self._read()
        self._complaint = ""

    async def follow(self, look: Callable[[], None]) -> None:
        """Reload the file whenever it changes, and call `look` regularly, until cancelled."""
        while True:
            try:
                look()
            except Exception:  # the file is followed, whatever the schemas of tools are
                log.exception("policy_not_compared: a fault of toolpool's own")
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                rules = await asyncio.to_thread(self.changed)
            except Misconfigured as error:
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    log.error("policy_not_reloaded: the previous rules stay in force: %s", error)
                continue
            self._complaint = ""
            if rules is not None:
                self.rules = rules
                log.warning("policy_reloaded path=%s rules=%d", self.path, len(rules))

    def changed(self) -> Rules | None:
        """The rules of a changed file, once it has not changed between two calls.

        A file being written is briefly empty or cut off, and may still parse as rules. Raises
        `Misconfigured`.
        """
        try:
            before, self._seen = self._seen, self._stamp_now()
        except OSError as error:
            raise self._unreadable(error) from None
        return self._read() if self._seen == before != self._stamp else None

    def _read(self) -> Rules:
        try:
            stamp = self._stamp_now()
            if stamp[1] > _LARGEST_BYTES:
                raise Misconfigured(
                    f"the policy {self.path} has {stamp[1]} bytes; at most {_LARGEST_BYTES} "
                    "are read"
                )
            text = self.path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise self._unreadable(error) from None
        except UnicodeDecodeError:
            raise Misconfigured(f"the policy {self.path} is not UTF-8") from None
        rules = parse(text, str(self.path))
        if self._text:
            self._require_whole(text, rules)
        self._stamp, self._text = stamp, text
        return rules

    def _require_whole(self, text: str, rules: Rules) -> None:
        """Raises `Misconfigured` if the file may have lost its end since it was last read."""
        said = ""
        if self.rules.is_counted and not rules.is_counted:
            said = "it no longer says how many rules it has: write `rules = …` at its top"
        elif self._text.rstrip() != text.rstrip() and self._text.startswith(text.rstrip()):
            said = (
                "it is the previous file without its end: if that is intended, add a comment at "
                "its end"
            )
        if said:
            raise Misconfigured(f"the policy {self.path} cannot be used: {said}")

    def _stamp_now(self) -> _Stamp:
        found = self.path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe would wait for its writer
            raise Misconfigured(f"the policy {self.path} is not a regular file")
        return found.st_ctime_ns, found.st_size, found.st_ino  # mtime can be set back

    def _unreadable(self, error: OSError) -> Misconfigured:
        return Misconfigured(
            f"the policy {self.path} cannot be read ({error.strerror}): name a file of rules, or "
            "unset TOOLPOOL_POLICY"
        )
