"""Sealed values: short JSON with an HMAC, which only this cloud can make. Sessions and read-only links are such."""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

_MAX_CHARS = 1_000


class Sealer:
    """Seals and opens values with a key of 32 bytes or more, for one purpose: a value of another does not open."""

    def __init__(self, key: bytes, purpose: str) -> None:
        self._key = hashlib.sha256(b"walle dashboard " + purpose.encode() + b"\0" + key).digest()

    def seal(self, value: Mapping[str, Any]) -> str:
        """Return text of letters, digits, `-`, `_` and one dot."""
        body = _encode(json.dumps(value, separators=(",", ":")).encode())
        return f"{body}.{self._mac(body)}"

    def open(self, text: str) -> dict[str, Any] | None:
        """Return the value, None where it was not sealed with this key for this purpose."""
        body, dot, mac = text.partition(".")
        if not dot or len(text) > _MAX_CHARS or not text.isascii() or not hmac.compare_digest(mac, self._mac(body)):
            return None
        try:
            value = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (ValueError, binascii.Error):
            return None
        return value if isinstance(value, dict) else None

    def _mac(self, body: str) -> str:
        return _encode(hmac.digest(self._key, body.encode(), "sha256"))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
