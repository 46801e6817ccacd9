"""Sends issues, transactions, check-ins and metrics to Sentry, from a background thread.

It uses its own client, so a host's own Sentry is not affected. Events are built here from known
facts; nothing is collected from the process: no local variables, breadcrumbs or arguments.
"""

import contextlib
import copy
import logging
import os
import platform
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import sentry_sdk
from sentry_sdk.scope import use_scope
from sentry_sdk.transport import HttpTransport
from sentry_sdk.utils import BadDsn

from toolpool.contract import logs
from toolpool.contract.encoding import printable
from toolpool.contract.errors import Misconfigured
from toolpool.contract.exception_report import (
    ExceptionReport,
    Failure,
    Frame,
    own_frame,
    reported_apart,
)
from toolpool.contract.observer_dispatch import guarded
from toolpool.contract.outcome import Code
from toolpool.contract.settings import Settings
from toolpool.contract.telemetry.throttle import Throttle
from toolpool.contract.telemetry.trace_headers import Parent, new_span_id, new_trace_id
from toolpool.contract.version import VERSION

log = logs.logger("sentry")

_DSN = "SENTRY_DSN"
_RELEASE, _ENVIRONMENT = "SENTRY_RELEASE", "SENTRY_ENVIRONMENT"
_SAMPLE_RATE = "SENTRY_TRACES_SAMPLE_RATE"
_WAITING_AT_MOST = 2_000
_FLUSH_SECONDS = 2.0
_MINUTE_SECONDS = 60.0
_GATHER_SECONDS = 0.5
_TAG_CHARACTERS = 200
_RUNTIME = {"name": platform.python_implementation(), "version": platform.python_version()}
_DROPPED_KEYS = ("breadcrumbs", "request", "user", "extra", "modules", "sys.argv")

_TITLES: dict[str, str] = {
    Code.WORKER_LOST: "A worker was lost while it ran calls",
    Code.QUEUE_UNREACHABLE: "No server took a call",
    Code.EXPIRED: "No worker started a call in time",
    Code.OVERLOADED: "A call was refused: too many wait, or its rate limit is reached",
    Code.CIRCUIT_OPEN: "{tool}: the circuit is open after too many failures",
    Code.TIMEOUT: "{tool} did not end in time",
    Code.CRASHED: "The process that ran {tool} {cause}",
    Code.DENIED: "{tool} was not run: {cause}",
    Code.BAD_RESULT: "{tool} returned a result that is {cause}",
}

Event = dict[str, Any]
BeforeSend = Callable[[Event, dict[str, Any]], Event | None]
"""Takes an event and Sentry's hint, and returns the event to send, or None to drop it."""


class Reports:
    """Sends reports to one Sentry project. Raises `Misconfigured` for invalid settings."""

    def __init__(
        self,
        settings: Settings,
        dsn: str | None = None,
        *,
        every_minute: Callable[[], None] = lambda: None,
        before_send: BeforeSend | None = None,
    ) -> None:
        dsn = dsn or os.environ.get(_DSN)
        if not dsn:
            raise Misconfigured(
                f"there is no Sentry to report to: set {_DSN} to your project's DSN"
            )
        self.sample_rate = _sample_rate()
        self.release = os.environ.get(_RELEASE) or f"toolpool@{VERSION}"
        self.environment = os.environ.get(_ENVIRONMENT) or "production"
        self._dsn = dsn
        self._before_send = before_send
        self._client = self._new_client()
        self._public_key = dsn.partition("//")[2].partition("@")[0].partition(":")[0]
        self._scope = sentry_sdk.Scope(client=self._client)
        self._throttle = Throttle(
            of_each=max(1, settings.sentry_per_minute // 10), in_all=settings.sentry_per_minute
        )
        self._waiting: queue.Queue[Callable[[], Event] | None] = queue.Queue(_WAITING_AT_MOST)
        self._thread: threading.Thread | None = None
        self._every_minute = every_minute
        self._hurries = threading.Event()
        """An event that is set if a report should be sent at once."""
        self._users = 0

    def open(self) -> None:
        """Start sending. With several users, sending goes on until the last has closed it."""
        self._users += 1
        if self._users > 1:
            return
        if self._client.transport is None:  # closed before, and opened again
            self._client = self._new_client()
            self._scope = sentry_sdk.Scope(client=self._client)
        self._thread = threading.Thread(target=self._send, name="toolpool-sentry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the waiting reports, for two seconds at most."""
        self._users = max(0, self._users - 1)
        if self._thread is None or self._users:
            return
        give_up_at = time.monotonic() + _FLUSH_SECONDS
        self._report_suppressed()
        self._hurries.set()
        try:
            self._waiting.put(None, timeout=_FLUSH_SECONDS)
        except queue.Full:
            log.warning("sentry_too_slow: reports that waited at close were not sent")
        self._thread.join(max(0.0, give_up_at - time.monotonic()))
        left = max(0.1, give_up_at - time.monotonic())
        self._client.close(timeout=left)
        self._thread = None

    def issue(
        self,
        *,
        tool: str,
        code: str,
        level: str,
        title: str = "",
        faults: Sequence[ExceptionReport] = (),
        cause: str = "",
        tags: Mapping[str, object],
        seconds: float = 0.0,
        failure: Failure | None = None,
        parent: Parent | None = None,
    ) -> None:
        """Report a problem that an operator has to see.

        Reports of the same problem over the limit are only counted. Events without an exception
        show `title`, and are grouped by `cause`; the defaults come from `code` and `failure`.
        `seconds` is how long it took to fail. Each member of an exception group is reported
        separately.
        """
        context: dict[str, object] = {"seconds": round(seconds, 3)}
        if failure is not None:
            faults, cause = faults or failure.faults, cause or failure.cause
            context["arguments_digest"] = failure.digest
            context["arguments_bytes"] = failure.arguments_bytes
            if failure.result_bytes:
                context["result_bytes"] = failure.result_bytes
        title = title or _TITLES.get(code, "{tool} failed: {code}").format(
            tool=tool, code=code, cause=cause or "failed"
        )
        event: Event = {
            "platform": "python",
            "level": level,
            "timestamp": time.time(),
            "logger": "toolpool",
            "transaction": tool,
            "tags": {
                name: _tag(value)
                for name, value in {"tool": tool, "code": code, "cause": cause, **tags}.items()
                if value not in (None, "")
            },
            "contexts": {"tool call": context, "trace": _trace_under(parent), "runtime": _RUNTIME},
        }
        chains = {
            fingerprint_of(tool, code, cause, chain): chain for chain in reported_apart(faults)
        }
        for fingerprint, chain in chains.items():
            self._issue(event, fingerprint, title, chain)

    def _issue(
        self,
        event: Event,
        fingerprint: tuple[str, ...],
        title: str,
        faults: Sequence[ExceptionReport],
    ) -> None:
        if not self._throttle.admits(fingerprint):
            return
        event = {**event, "fingerprint": list(fingerprint)}
        if suppressed := self._throttle.suppressed(fingerprint):
            context = {**event["contexts"]["tool call"], "held_back": suppressed}
            event["contexts"] = {**event["contexts"], "tool call": context}
        self._put(lambda: _described(event, title, faults))
        self._hurries.set()

    def transaction(self, event: Event) -> None:
        """Send a transaction."""
        self._put(lambda: {**event, "type": "transaction", "platform": "python"})

    def sampled_trace(self, parent: Parent) -> Mapping[str, str]:
        """The dynamic sampling context of a trace that begins here."""
        return {
            "trace_id": parent.trace_id,
            "public_key": self._public_key,
            "sampled": "true",
            "sample_rate": f"{self.sample_rate:g}",
            "release": self.release,
            "environment": self.environment,
        }

    def check_in(self, monitor: str, config: Mapping[str, object]) -> None:
        """Send a check-in to a cron monitor."""
        self._put(
            lambda: {
                "type": "check_in",
                "monitor_slug": monitor,
                "check_in_id": new_trace_id(),
                "status": "ok",
                "monitor_config": dict(config),
                "environment": self.environment,
                "release": self.release,
            }
        )

    def count(self, name: str, value: float, attributes: Mapping[str, str]) -> None:
        """Add to a counter."""
        with use_scope(self._scope):
            sentry_sdk.metrics.count(name, value, attributes=dict(attributes))

    def gauge(self, name: str, value: float, unit: str, attributes: Mapping[str, str]) -> None:
        """Set a gauge."""
        with use_scope(self._scope):
            sentry_sdk.metrics.gauge(name, value, unit=unit, attributes=dict(attributes))

    def _put(self, make: Callable[[], Event]) -> None:
        try:
            self._waiting.put_nowait(make)
        except queue.Full:
            log.warning("sentry_too_slow: too many reports wait to be sent; dropping reports")

    def _send(self) -> None:
        """Send the reports of half a second together: batching amortizes cache misses.

        An issue is sent at once, with all that waits: the process may end within half a second.
        """
        minute_ends = time.monotonic() + _MINUTE_SECONDS
        is_open = True
        while is_open:
            with contextlib.suppress(queue.Empty):
                make = self._waiting.get(timeout=max(0.0, minute_ends - time.monotonic()))
                if make is not None:
                    self._hurries.wait(_GATHER_SECONDS)
                    self._hurries.clear()
                while make is not None:
                    self._capture(make)
                    make = self._waiting.get_nowait()
                is_open = False
            if time.monotonic() >= minute_ends:
                minute_ends = time.monotonic() + _MINUTE_SECONDS
                self._report_suppressed()
                guarded(self._every_minute)()
        guarded(self._every_minute)()

    def _capture(self, make: Callable[[], Event]) -> None:
        try:
            self._client.capture_event(cast("Any", make()), scope=self._scope)
        except Exception:
            log.exception("report_not_sent: a bug in toolpool")

    def _new_client(self) -> "sentry_sdk.Client":
        return _client(self._dsn, self.release, self.environment, self._prepared)

    def _prepared(self, event: Event, hint: dict[str, Any]) -> Event | None:
        """The event to send, scrubbed and passed through the host's function; None to drop it.

        If the function raises, the error is logged and the event is sent unchanged.
        """
        event = scrubbed(event)
        if event.get("type") is not None:  # a check-in
            return event
        if self._before_send is not None:
            try:
                return self._before_send(copy.deepcopy(event), hint)
            except BaseException:
                log.exception("sentry_before_send_failed: sending the event as it is")
        return event

    def _report_suppressed(self) -> None:
        if count := self._throttle.all_suppressed():
            self._put(lambda: self._suppressed_event(count))

    def _suppressed_event(self, count: int) -> Event:
        return {
            "platform": "python",
            "level": "warning",
            "timestamp": time.time(),
            "logger": "toolpool",
            "logentry": {"formatted": f"{count} reports of failed tool calls were suppressed"},
            "fingerprint": ["toolpool", "held back"],
            "contexts": {"tool call": {"held_back": count}},
        }


def _is_no_retry(record: logging.LogRecord) -> bool:
    """Leave out urllib3's warning of each retry: lost reports are logged once, by `_Transport`."""
    return "/envelope/" not in record.getMessage()


class _Transport(HttpTransport):
    """The SDK's transport, which also logs lost reports."""

    def record_lost_event(self, reason: str, *args: Any, **options: Any) -> None:
        """Log a report that was not sent, and why."""
        super().record_lost_event(reason, *args, **options)
        if reason in ("network_error", "queue_overflow", "ratelimit_backoff"):
            log.warning(
                "sentry_unreachable reason=%s: reports are lost; check %s and the way to it; "
                "tool calls are not affected",
                reason,
                _DSN,
            )


def _client(
    dsn: str, release: str, environment: str, before_send: BeforeSend
) -> "sentry_sdk.Client":
    logging.getLogger("urllib3.connectionpool").addFilter(
        _is_no_retry
    )  # a filter is added only once
    try:
        return sentry_sdk.Client(
            dsn=dsn,
            release=release,
            environment=environment,
            transport=_Transport,
            transport_queue_size=_WAITING_AT_MOST,
            shutdown_timeout=_FLUSH_SECONDS,
            default_integrations=False,
            auto_enabling_integrations=False,
            include_local_variables=False,
            attach_stacktrace=False,
            max_breadcrumbs=0,
            before_send=cast("Any", before_send),
        )
    except (BadDsn, ValueError) as error:
        raise Misconfigured(
            f"{_DSN} is not a DSN ({error}): copy it whole from your project's settings in Sentry, "
            "as https://key@host/1"
        ) from None


def scrubbed(event: Event) -> Event:
    """The event without any part that could hold values of variables or arguments."""
    for name in _DROPPED_KEYS:
        event.pop(name, None)
    for exception in (event.get("exception") or {}).get("values", ()):
        exception["value"] = ""
        for frame in (exception.get("stacktrace") or {}).get("frames", ()):
            frame.pop("vars", None)
    return event


def _sample_rate() -> float:
    given = os.environ.get(_SAMPLE_RATE, "0")
    try:
        rate = float(given)
    except ValueError:
        rate = -1.0
    if not 0.0 <= rate <= 1.0:
        raise Misconfigured(f"{_SAMPLE_RATE} is {given!r}: set it to a number from 0 to 1")
    return rate


def _trace_under(parent: Parent | None) -> dict[str, str]:
    if parent is None:
        return {"trace_id": new_trace_id(), "span_id": new_span_id()}
    return {
        "trace_id": parent.trace_id,
        "span_id": new_span_id(),
        "parent_span_id": parent.span_id,
    }


def _described(event: Event, title: str, faults: Sequence[ExceptionReport]) -> Event:
    if not faults:
        return {**event, "logentry": {"formatted": title}}
    return {**event, "exception": {"values": list(map(_exception, faults))}}


def _relative(frame: Frame) -> str:
    """The file's path relative to the directory that its module is imported from."""
    path = Path(frame.file)
    parts = len(frame.module.split(".")) + (path.stem == "__init__")
    return "/".join(path.parts[-parts:]) if parts < len(path.parts) else path.name


def _exception(fault: ExceptionReport) -> Event:
    frames = [
        {
            "filename": _relative(frame),
            "module": frame.module or None,
            "abs_path": frame.file,
            "function": frame.function,
            "lineno": frame.line,
            "context_line": frame.code or None,
            "in_app": frame.is_own,
        }
        for frame in fault.frames
    ]
    exception: Event = {
        "type": fault.kind,
        "module": fault.module or None,
        "value": "",
        "mechanism": {"type": "toolpool", "handled": False},
    }
    if frames:
        exception["stacktrace"] = {"frames": frames}
    return exception


def _tag(value: object) -> str:
    text = printable(str(value))[:_TAG_CHARACTERS]
    return "".join(c if c.isprintable() else "?" for c in text)


_OF_THE_POOL = frozenset({Code.WORKER_LOST, Code.QUEUE_UNREACHABLE, Code.EXPIRED, Code.OVERLOADED})
"""Codes that one outage causes for calls of every tool: one issue per code, for all tools."""


def fingerprint_of(
    tool: str, code: str, cause: str, faults: Sequence[ExceptionReport]
) -> tuple[str, ...]:
    """The strings that group issues: the text of the line that raised, not its number."""
    frame = own_frame(faults)
    is_of_the_pool = code in _OF_THE_POOL or (code == Code.INTERNAL and frame is not None)
    name = faults[-1].name if faults else cause
    where = f"{Path(frame.file).name}:{frame.function}" if frame is not None else ""
    line = frame.code if frame is not None else ""
    return ("toolpool", "" if is_of_the_pool else tool, code, name, where, line)
