"""Keys and X.509 certificates of a cloud's authorities: made, written and read."""

import datetime as dt
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from walle.errors import DeployError

_BACKDATED = dt.timedelta(days=1)  # devices' clocks run late

type CertifiedKey = tuple[ec.EllipticCurvePrivateKey, x509.Certificate]


class AuthorityError(DeployError):
    """A certificate or key that cannot be used. `path` is its file."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"CA, {path}: {what}")
        self.path = path


def make_authority(name: str, now: dt.datetime, life: dt.timedelta) -> CertifiedKey:
    """Return a new key and its own certificate, with which it can issue others."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        dated(x509.CertificateBuilder(), now, life)
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return key, builder.sign(key, hashes.SHA256())


def check_unexpired(path: Path, certificate: x509.Certificate, now: dt.datetime, *, remedy: str) -> None:
    """Raise AuthorityError if the authority's certificate in `path` has expired."""
    if certificate.not_valid_after_utc <= now:
        what = f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}; move it away to make another, and {remedy}"
        raise AuthorityError(path, what)


def key_usage(*, authority: bool) -> x509.KeyUsage:
    """Return the use of a key: to sign certificates, or to sign handshakes."""
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def dated(builder: x509.CertificateBuilder, now: dt.datetime, life: dt.timedelta) -> x509.CertificateBuilder:
    """Return the builder with a serial number and the time for which the certificate is valid."""
    serial = x509.random_serial_number()
    return builder.serial_number(serial).not_valid_before(now - _BACKDATED).not_valid_after(now + life)


def pem_of(*parts: ec.EllipticCurvePrivateKey | x509.Certificate) -> bytes:
    """Return keys and certificates as PEM."""
    encoding, text = serialization.Encoding.PEM, b""
    for part in parts:
        if isinstance(part, x509.Certificate):
            text += part.public_bytes(encoding)
        else:
            text += part.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return text


def load_pair(path: Path) -> CertifiedKey:
    """Return the key and the certificate in a PEM file. Raises AuthorityError if it holds no such pair."""
    data = path.read_bytes()
    try:
        key = serialization.load_pem_private_key(data, password=None)
        certificate = x509.load_pem_x509_certificate(data)
    except (ValueError, TypeError) as error:
        raise AuthorityError(path, f"is damaged ({error}); restore it or move it away to make another") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise AuthorityError(path, "its key is not that of its certificate; restore it or move it away to make another")
    return key, certificate
