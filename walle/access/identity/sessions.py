"""Session tokens of devices: made by the identity node, verified by gateways with its public key alone.

    base64url([device id, generation, expiry in seconds]) "." base64url(Ed25519 signature)

A token proves a device to a gateway where TLS cannot, behind a proxy: docs/protocol.md.
"""

import base64
import binascii
import collections
import json
import time
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from walle.access.errors import AccessError
from walle.access.identity.certificates import AuthorityError
from walle.base.device_identity import MAX_GENERATION, DeviceIdentity, Revocations
from walle.base.durable_file import write_new_file
from walle.protocol import DEVICE_HEADER, MAX_ID_CHARS, canonical_json
from walle.trust.ed25519_keys import checked_key

SESSION_LIFE_S = 12 * 3600.0
MAX_TOKEN_BYTES = 4096  # an id of 256 characters takes up to 12 bytes of JSON for each
_DOMAIN = b"walle device session 1\0"
_ENTRY_BYTES = 500  # size of a kept entry beside its token
_HOW = f"the app adds device.request_headers() to its requests, with {DEVICE_HEADER}"


class SessionRefusedError(AccessError):
    """A request without a valid session token of a device. The device asks for another one."""

    def __init__(self, why: str) -> None:
        super().__init__(401, why)


class SessionSigner:
    """The key that makes session tokens, in `folder`, made there at first use."""

    def __init__(self, folder: Path) -> None:
        path = folder / "sessions.pem"
        if not path.exists():
            made = Ed25519PrivateKey.generate()
            write_new_file(path, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        try:
            key = load_pem_private_key(path.read_bytes(), password=None)
        except (ValueError, TypeError) as error:
            raise AuthorityError(path, f"is damaged ({error}); move it away to make another") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise AuthorityError(path, "is not an Ed25519 key; move it away to make another")
        self._key = key
        self.public_key = key.public_key().public_bytes_raw()

    def sign(self, identity: DeviceIdentity, expires_s: float) -> str:
        """Return a token with which its holder is this device until `expires_s`."""
        claim = canonical_json([identity.device_id, identity.generation, int(expires_s)])
        return f"{_encoded(claim)}.{_encoded(self._key.sign(_DOMAIN + claim))}"


class SessionVerifier:
    """Verifies tokens with a public key, and keeps the latest ones that were valid: those cost a look-up.

    `revocations` are asked each time. `now` returns seconds since the epoch.

    Raises, from making one:
        KeyRefusedError: the public key is of small or mixed order, or not canonical.
    """

    def __init__(
        self,
        public_key: bytes,
        revocations: Revocations,
        *,
        cache_bytes: int = 32 << 20,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.verified = 0  # signatures that were checked and are valid
        self.refused = 0
        self._key = checked_key(public_key)
        self._revocations = revocations
        self._now = now
        # Ordered: the first key of a dict is found by a search through what was deleted before it.
        self._known: collections.OrderedDict[bytes, tuple[DeviceIdentity, float]] = collections.OrderedDict()
        self._known_bytes = 0
        self._cache_bytes = cache_bytes

    def device_id(self, token: bytes | None) -> str:
        """Return the id of the device whose valid session this is; raises as `identity`."""
        return self.identity(token).device_id

    def identity(self, token: bytes | None) -> DeviceIdentity:
        """Return the device whose valid session this is, with the generation of its key.

        Raises:
            SessionRefusedError: it is nobody's, or is over, or the device's key was revoked.
        """
        known = self._known.get(token) if token is not None else None
        if known is None:
            try:
                known = self._verify(token)
            except SessionRefusedError:
                self.refused += 1
                raise
        identity, expires_s = known
        if expires_s <= self._now():
            self.refused += 1
            self._forget(token)
            raise SessionRefusedError("the device's session has expired; request a new one")
        if not self._revocations.allows(identity):
            self.refused += 1
            raise SessionRefusedError(f"the key of device {identity.device_id[:100]!r} was revoked")
        return identity

    def _verify(self, token: bytes | None) -> tuple[DeviceIdentity, float]:
        if not token:
            raise SessionRefusedError(f"the request has no session of a device; {_HOW}")
        if len(token) > MAX_TOKEN_BYTES:
            raise SessionRefusedError(f"{DEVICE_HEADER} has {len(token)} bytes, more than {MAX_TOKEN_BYTES}")
        claim, signature = map(_decoded, (token.partition(b".")[0], token.partition(b".")[2]))
        try:
            self._key.verify(signature, _DOMAIN + claim)
        except InvalidSignature:
            raise SessionRefusedError(f"{DEVICE_HEADER} is not a session of this cloud; {_HOW}") from None
        device_id, generation, expires_s = json.loads(claim)  # ours, since we signed it
        assert len(device_id) <= MAX_ID_CHARS
        assert 0 < generation < MAX_GENERATION
        self.verified += 1
        known = self._known[token] = DeviceIdentity(device_id, generation), float(expires_s)
        self._known_bytes += len(token) + _ENTRY_BYTES
        while self._known_bytes > self._cache_bytes:
            self._forget(next(iter(self._known)))
        return known

    def _forget(self, token: bytes | None) -> None:
        if token is not None and self._known.pop(token, None) is not None:
            self._known_bytes -= len(token) + _ENTRY_BYTES


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: bytes) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise SessionRefusedError(f"{DEVICE_HEADER} is not a session token; {_HOW}") from None
