"""Sealing of exclusive files to a device's key: HPKE (RFC 9180) in base mode, with the P-256 key of its identity.

Suite: DHKEM(P-256, HKDF-SHA256), HKDF-SHA256, AES-256-GCM; the sealed bytes are the encapsulated key, 65 bytes, and
the ciphertext with its tag, 16 bytes longer than the contents. `info` says whose file it is (`seal_info`). Sealing
does not say who sealed: the signed `ExclusiveList` does.
"""

import hashlib
import hmac
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from walle.errors import DeployError

_SUITE = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_KEM_ID = b"KEM" + (0x0010).to_bytes(2)  # RFC 9180, 7.1 to 7.3
_HPKE_ID = b"HPKE" + struct.pack(">HHH", 0x0010, 0x0001, 0x0002)
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # order of the group of P-256


class SealError(DeployError):
    """Sealed bytes that this key does not open: another device's, another file's, or changed ones."""


def seal(data: bytes, public_key_der: bytes, info: bytes) -> bytes:
    """Return `data` sealed to a device's public key of the curve P-256."""
    return _SUITE.encrypt(data, _public_key(public_key_der), info)


def seal_again(data: bytes, public_key_der: bytes, info: bytes, secret: bytes) -> bytes:
    """Return `data` sealed as `seal` does, and the same bytes whenever this is called with the same arguments.

    The ephemeral key is not random: it is derived from the secret, whose holder seals, and from everything else that is
    an argument. So no two contents are ever encrypted with one key and nonce, and nobody else can tell such a key from
    a random one. `open_sealed` opens both. The package that `seal` uses takes no ephemeral key, so that the steps of
    RFC 9180 are here: DeriveKeyPair (7.1.3), Encap (4.1), KeySchedule (5.1) and Seal (5.2).
    """
    recipient = _public_key(public_key_der)
    contexts = (public_key_der, info, data)
    seed = hmac.digest(secret, b"".join(hashlib.sha256(one).digest() for one in contexts), "sha256")
    ephemeral = _derived_key(seed)
    enc, public = _point(ephemeral.public_key()), _point(recipient)
    shared = ephemeral.exchange(ec.ECDH(), recipient)
    shared = _expand(_KEM_ID, _extract(_KEM_ID, b"", b"eae_prk", shared), b"shared_secret", enc + public, 32)
    context = b"\0" + _extract(_HPKE_ID, b"", b"psk_id_hash", b"") + _extract(_HPKE_ID, b"", b"info_hash", info)
    key_secret = _extract(_HPKE_ID, shared, b"secret", b"")
    key = _expand(_HPKE_ID, key_secret, b"key", context, 32)
    nonce = _expand(_HPKE_ID, key_secret, b"base_nonce", context, 12)
    return enc + AESGCM(key).encrypt(nonce, data, b"")


def _public_key(der: bytes) -> ec.EllipticCurvePublicKey:
    key = load_der_public_key(der)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise SealError("the key of a device must be of the curve P-256")
    return key


def _derived_key(seed: bytes) -> ec.EllipticCurvePrivateKey:
    base = _extract(_KEM_ID, b"", b"dkp_prk", seed)
    for counter in range(256):
        number = int.from_bytes(_expand(_KEM_ID, base, b"candidate", bytes([counter]), 32))
        if 0 < number < _ORDER:
            return ec.derive_private_key(number, ec.SECP256R1())
    raise SealError("no key can be derived")  # once in 2**8192 times


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _extract(suite: bytes, salt: bytes, label: bytes, secret: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + secret, "sha256")


def _expand(suite: bytes, secret: bytes, label: bytes, info: bytes, length: int) -> bytes:
    labelled = length.to_bytes(2) + b"HPKE-v1" + suite + label + info
    return HKDFExpand(hashes.SHA256(), length, labelled).derive(secret)


def open_sealed(sealed: bytes, key: ec.EllipticCurvePrivateKey, info: bytes) -> bytes:
    """Return the contents of sealed bytes.

    Raises:
        SealError: they were not sealed to this key with this `info`, or were changed.
    """
    try:
        return _SUITE.decrypt(sealed, key, info)
    except (InvalidTag, ValueError) as error:
        raise SealError("it was not sealed to the present key of this device, or was changed") from error
