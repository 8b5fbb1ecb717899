"""Identity service: enrolment, certificates, sessions and revocation, with the keys that make them."""

import dataclasses
import hashlib
import hmac
import itertools
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from walle.access.identity.changes import IdentityRecord
from walle.access.identity.device_authority import CERTIFICATE_LIFE_S, DeviceAuthority
from walle.access.identity.refusals import RENEWAL_GRACE_S, IdentityRefusedError, KeyRevokedError, long_expired
from walle.access.identity.sessions import SESSION_LIFE_S, SessionSigner
from walle.access.identity.store import IdentityStore
from walle.base.clock import Clock, SystemClock
from walle.base.device_identity import DeviceIdentity
from walle.protocol import session_proof
from walle.store.threads import StoreThreads

MAX_REQUEST_BYTES = 4096  # limit of a certificate signing request
_CHALLENGE_S = 60.0


@dataclasses.dataclass(frozen=True)
class IdentityKeys:
    """The public keys with which gateways know devices: the authority of certificates, and that of sessions (raw)."""

    ca_pem: str
    session_key: bytes


@dataclasses.dataclass(frozen=True)
class DeviceCertificate:
    """A certificate for a device, as PEM, for how many seconds it is valid, and the generation of its key.

    `is_enrolment`: it used up a token, by which the key became the device's.
    """

    certificate: str
    life_s: float
    generation: int
    is_enrolment: bool


@dataclasses.dataclass(frozen=True)
class DeviceSession:
    """A session token, valid for `life_s` seconds. The device's certificate ends in `certificate_left_s`."""

    token: str
    life_s: float
    certificate_left_s: float


class UsedChallenges:
    """The newest challenge that each device has used within the life of a challenge: older ones are refused.

    Who reads a proof can so not use it again. One number for each device, whatever the rate of its requests. Safe from
    several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, tuple[int, float]] = {}  # device → number, and when it may be forgotten; in that order

    def __len__(self) -> int:
        return len(self._newest)

    def use(self, device_id: str, number: int, now_s: float) -> bool:
        """Return whether challenge `number` is newer than each that the device has used, and note it."""
        with self._lock:
            while self._newest and (oldest := next(iter(self._newest.items())))[1][1] < now_s:
                del self._newest[oldest[0]]
            newest, _ = self._newest.get(device_id, (0, 0.0))
            if number <= newest:
                return False
            self._newest.pop(device_id, None)
            self._newest[device_id] = number, now_s + _CHALLENGE_S + 1
            return True


class IdentityService:
    """The service on a folder with its keys and on a store of identities; between `open` and `close`.

    Several may run at once on one folder and one database: each change is a transaction of the store. A challenge is
    known to the service alone that gave it.
    """

    def __init__(self, folder: Path, store: IdentityStore, *, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or SystemClock()
        self._store = store
        self._threads = StoreThreads("identities")
        self._challenge_key = secrets.token_bytes(32)  # a challenge does not outlive this process
        self._challenges = itertools.count(1)
        self._used = UsedChallenges()
        self._nobodys_key = ec.generate_private_key(ec.SECP256R1()).public_key()

    def open(self) -> None:
        """Load the keys, or make them.

        Raises:
            AuthorityError: a key is damaged.
            IdentityStoreError: the store cannot be opened.
        """
        self._authority = DeviceAuthority(self._folder, clock=self._clock)
        self._signer = SessionSigner(self._folder)
        self._store.open()
        self._store.keep_room()

    def close(self) -> None:
        """Close the store of identities."""
        self._store.close()

    async def keys(self) -> IdentityKeys:
        """Return the public keys."""
        return IdentityKeys(self._authority.ca_pem, self._signer.public_key)

    async def make_token(self, device_id: str, uses: int, life_s: float) -> str:
        """Return an enrolment token: see `IdentityStore.make_token`."""
        return await self._blocking(lambda: self._store.make_token(device_id, uses=uses, life_s=life_s))

    async def certify(self, device_id: str, request: str, token: str) -> DeviceCertificate:
        """Return a certificate for the key that a certificate signing request (PEM) has and proves.

        Raises:
            IdentityRefusedError: the device may not have this id, or the request does not prove its key.
        """

        def work() -> DeviceCertificate:
            key = _requested_key(request)
            expires_s = self._clock.time() + CERTIFICATE_LIFE_S
            bound = self._store.certify(device_id, _der(key), token, expires_s=expires_s)
            issued = self._authority.issue(DeviceIdentity(device_id, bound.generation), key)
            return DeviceCertificate(issued, CERTIFICATE_LIFE_S, bound.generation, bound.is_new)

        return await self._blocking(work)

    async def challenge(self) -> str:
        """Return a text that a device signs once, within a minute, to prove its key; the cloud does not keep it."""
        body = f"{self._clock.time() + _CHALLENGE_S:.0f}.{next(self._challenges)}"
        return f"{body}.{self._tag(body)}"

    async def session(self, device_id: str, challenge: str, signature: bytes) -> DeviceSession:
        """Return a session for a device that has signed a challenge with the key that is bound to it.

        Raises:
            IdentityRefusedError: the challenge is over or was used, or the signature is not that key's; or its
                certificate ended long ago.
            KeyRevokedError: it has proven a key that was revoked.
        """
        body, _, tag = challenge.rpartition(".")
        if not hmac.compare_digest(tag.encode(), self._tag(body).encode()):
            raise IdentityRefusedError(401, "the challenge was issued by another cloud; request a new one")
        end_s, number = map(int, body.split("."))  # ours, since we made the tag
        if end_s < self._clock.time():
            raise IdentityRefusedError(401, "the challenge has expired; request a new one, and sign it within a minute")

        def work() -> DeviceSession:
            bound = self._store.bound_key(device_id)
            if bound is not None and not bound.public_key:  # nobody could prove it
                raise KeyRevokedError(device_id)
            # Whoever does not prove the key learns nothing: not whether there is one, also not by the time it takes.
            key = self._nobodys_key if bound is None else serialization.load_der_public_key(bound.public_key)
            assert isinstance(key, ec.EllipticCurvePublicKey)
            try:
                key.verify(signature, session_proof(device_id, challenge), ec.ECDSA(hashes.SHA256()))
            except InvalidSignature:
                bound = None
            if bound is None:
                what = f"the signature is not by a key that is enrolled for device {device_id[:100]!r}"
                raise IdentityRefusedError(401, f"{what}; to admit it: walle device enrol")
            if bound.is_revoked:
                raise KeyRevokedError(device_id)
            now_s = self._clock.time()
            if now_s > bound.expires_s + RENEWAL_GRACE_S:
                raise long_expired(device_id)
            if not self._used.use(device_id, number, now_s):
                what = "the challenge was already used, or a newer one was; request a new one"
                raise IdentityRefusedError(401, what)
            self._store.note_session(device_id)
            token = self._signer.sign(DeviceIdentity(device_id, bound.generation), now_s + SESSION_LIFE_S)
            return DeviceSession(token, SESSION_LIFE_S, bound.expires_s - now_s)

        return await self._blocking(work)

    async def revoke(self, device_id: str, reason: str) -> IdentityRecord:
        """Revoke the key of a device: see `IdentityStore.revoke`."""
        return await self._blocking(lambda: self._store.revoke(device_id, reason))

    async def current_key(self, device_id: str) -> tuple[int, bytes]:
        """Return the key of a device: see `IdentityStore.current_key`."""
        return await self._blocking(lambda: self._store.current_key(device_id))

    async def revocations(self, after: int) -> tuple[int, dict[str, int]]:
        """Return what was revoked since version `after`: see `IdentityStore.revocations`."""
        return await self._blocking(lambda: self._store.revocations(after))

    async def records(self, after: str, limit: int, search: str) -> list[IdentityRecord]:
        """Return identities in the order of their ids: see `IdentityStore.records`."""
        return await self._blocking(lambda: self._store.records(after=after, limit=limit, search=search))

    async def states(self, device_ids: list[str]) -> dict[str, dict[str, Any]]:
        """Return the state of the key of each of these devices that is enrolled, as JSON."""
        found = await self._blocking(lambda: self._store.states(device_ids))
        return {device_id: record.state() for device_id, record in found.items()}

    def _tag(self, body: str) -> str:
        return hmac.new(self._challenge_key, body.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()

    async def _blocking[T](self, work: Callable[[], T]) -> T:
        return await self._threads.run(work)


def _requested_key(request: str) -> ec.EllipticCurvePublicKey:
    """Return the key of a certificate signing request, which its owner has proven by signing the request."""
    if len(request) > MAX_REQUEST_BYTES:
        raise IdentityRefusedError(422, f"a certificate signing request has at most {MAX_REQUEST_BYTES} characters")
    try:
        parsed = x509.load_pem_x509_csr(request.encode("utf-8", "replace"))
        key, is_proven = parsed.public_key(), parsed.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityRefusedError(422, f"this is not a certificate signing request as PEM: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityRefusedError(422, "the key of a device must be of the curve P-256")
    if not is_proven:
        raise IdentityRefusedError(422, "the certificate signing request is not signed by its own key")
    return key


def _der(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
