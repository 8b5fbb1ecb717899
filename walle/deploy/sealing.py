"""Sealing of exclusive files to a device's key: HPKE (RFC 9180) in base mode, with the P-256 key of its identity.

Suite: DHKEM(P-256, HKDF-SHA256), HKDF-SHA256, AES-256-GCM; the sealed bytes are the encapsulated key, 65 bytes, and
the ciphertext with its tag, 16 bytes longer than the contents. `info` says whose file it is (`seal_info`). Sealing
does not say who sealed: the signed `ExclusiveList` does.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.serialization import load_der_public_key

from walle.errors import DeployError

_SUITE = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class SealError(DeployError):
    """Sealed bytes that this key does not open: another device's, another file's, or changed ones."""


def seal(data: bytes, public_key_der: bytes, info: bytes) -> bytes:
    """Return `data` sealed to a device's public key of the curve P-256."""
    key = load_der_public_key(public_key_der)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise SealError("the key of a device must be of the curve P-256")
    return _SUITE.encrypt(data, key, info)


def open_sealed(sealed: bytes, key: ec.EllipticCurvePrivateKey, info: bytes) -> bytes:
    """Return the contents of sealed bytes.

    Raises:
        SealError: they were not sealed to this key with this `info`, or were changed.
    """
    try:
        return _SUITE.decrypt(sealed, key, info)
    except (InvalidTag, ValueError) as error:
        raise SealError("it was not sealed to the present key of this device, or was changed") from error
