"""Keys of pairs of clients: X25519 and HKDF-SHA256 for masks and for boxes, AES-256-GCM for the boxes.

Source: Bonawitz et al. 2017, section 3 (key agreement, authenticated encryption, pseudorandom generator); RFC 7748,
RFC 5869.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from walle.federated.privacy.secagg.messages import MessageError
from walle.federated.privacy.secagg.shares import SHARE_BYTES

_MASK_SEED = b"walle secagg mask key 1\0"
_SELF_MASK = b"walle secagg self mask 1\0"
_COMMITMENT = b"walle secagg commitment 1\0"
_PAIR_MASK = b"walle secagg pair mask 1\0"
_BOX = b"walle secagg box 1\0"
_NONCE = bytes(12)  # each box key seals one box
_TRIAL = X25519PrivateKey.generate()  # finds public keys of small order; nothing is encrypted with it
BOX_BYTES = 2 * SHARE_BYTES + 16  # two shares and the tag


def _derived(secret: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt, info).derive(secret)


def mask_private_key(seed: bytes, plan_digest: bytes) -> X25519PrivateKey:
    """Return the private key of pairwise masks that a client's seed of 16 bytes determines."""
    return X25519PrivateKey.from_private_bytes(_derived(seed, plan_digest, _MASK_SEED))


def self_mask_key(seed: bytes, roster: bytes) -> bytes:
    """Return the keystream's key of a client's mask of its own."""
    return _derived(seed, roster, _SELF_MASK)


def self_mask_commitment(seed: bytes, roster: bytes) -> bytes:
    """Return a hash by which the server checks the seed that shares gave; it says nothing about the seed."""
    return _derived(seed, roster, _COMMITMENT)


def pair_mask_key(private: X25519PrivateKey, public: bytes, roster: bytes) -> bytes:
    """Return the keystream's key of the mask that two clients have in common.

    Raises:
        MessageError: the public key is a point of small order.
    """
    return _derived(_exchanged(private, public), roster, _PAIR_MASK)


def require_usable(public: bytes) -> None:
    """Raise MessageError for a public key of small order, with which every exchange would fail."""
    _exchanged(_TRIAL, public)


def _exchanged(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise MessageError("keys", f"X25519 key {public.hex()} is a point of small order") from error


class BoxKeys:
    """Key agreement of one client with its neighbours for boxes, one direction and one neighbour at a time."""

    def __init__(self, private: X25519PrivateKey, leaf: bytes, roster: bytes) -> None:
        self._private = private
        self._leaf = leaf
        self._roster = roster

    def seal(self, shares: bytes, public: bytes, recipient: bytes) -> bytes:
        """Return two shares sealed to the neighbour with this key and leaf. Call it once for each neighbour."""
        return self._cipher(public, self._leaf + recipient).encrypt(_NONCE, shares, None)

    def open(self, box: bytes, public: bytes, sender: bytes) -> bytes | None:
        """Return the two shares that a neighbour sealed, or None where the box is not from it to this client."""
        try:
            return self._cipher(public, sender + self._leaf).decrypt(_NONCE, box, None)
        except InvalidTag:
            return None

    def _cipher(self, public: bytes, direction: bytes) -> AESGCM:
        return AESGCM(_derived(_exchanged(self._private, public), self._roster, _BOX + direction))
