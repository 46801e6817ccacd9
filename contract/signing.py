"""Signatures for all messages and stored data.

HMAC-SHA256 (RFC 2104) over the purpose, the key prefix and the body, written as `<key
id>.<base64url>.<body>`. The purpose prevents a signed outcome from passing as a signed batch, the
prefix a message of one deployment from passing in another with the same key.
"""

import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterable

from toolpool.contract.errors import MessageRejected, Misconfigured

_DEFAULT_PREFIX = "toolpool"
_MINIMUM_KEY_BYTES = 16
_DIGEST_CHARACTERS = 43
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def generate_key() -> str:
    """A new random signing key, 32 bytes as URL-safe text."""
    return secrets.token_urlsafe(32)


class Keyring:
    """Signing keys: the first signs, all verify, so that keys can be rotated without downtime.

    Signatures are valid under one key prefix only. Raises `Misconfigured` if a key is shorter than
    16 characters.
    """

    def __init__(self, keys: Iterable[str], prefix: str = _DEFAULT_PREFIX) -> None:
        self._scope = b"\0%s\0" % prefix.encode()
        self._keys: dict[str, bytes] = {}
        for key in keys:
            if len(key) < _MINIMUM_KEY_BYTES:
                raise Misconfigured(
                    "a signing key is shorter than 16 characters; make one with `toolpool keygen`"
                )
            self._keys[_key_id(key)] = key.encode()
        if not self._keys:
            raise Misconfigured("no signing key was given; make one with `toolpool keygen`")
        self.key_id = next(iter(self._keys))
        self._signing_key = self._keys[self.key_id]

    @classmethod
    def parse(cls, text: str, prefix: str = _DEFAULT_PREFIX) -> "Keyring":
        """Parse a comma-separated list of keys."""
        return cls((part.strip() for part in text.split(",") if part.strip()), prefix)

    @classmethod
    def local(cls, prefix: str = _DEFAULT_PREFIX) -> "Keyring":
        """The fixed key for a private unix socket: it detects damage and gives no protection."""
        return cls(["toolpool-local-unix-socket"], prefix)

    def sign(self, purpose: str, body: bytes) -> bytes:
        """`body` prefixed with the signing key's id and the signature."""
        return self._signed(self.key_id, self._signing_key, purpose, body)

    def sign_with_each(self, purpose: str, body: bytes) -> list[bytes]:
        """`body` signed with each key, for what must stay valid when a key is removed."""
        return [self._signed(key_id, key, purpose, body) for key_id, key in self._keys.items()]

    def _signed(self, key_id: str, key: bytes, purpose: str, body: bytes) -> bytes:
        mac = _mac(key, purpose.encode() + self._scope + body)
        return b"%s.%s.%s" % (key_id.encode(), mac, body)

    def verify(self, purpose: str, signed: bytes) -> bytes:
        """The body of `signed`. Raises `MessageRejected` without a valid signature."""
        head, _, rest = signed.partition(b".")
        signature, _, body = rest.partition(b".")
        if len(head) != 8 or len(signature) != _DIGEST_CHARACTERS:
            raise MessageRejected("unsigned", "the message carries no signature")
        key = self._keys.get(head.decode("ascii", "replace"))
        if key is None:
            raise MessageRejected("unknown_key", "the message was signed with an unknown key")
        if not hmac.compare_digest(_mac(key, purpose.encode() + self._scope + body), signature):
            raise MessageRejected(
                "bad_signature",
                "the message's signature does not match (changed, or of another key prefix)",
            )
        return body


def _key_id(key: str) -> str:
    return hashlib.sha256(b"toolpool key id\0" + key.encode()).hexdigest()[:8]


def _mac(key: bytes, text: bytes) -> bytes:
    digest = binascii.b2a_base64(hmac.digest(key, text, "sha256"), newline=False)
    return digest.translate(_URL_SAFE, b"=")
