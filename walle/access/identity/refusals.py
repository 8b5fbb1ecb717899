"""Errors of identities: a device that is not given what it asked for, and an id that no device has."""

from walle.access.errors import AccessError
from walle.errors import ConfigError
from walle.protocol import MAX_ID_CHARS

RENEWAL_GRACE_S = 180 * 86_400.0  # time after the end of its certificate in which a device may still renew it


class IdentityRefusedError(AccessError):
    """A device that is not given what it asked for. 401: without a valid token or proof; 403: it may not have it."""


class KeyRevokedError(IdentityRefusedError):
    """The device's key was revoked: the device needs another, and a token for its id."""

    def __init__(self, device_id: str) -> None:
        super().__init__(
            403,
            f"the key of device {device_id[:100]!r} was revoked; to admit it again with a new key:"
            " walle device enrol, for this id",
        )


class UnknownIdentityError(AccessError):
    """No device of this id is enrolled."""

    def __init__(self, device_id: str) -> None:
        super().__init__(404, f"no device {device_id[:100]!r} is enrolled; list them with: walle device list")


def long_expired(device_id: str) -> IdentityRefusedError:
    """Return the refusal of a device whose certificate ended more than RENEWAL_GRACE_S ago."""
    what = f"the certificate of device {device_id[:100]!r} expired more than {RENEWAL_GRACE_S / 86_400:.0f} days ago"
    return IdentityRefusedError(403, f"{what}; enrol it again: walle device enrol")


def is_device_id(device_id: str) -> bool:
    """Return whether a device can have this id."""
    return 0 < len(device_id) <= MAX_ID_CHARS and device_id.isprintable()


def check_device_id(device_id: str) -> None:
    """Raise ConfigError if no device can have this id."""
    if not is_device_id(device_id):
        what = "an id of a device is 1 to"
        raise ConfigError(f"{device_id[:100]!r}: {what} {MAX_ID_CHARS} printable characters")
