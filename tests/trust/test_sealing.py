"""Sealed files and their signed list against docs/protocol.md, and against RFC 9180 written out here."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from walle.protocol import SEAL_OVERHEAD_BYTES, ExclusiveList, seal_info
from walle.trust.sealing import SealError, _derived_key, _point, open_sealed, seal, seal_again
from walle.trust.signing import Signer

FILE = Path(__file__).parents[2] / "docs/vectors/exclusive.json"


def _vector() -> dict[str, Any]:
    vector: dict[str, Any] = json.loads(FILE.read_text())
    return vector


def _der(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _extract(salt: bytes, data: bytes) -> bytes:
    mac = hmac.HMAC(salt or bytes(32), hashes.SHA256())
    mac.update(data)
    return mac.finalize()


def _opened_by_the_rfc(sealed: bytes, key: ec.EllipticCurvePrivateKey, info: bytes) -> bytes:
    """Return the contents of sealed bytes by the text of RFC 9180, sections 4 and 5, with nothing of walle."""

    def expand(secret: bytes, suite: bytes, label: bytes, context: bytes, length: int) -> bytes:
        labelled = length.to_bytes(2) + b"HPKE-v1" + suite + label + context
        return HKDFExpand(hashes.SHA256(), length, labelled).derive(secret)

    def extract(salt: bytes, suite: bytes, label: bytes, data: bytes) -> bytes:
        return _extract(salt, b"HPKE-v1" + suite + label + data)

    kem, suite = b"KEM\0\x10", b"HPKE\0\x10\0\x01\0\x02"
    encapsulated = sealed[:65]
    shared = key.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), encapsulated))
    own = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    secret = expand(extract(b"", kem, b"eae_prk", shared), kem, b"shared_secret", encapsulated + own, 32)
    context = b"\0" + extract(b"", suite, b"psk_id_hash", b"") + extract(b"", suite, b"info_hash", info)
    secret = extract(secret, suite, b"secret", b"")
    nonce = expand(secret, suite, b"base_nonce", context, 12)
    return AESGCM(expand(secret, suite, b"key", context, 32)).decrypt(nonce, sealed[65:], None)


def test_the_pages_vector_is_opened_and_its_list_is_signed_as_it_says() -> None:
    vector = _vector()
    key = ec.derive_private_key(int(vector["device_private_key"], 16), ec.SECP256R1())
    made = ExclusiveList.from_bytes(json.dumps(vector["list"]).encode())
    (entry,) = made.files
    info = seal_info(made.device_id, made.generation, entry.task, entry.name)
    assert info.hex() == vector["info"]
    sealed = bytes.fromhex(vector["sealed"])
    assert len(sealed) == entry.size_bytes
    assert open_sealed(sealed, key, info) == bytes.fromhex(vector["contents"])
    signer = Signer(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(vector["release_private_key"])))
    assert made.signed_bytes(vector["fleet"]).hex() == vector["signed_bytes"]
    assert signer.sign_exclusive(made, vector["fleet"]) == made


@pytest.mark.parametrize("size_bytes", [0, 1, 100_000])
def test_a_seal_is_hpke_and_opens_for_its_key_and_info_only(size_bytes: int) -> None:
    key, data = ec.generate_private_key(ec.SECP256R1()), os.urandom(size_bytes)
    info = seal_info("phone 1", 1, "shop/ipv", "gallery.json")
    sealed = seal(data, _der(key), info)
    assert len(sealed) == size_bytes + SEAL_OVERHEAD_BYTES
    assert open_sealed(sealed, key, info) == _opened_by_the_rfc(sealed, key, info) == data
    assert seal(data, _der(key), info) != sealed
    others = [
        seal_info("phone 2", 1, "shop/ipv", "gallery.json"),
        seal_info("phone 1", 2, "shop/ipv", "gallery.json"),
        seal_info("phone 1", 1, "bank/ipv", "gallery.json"),
        seal_info("phone 1", 1, "shop/ipv", "other.json"),
    ]
    for other in others:
        with pytest.raises(SealError):
            open_sealed(sealed, key, other)
    for wrong in (sealed[:-1], sealed + b"!", b"", b"\4" * 81, bytes((sealed[0] ^ 1,)) + sealed[1:]):
        with pytest.raises(SealError):
            open_sealed(wrong, key, info)
    with pytest.raises(SealError):
        open_sealed(sealed, ec.generate_private_key(ec.SECP256R1()), info)


def test_only_a_key_of_the_curve_of_devices_is_sealed_to() -> None:
    other = Ed25519PrivateKey.generate().public_key()
    with pytest.raises(SealError, match="of the curve P-256"):
        seal(b"x", other.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo), b"")


@pytest.mark.parametrize("size_bytes", [0, 1, 70_000])
def test_sealing_again_gives_the_same_bytes_which_the_rfc_opens(size_bytes: int) -> None:
    key, data, info = ec.generate_private_key(ec.SECP256R1()), os.urandom(size_bytes), b"whose"
    sealed = seal_again(data, _der(key), info, b"secret")
    assert sealed == seal_again(data, _der(key), info, b"secret")
    assert len(sealed) == size_bytes + SEAL_OVERHEAD_BYTES
    assert open_sealed(sealed, key, info) == _opened_by_the_rfc(sealed, key, info) == data
    with pytest.raises(SealError):
        open_sealed(sealed, key, b"another")


def test_anything_that_differs_gives_another_ephemeral_key() -> None:
    """A key and a nonce that encrypt two contents would give both away."""
    keys = [_der(ec.generate_private_key(ec.SECP256R1())) for _ in range(2)]
    made = {
        seal_again(data, key, info, secret)[:65]
        for data in (b"a", b"b")
        for key in keys
        for info in (b"i", b"j")
        for secret in (b"s", b"t")
    }
    assert len(made) == 16


def test_the_ephemeral_key_is_derived_as_the_rfc_says() -> None:
    """The ephemeral key of the first vector of RFC 9180, A.3: DHKEM(P-256, HKDF-SHA256)."""
    seed = bytes.fromhex("4270e54ffd08d79d5928020af4686d8f6b7d35dbe470265f1f5aa22816ce860e")
    public = "04a92719c6195d5085104f469a8b9814d5838ff72b60501e2c4466e5e67b325ac9"
    public += "8536d7b61a1af4b78e5b7f951c0900be863c403ce65c9bfcb9382657222d18c4"
    assert _point(_derived_key(seed).public_key()).hex() == public


def test_a_key_of_another_curve_is_refused() -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(SealError, match="P-256"):
        seal(b"x", _der(key), b"i")
    with pytest.raises(SealError, match="P-256"):
        seal_again(b"x", _der(key), b"i", b"s")
