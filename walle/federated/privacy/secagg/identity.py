"""Keys that a client advertises for one round, signed by its device: the server cannot make up clients.

Source: Bonawitz et al. 2017, section 6.2 (signatures of advertised keys against an active server).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import msgpack
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from walle.federated.privacy.secagg.messages import (
    HEADER_BYTES,
    NAME_BYTES,
    VOUCHER_BYTES,
    MessageError,
    packed,
    require_size,
    unpacked,
)
from walle.trust.ed25519_keys import KEY_BYTES, checked_key

KIND = "keys"
SIGNATURE_BYTES = 64
MESSAGE_BYTES = HEADER_BYTES + NAME_BYTES + VOUCHER_BYTES  # limit of a message of keys
_DOMAIN = b"walle secagg keys 1\0"
_VOUCHER_DOMAIN = b"walle secagg device 1\0"

# Decision whether a public key is a device's of the fleet, by its name, its raw Ed25519 key and evidence of it. A key
# that `walle.trust.ed25519_keys.checked_key` refuses must not be admitted.
type Admits = Callable[[str, bytes, bytes], bool]


def voucher(authority: Ed25519PrivateKey, device: str, public_key: bytes) -> bytes:
    """Return the authority's signature that the Ed25519 key is the device's, for `VouchedDevices`.

    Raises:
        KeyRefusedError: signatures by the key prove nothing. Checked here once, not by every client in every round.
    """
    checked_key(public_key)
    return authority.sign(_vouched_bytes(device, public_key))


def _vouched_bytes(device: str, public_key: bytes) -> bytes:
    return _VOUCHER_DOMAIN + public_key + device.encode()


class VouchedDevices:
    """Devices whose key the fleet's authority signed; each client checks its neighbours by it.

    Raises:
        KeyRefusedError: the authority's raw key cannot prove anything.
    """

    def __init__(self, authority: bytes) -> None:
        self._authority = checked_key(authority)

    def __call__(self, device: str, public_key: bytes, evidence: bytes) -> bool:
        try:
            self._authority.verify(evidence, _vouched_bytes(device, public_key))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class AdvertisedKeys:
    """A device's name and identity, and its two public keys (X25519) for one round."""

    device: str
    identity: bytes  # raw Ed25519 key
    evidence: bytes  # proof that the identity is the device's, in the fleet's form
    box_key: bytes  # seals shares; its private half never leaves the client
    mask_key: bytes  # makes the pairwise masks; neighbours hold shares of its private half

    def signed(self, plan_digest: bytes, key: Ed25519PrivateKey) -> bytes:
        """Return the message with the device's signature."""
        return packed(KIND, [*self._fields(), key.sign(self._signed_bytes(plan_digest))])

    def _fields(self) -> list[str | bytes]:
        return [self.device, self.identity, self.evidence, self.box_key, self.mask_key]

    def _signed_bytes(self, plan_digest: bytes) -> bytes:
        return _DOMAIN + plan_digest + bytes(msgpack.packb(self._fields()))

    @classmethod
    def verified(cls, data: bytes, plan_digest: bytes, admits: Admits) -> Self:
        """Return the keys of a message, once it is shown that a device of the fleet made it for this plan.

        Raises:
            MessageError: it is malformed, the signature is another's or another round's, or the device is not admitted.
        """
        device, identity, evidence, box_key, mask_key, signature = unpacked(
            KIND, data, (str, bytes, bytes, bytes, bytes, bytes), MESSAGE_BYTES
        )
        if not 0 < len(device.encode()) <= NAME_BYTES:
            raise MessageError(KIND, f"the device's name has {len(device.encode())} bytes, not 1 to {NAME_BYTES}")
        if len(evidence) > VOUCHER_BYTES:
            raise MessageError(KIND, f"{len(evidence)} bytes of evidence; at most {VOUCHER_BYTES} are read", device)
        for field, key in (("identity", identity), ("box key", box_key), ("mask key", mask_key)):
            require_size(KIND, field, key, KEY_BYTES, device)
        require_size(KIND, "signature", signature, SIGNATURE_BYTES, device)
        made = cls(device, identity, evidence, box_key, mask_key)
        try:
            Ed25519PublicKey.from_public_bytes(identity).verify(signature, made._signed_bytes(plan_digest))
        except InvalidSignature as error:
            raise MessageError(KIND, "the signature is not the device's for this plan of a round", device) from error
        if not admits(device, identity, evidence):
            raise MessageError(KIND, "the fleet does not know this key as the device's", device)
        return made


def leaf(data: bytes) -> bytes:
    """Return the hash of a device's message of keys, by which the roster names it."""
    return hashlib.sha256(data).digest()
