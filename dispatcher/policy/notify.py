"""Tells people that a call waits for them: a hook of the host, or a signed webhook."""

import asyncio
import base64
import hashlib
import hmac
import time
import urllib.parse
import urllib.request
from typing import Any

from toolpool.contract import encoding, logs
from toolpool.contract.approval import ApprovalRequest
from toolpool.contract.errors import Misconfigured
from toolpool.contract.settings import Settings
from toolpool.dispatcher.host.hook import Hook, HookFailed
from toolpool.dispatcher.policy.approval import Approval, approval_of

log = logs.logger("approvals")

_TRIES = 4
_FIRST_PAUSE_SECONDS = 1.0


class Notifier:
    """Raises `Misconfigured` for a webhook that cannot be used."""

    def __init__(self, settings: Settings, hook: Hook | None) -> None:
        self._hook = hook
        self._seconds = settings.hook_timeout
        self._webhook: Webhook | None = None
        if settings.approval_webhook:
            secret = settings.approval_webhook_secret
            self._webhook = Webhook(
                settings.approval_webhook, secret.get_secret_value() if secret is not None else ""
            )

    async def asked(self, request: ApprovalRequest) -> None:
        """Tell of a call that waits. Never raises: it can still be found and approved."""
        approval = approval_of(request)
        if self._hook is not None:
            try:
                await self._hook.ask(approval)
            except HookFailed as error:
                log.error(
                    "on_approval_failed id=%s: %s", approval.id, error, exc_info=error.__cause__
                )
        if self._webhook is not None:
            await self._post(self._webhook, approval)

    async def _post(self, webhook: "Webhook", approval: Approval) -> None:
        pause = _FIRST_PAUSE_SECONDS
        for left in reversed(range(_TRIES)):
            try:
                await asyncio.to_thread(webhook.post, approval, self._seconds)
            except Exception as error:  # noqa: BLE001 - whatever it was, it may pass
                log.warning(
                    "webhook_failed id=%s tries_left=%d: %s; the call waits all the same, see "
                    "`toolpool approvals list`",
                    approval.id, left, error,
                )  # fmt: skip
                await asyncio.sleep(pause if left else 0.0)
                pause *= 4
            else:
                return


class Webhook:
    """Signed as https://www.standardwebhooks.com has it: id, time and body, with a secret."""

    def __init__(self, url: str, secret: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Misconfigured(
                "TOOLPOOL_APPROVAL_WEBHOOK must be an address that begins with https:// or http://"
            )
        if not secret:
            raise Misconfigured(
                "TOOLPOOL_APPROVAL_WEBHOOK needs TOOLPOOL_APPROVAL_WEBHOOK_SECRET, which signs "
                "what is posted: set it to a word of your own, and check it where it arrives"
            )
        self._url = url
        self._secret = _secret_bytes(secret)
        # A redirection would carry the call to somebody else.
        self._opener = urllib.request.build_opener(_NoRedirect())

    def post(self, approval: Approval, seconds: float) -> None:
        """Post an approval that waits. Blocks; raises OSError where it is not taken."""
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
        with self._opener.open(request, timeout=seconds):
            pass


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """A redirection is an error."""


def _secret_bytes(secret: str) -> bytes:
    """As the standard writes it, or as it is."""
    if secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except ValueError:
            raise Misconfigured(
                "TOOLPOOL_APPROVAL_WEBHOOK_SECRET begins with whsec_, and is no base64 after that"
            ) from None
    return secret.encode()
