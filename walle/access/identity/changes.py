"""Rules of identities: what an enrolment, a renewal or a revocation changes, given what a store has.

A store reads the rows concerned under a lock, asks these functions, and writes what they return, in one transaction.
"""

import dataclasses
import re
from typing import Any, NamedTuple

from walle.access.identity.refusals import (
    RENEWAL_GRACE_S,
    IdentityRefusedError,
    KeyRevokedError,
    UnknownIdentityError,
    long_expired,
)
from walle.protocol import whole_characters

LOST_CERTIFICATE_S = 31 * 86_400.0  # above the life of a certificate
_REVOCATION_S = 2 * 86_400  # kept for longer: sessions that were given at the last moment, and clocks that differ
_MAX_REASON_CHARS = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdentityRecord:
    """A device's identity as its cloud knows it. Times are in seconds since the epoch.

    Its certificate ends at `expires_s`.
    """

    device_id: str
    generation: int
    enrolled_s: float
    expires_s: float
    seen_s: float  # time of its last request for a certificate or a session
    revoked_s: float | None
    reason: str

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def state(self) -> dict[str, Any]:
        """Return what the list of known devices shows."""
        return {"key": "enrolled" if self.revoked_s is None else "revoked", "certificate_until_s": self.expires_s}


RECORD_FIELDS = tuple(field.name for field in dataclasses.fields(IdentityRecord))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredIdentity(IdentityRecord):
    """A record with the key (DER), which is empty where a restored cloud revoked a device that it did not know."""

    public_key: bytes

    @property
    def record(self) -> IdentityRecord:
        return IdentityRecord(**{name: getattr(self, name) for name in RECORD_FIELDS})


STORED_FIELDS = (*RECORD_FIELDS, "public_key")


class StoredToken(NamedTuple):
    """An enrolment token in a store: the device that it is for, "" for any new one, and how often it may be used."""

    device_id: str
    uses_left: int
    expires_s: float


class Revocation(NamedTuple):
    """The lowest generation of a device that is valid, and until when gateways need to be told."""

    lowest: int
    until_s: float


class IdentityChange(NamedTuple):
    """Changes that a store writes: the identity, in place of the one before, and what goes with it.

    `uses_token` counts the token down by one. `ends_tokens` removes those of the device.
    """

    identity: StoredIdentity
    uses_token: bool = False
    ends_tokens: bool = False
    revocation: Revocation | None = None


def certify_key(
    known: StoredIdentity | None,
    found: StoredToken | None,
    least: int,
    *,
    device_id: str,
    public_key: bytes,
    token: str,
    expires_s: float,
    now_s: float,
) -> IdentityChange:
    """Return what binding a key to a device changes. `found` is what the store has of `token`, None for nothing.

    `least` is the least generation of a new key, above 0 where the cloud was restored from a backup.

    Raises:
        IdentityRefusedError, KeyRevokedError: the device may not have this id.
    """
    if known is not None and known.public_key == public_key:
        if known.revoked_s is not None:
            raise KeyRevokedError(device_id)
        is_late = now_s > known.expires_s + RENEWAL_GRACE_S
        if is_late:
            if not token:
                raise long_expired(device_id)
            _check_token(token, found, device_id, now_s, is_other=False)
        return IdentityChange(dataclasses.replace(known, expires_s=expires_s, seen_s=now_s), uses_token=is_late)
    _check_token(token, found, device_id, now_s, is_other=known is not None)
    made = StoredIdentity(
        device_id=device_id,
        generation=max(1 if known is None else known.generation + 1, least),
        enrolled_s=now_s,
        expires_s=expires_s,
        seen_s=now_s,
        revoked_s=None,
        reason="",
        public_key=public_key,
    )
    if known is None and not least:
        return IdentityChange(made, uses_token=True)
    before_s = now_s if known is None else known.expires_s
    return IdentityChange(made, uses_token=True, revocation=_refuse_below(made.generation, before_s, least, now_s))


def revoke_key(
    known: StoredIdentity | None, least: int, *, device_id: str, reason: str, now_s: float
) -> IdentityChange | None:
    """Return what revoking a device's key changes, None where it is revoked already.

    Raises:
        UnknownIdentityError: no such device is enrolled.
    """
    if known is None:
        if not least:
            raise UnknownIdentityError(device_id)
        # It may have enrolled in the time that a restore lost.
        known = StoredIdentity(
            device_id=device_id,
            generation=least,
            enrolled_s=now_s,
            expires_s=now_s + LOST_CERTIFICATE_S,
            seen_s=now_s,
            revoked_s=None,
            reason="",
            public_key=b"",
        )
    if known.revoked_s is not None:
        return None
    revoked = dataclasses.replace(known, revoked_s=now_s, reason=whole_characters(reason[:_MAX_REASON_CHARS]))
    lowest = max(known.generation + 1, least)
    return IdentityChange(revoked, ends_tokens=True, revocation=_refuse_below(lowest, known.expires_s, least, now_s))


def _check_token(token: str, found: StoredToken | None, device_id: str, now_s: float, *, is_other: bool) -> None:
    """Raise IdentityRefusedError unless the token admits the device. `is_other`: the device has another key."""
    make = "make another: walle device enrol"
    if found is None:
        what = "the enrolment token is not known, or expired long ago" if token else "this key is not enrolled"
        raise IdentityRefusedError(401, f"device {device_id[:100]!r}: {what}; {make}")
    if found.expires_s < now_s:
        raise IdentityRefusedError(401, f"the enrolment token has expired; {make}")
    if found.uses_left < 1:
        raise IdentityRefusedError(401, f"the enrolment token is used up; {make}")
    if found.device_id not in ("", device_id):
        raise IdentityRefusedError(403, f"the enrolment token is for another device than {device_id[:100]!r}")
    if is_other and not found.device_id:
        what = f"the cloud knows device {device_id[:100]!r} with another key (was its folder deleted?)"
        shown = device_id if re.fullmatch(r"[\w.-]{1,100}", device_id) else "ID --output FILE"
        how = (
            f"run, where the cloud's folder is, `walle device enrol {shown} --cloud FOLDER`, and start the device with"
            " the join file that it writes"
        )
        raise IdentityRefusedError(403, f"{what}; {how}")


def _refuse_below(lowest: int, expires_s: float, least: int, now_s: float) -> Revocation:
    if least:  # certificates of the time that a restore lost may be later than those here
        expires_s = max(expires_s, now_s + LOST_CERTIFICATE_S)
    return Revocation(lowest, max(expires_s, now_s) + _REVOCATION_S)
