"""Store of devices' identities: enrolment tokens, the key of each device, and what was revoked.

Each change is one transaction, so that two enrolments with one token are one after the other, whichever processes make
them. Tokens are stored as hashes. `SqliteIdentityStore` keeps them in a file of one machine, `PostgresIdentityStore` in
a database, where several machines may use them at once; both pass the same tests.
"""

import abc
import secrets
from collections.abc import Sequence
from typing import NamedTuple, Self

from walle.access.access import hash_of
from walle.access.identity.changes import IdentityChange, IdentityRecord, StoredIdentity
from walle.access.identity.refusals import KeyRevokedError, UnknownIdentityError, check_device_id, is_device_id
from walle.base.clock import Clock, SystemClock
from walle.errors import ConfigError
from walle.store.errors import StoreError

MAX_USES = 100_000
MAX_LIFE_S = 366 * 86_400.0
MAX_PAGE = 1_000


class IdentityStoreError(StoreError):
    """The identities cannot be read or written. Over HTTP: 503, on a full disk 507."""

    holds = "identities of devices"


class BoundKey(NamedTuple):
    """Generation of a device's key; `is_new`: a token was used up to bind it, else it was the device's already."""

    generation: int
    is_new: bool


class DeviceKey(NamedTuple):
    """The key (DER) of a device, empty where the cloud was restored without it, and the end of its certificate."""

    generation: int
    public_key: bytes
    expires_s: float
    is_revoked: bool


class IdentityStore(abc.ABC):
    """The store, from `open` to `close`. Calls block; several processes may have it open.

    Every call raises IdentityStoreError where the store cannot be read or written.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    @abc.abstractmethod
    def open(self) -> Self:
        """Make what is absent, and remove what nothing needs any more."""

    @abc.abstractmethod
    def close(self) -> None:
        """End what `keep_room` began, or is about to; other calls continue."""

    @abc.abstractmethod
    def keep_room(self) -> None:
        """Keep space for revocations until `close`, where the store can: a full disk must not keep a thief's key."""

    # --- tokens ---

    def make_token(self, device_id: str = "", *, uses: int = 1, life_s: float, purpose: str = "") -> str:
        """Return a new enrolment token: for one device, or for `uses` new ones if `device_id` is empty.

        A `purpose` has one token: another replaces it.

        Raises:
            ConfigError: a value is outside its bounds.
        """
        if device_id:
            check_device_id(device_id)
        if not 1 <= uses <= MAX_USES or (device_id and uses != 1):
            raise ConfigError(f"a token admits 1 to {MAX_USES} devices, 1 where it names the device; not {uses}")
        if not 0 < life_s <= MAX_LIFE_S:
            raise ConfigError(f"a token is valid for at most {MAX_LIFE_S / 86_400:.0f} days; not for {life_s} s")
        token = secrets.token_urlsafe(32)
        now_s = self._clock.time()
        self._add_token(hash_of(token), device_id, uses, now_s + life_s, purpose, now_s)
        return token

    @abc.abstractmethod
    def _add_token(
        self, sha256: str, device_id: str, uses: int, expires_s: float, purpose: str, now_s: float
    ) -> None: ...

    # --- certificates ---

    def certify(self, device_id: str, public_key: bytes, token: str, *, expires_s: float) -> BoundKey:
        """Bind a key (DER), whose owner has proven it, to a device.

        The key that the device has may be certified again without a token: to renew its certificate, or because an
        answer was lost. Any other needs a token, and revokes the one before.

        Raises:
            IdentityRefusedError, KeyRevokedError: it may not have this id.
            ConfigError: no device can have this id.
        """
        check_device_id(device_id)
        return self._certify(device_id, public_key, token, expires_s)

    @abc.abstractmethod
    def _certify(self, device_id: str, public_key: bytes, token: str, expires_s: float) -> BoundKey: ...

    def bound_key(self, device_id: str) -> DeviceKey | None:
        """Return the key that is bound to a device, also a revoked one; None if no such device is enrolled."""
        known = self._find([device_id]).get(device_id)
        if known is None:
            return None
        return DeviceKey(known.generation, known.public_key, known.expires_s, known.revoked_s is not None)

    def current_key(self, device_id: str) -> tuple[int, bytes]:
        """Return the generation and key (DER) of a device, for what only it may read.

        Raises:
            UnknownIdentityError, KeyRevokedError: it has none that is valid.
        """
        key = self.bound_key(device_id)
        if key is None:
            raise UnknownIdentityError(device_id)
        if key.is_revoked:
            raise KeyRevokedError(device_id)
        return key.generation, key.public_key

    @abc.abstractmethod
    def note_session(self, device_id: str) -> None:
        """Note that the device was seen now."""

    # --- revocation ---

    def revoke(self, device_id: str, reason: str) -> IdentityRecord:
        """Revoke the key of a device permanently; a second time changes nothing.

        Raises:
            UnknownIdentityError: no such device is enrolled.
            ConfigError: no device can have this id.
        """
        check_device_id(device_id)
        return self._revoke(device_id, reason)

    @abc.abstractmethod
    def _revoke(self, device_id: str, reason: str) -> IdentityRecord: ...

    @abc.abstractmethod
    def revocations(self, after: int) -> tuple[int, dict[str, int]]:
        """Return the newest version, and the lowest generations by device that came after version `after`.

        Versions become visible in their order: who has seen one has seen all below it.
        """

    @abc.abstractmethod
    def follow_restore(self) -> None:
        """Begin again after a restore from a backup: what was decided after it is not known here.

        Keys get generations above all that the lost cloud can have given, so that a device's next key, or its
        revocation, ends those. Enrolment tokens end: they may have been used since.
        """

    # --- reads ---

    def records(self, *, after: str = "", limit: int = MAX_PAGE, search: str = "") -> list[IdentityRecord]:
        """Return devices in the order of their ids, after the id `after`, of ids with the part `search`."""
        if not search.isprintable():  # no id has it
            return []
        return self._list(after, max(1, min(limit, MAX_PAGE)), search)

    @abc.abstractmethod
    def _list(self, after: str, limit: int, search: str) -> list[IdentityRecord]: ...

    def states(self, device_ids: Sequence[str]) -> dict[str, IdentityRecord]:
        """Return those of these devices that are enrolled, revoked ones too."""
        return {device_id: found.record for device_id, found in self._find(device_ids).items()}

    def _find(self, device_ids: Sequence[str]) -> dict[str, StoredIdentity]:
        possible = [device_id for device_id in device_ids if is_device_id(device_id)]
        return self._read(possible) if possible else {}

    @abc.abstractmethod
    def _read(self, device_ids: Sequence[str]) -> dict[str, StoredIdentity]: ...


def bound(change: IdentityChange, known: StoredIdentity | None) -> BoundKey:
    """Return the key that a change has bound to a device of which the store had `known`."""
    is_new = known is None or known.generation != change.identity.generation
    return BoundKey(change.identity.generation, is_new=is_new)
