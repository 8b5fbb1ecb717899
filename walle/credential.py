"""Credentials of devices: a device id, bound by an HMAC to the secret that a fleet shares with its cloud.

A cloud derives the id from the credential alone and keeps no list. Who has the secret can make any device's credential:
a device that gets its own from the cloud, in place of the secret, cannot speak for another.
"""

import hashlib
import hmac

_CONTEXT = b"walle tunnel credential\0"  # the secret also serves other purposes


def device_credential(secret: str, device_id: str) -> str:
    """Return the credential of one device: the HMAC-SHA256 of its id in hex, a dot, the id."""
    return f"{_tag(secret, device_id)}.{device_id}"


def credential_device(secret: str, credential: str) -> str | None:
    """Return the id of the device that a credential stands for, None if it was not made with `secret`."""
    tag, _, device_id = credential.partition(".")
    return device_id if hmac.compare_digest(tag.encode(), _tag(secret, device_id).encode()) else None


def _tag(secret: str, device_id: str) -> str:
    return hmac.new(secret.encode(), _CONTEXT + device_id.encode(), hashlib.sha256).hexdigest()
