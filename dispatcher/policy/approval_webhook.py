"""Notifies people of a call that waits for approval: by a hook of the host, or a signed webhook."""

import asyncio
import base64
import hashlib
import hmac
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from toolpool.contract import encoding, logs
from toolpool.contract.approval_messages import ApprovalRequest
from toolpool.contract.errors import Misconfigured
from toolpool.contract.settings import Settings
from toolpool.dispatcher.host.hook import Hook, HookFailed
from toolpool.dispatcher.host.threads import HookThreads
from toolpool.dispatcher.observer import Observers
from toolpool.dispatcher.policy.approval_view import Approval, approval_of

log = logs.logger("approvals")

_TRIES = 4
_FIRST_PAUSE_SECONDS = 1.0
_GRACE_SECONDS = 1.0
_POSTED_AT_ONCE = 8


class ApprovalNotifier:
    """Sends the notifications. Raises `Misconfigured` for an unusable webhook."""

    def __init__(self, settings: Settings, hook: Hook | None, observers: Observers) -> None:
        self._hook = hook
        self._observers = observers
        self._threads: HookThreads | None = None
        self._at_once = asyncio.Semaphore(_POSTED_AT_ONCE)
        if settings.approval_webhook:
            secret, seconds = settings.approval_webhook_secret, settings.hook_timeout
            webhook = Webhook(
                settings.approval_webhook,
                secret.get_secret_value() if secret is not None else "",
                seconds=seconds,
            )
            # Not asyncio's own threads: a webhook that hangs must not block other work.
            self._threads = HookThreads("webhook", webhook.post, seconds=seconds + _GRACE_SECONDS)

    def close(self) -> None:
        """Let its threads end. Idempotent."""
        if self._threads is not None:
            self._threads.close()

    async def asked(self, request: ApprovalRequest) -> None:
        """Notify of a waiting call. Never raises: the call can still be found and approved."""
        approval = approval_of(request)
        if self._hook is not None:
            try:
                await self._hook.ask(approval)
            except HookFailed as error:
                self._observers.hook_failed(
                    "on_approval", error.kind, error.__cause__, tool=approval.tool
                )
        if self._threads is not None:
            await self._post(self._threads, approval)

    async def _post(self, threads: HookThreads, approval: Approval) -> None:
        pause = _FIRST_PAUSE_SECONDS
        for left in reversed(range(_TRIES)):
            try:
                async with self._at_once:
                    await threads.call((approval,))
            except Exception as error:  # noqa: BLE001 - whatever it was, it may pass
                log.warning(
                    "webhook_failed id=%s tries_left=%d: %s; the call still waits, see "
                    "`toolpool approvals list`",
                    approval.id, left, _why(error),
                )  # fmt: skip
                if not left:
                    self._observers.hook_failed("webhook", _why(error), tool=approval.tool)
                await asyncio.sleep(pause if left else 0.0)
                pause *= 4
            else:
                return


class Webhook:
    """A webhook signed by https://www.standardwebhooks.com: id, time and body, with a secret."""

    def __init__(self, url: str, secret: str, *, seconds: float) -> None:
        if not _is_address(url):
            raise Misconfigured(
                "TOOLPOOL_APPROVAL_WEBHOOK must be an address that begins with https:// or "
                "http://, without a user and spaces"
            )
        if not secret:
            raise Misconfigured(
                "TOOLPOOL_APPROVAL_WEBHOOK needs TOOLPOOL_APPROVAL_WEBHOOK_SECRET, which signs "
                "what is posted: make one with `openssl rand -base64 32`, and check signatures "
                "where it arrives"
            )
        self._url = url
        self._seconds = seconds
        self._secret = _secret_bytes(secret)
        # A redirect would send the call elsewhere.
        self._opener = urllib.request.build_opener(_NoRedirect())

    def post(self, approval: Approval) -> None:
        """Post a pending approval. Blocks; raises OSError if it is not accepted."""
        body = encoding.encode({"type": "approval.waiting", "data": approval})
        now = str(int(time.time()))
        signed = b".".join((approval.id.encode(), now.encode(), body))
        signature = base64.b64encode(hmac.digest(self._secret, signed, hashlib.sha256)).decode()
        request = urllib.request.Request(  # noqa: S310 - of the two schemes that were checked
            self._url,
            data=body,
            headers={
                "content-type": "application/json",
                "webhook-id": approval.id,
                "webhook-timestamp": now,
                "webhook-signature": f"v1,{signature}",
            },
            method="POST",
        )
        try:
            self._opener.open(request, timeout=self._seconds).close()
        except urllib.error.HTTPError as error:
            error.close()  # the error is the response, on an open connection
            raise


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Reject a redirect."""


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    is_written = url.isascii() and url.isprintable() and " " not in url
    is_web = parts.scheme in ("http", "https") and bool(parts.hostname)
    return is_written and is_web and has_port and "@" not in parts.netloc


def _why(error: Exception) -> str:
    """The cause of a failure, without the address, which may contain a key."""
    reason = getattr(error, "reason", None)
    error = reason if isinstance(reason, Exception) else error
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}"
    return getattr(error, "strerror", None) or type(error).__name__


def _secret_bytes(secret: str) -> bytes:
    """The secret as the standard's libraries read it: base64, prefix and padding optional."""
    encoded = secret.removeprefix("whsec_").rstrip("=")
    try:
        found = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        found = b""
    if not found:
        raise Misconfigured(
            "TOOLPOOL_APPROVAL_WEBHOOK_SECRET must be base64, as Standard Webhooks has it, with or "
            "without whsec_ before it: make one with `openssl rand -base64 32`"
        )
    return found
