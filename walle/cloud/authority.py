"""Certificate authority of a cloud, which devices trust at the other end of the tunnel (§5.2).

Kept in one folder, readable by its owner only:

    authority.pem   the authority's key and certificate; whoever has it can pose as the cloud
    ca.pem          the certificate alone: what devices are given
    server.pem      the server's key and certificate, issued again before it expires

ECDSA on P-256, whose handshake costs a server half of what RSA's does.
"""

import contextlib
import datetime as dt
import fcntl
import ipaddress
import os
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from walle.clock import Clock, SystemClock
from walle.durable_file import make_folders, remove_unfinished, write_file
from walle.errors import ConfigError, DeployError

_AUTHORITY_LIFE = dt.timedelta(days=3650)
_SERVER_LIFE = dt.timedelta(days=90)
_RENEW_BEFORE = dt.timedelta(days=30)
_BACKDATED = dt.timedelta(days=1)  # devices' clocks run late
_LOCAL = ("localhost", "127.0.0.1")

type _Pair = tuple[ec.EllipticCurvePrivateKey, x509.Certificate]


class AuthorityError(DeployError):
    """A certificate or key that cannot be used. `path` is its file."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"certificate authority, {path}: {what}")
        self.path = path


class Authority:
    """The authority in `folder`, made there at first use and loaded afterwards.

    The server's certificate names localhost, 127.0.0.1 and `hosts` (names or addresses that devices connect to); it is
    issued again when they change or it expires soon. Processes that start at the same time in one folder agree.

    Raises:
        AuthorityError: the authority's file is damaged or expired.
        ConfigError: a host is neither an address nor a name.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, *, hosts: Iterable[str] = (), clock: Clock | None = None) -> None:
        self.folder = folder
        self.ca_path = folder / "ca.pem"
        self.server_path = folder / "server.pem"
        self._authority_path = folder / "authority.pem"
        self._clock = clock or SystemClock()
        self._hosts = list(dict.fromkeys([*_LOCAL, *hosts]))
        make_folders(folder, mode=0o700)
        self._context: ssl.SSLContext | None = None
        with self._locked():
            remove_unfinished(folder)
            self._authority = self._load_or_make()
            certificate = _pem(self._authority[1])
            if not self.ca_path.exists() or self.ca_path.read_bytes() != certificate:
                write_file(self.ca_path, certificate, mode=0o644)
        self.renew()

    def server_context(self) -> ssl.SSLContext:
        """Return the server's TLS 1.3 context, the same at each call; `renew` also renews what it shows."""
        if self._context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(self.server_path)
            self._context = context
        return self._context

    def renew(self) -> bool:
        """Issue a new server certificate if it is due, and return whether it was. Call it daily while a server runs."""
        with self._locked():
            if not self._is_due():
                return False
            write_file(self.server_path, _pem(*self._issue()), mode=0o600)
        if self._context is not None:
            self._context.load_cert_chain(self.server_path)
        return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes out of the folder; the lock goes with the process."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._clock.time(), dt.UTC)

    def _load_or_make(self) -> _Pair:
        path = self._authority_path
        if not path.exists():
            write_file(path, _pem(*self._make()), mode=0o600)
        key, certificate = _load(path)
        if certificate.not_valid_after_utc <= self._now():
            what = f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}; move it away to make another"
            raise AuthorityError(path, f"{what}, and give devices the new {self.ca_path.name}")
        return key, certificate

    def _make(self) -> _Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Walle authority")])
        builder = _dated(x509.CertificateBuilder(), self._now(), _AUTHORITY_LIFE)
        builder = (
            builder.subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return key, builder.sign(key, hashes.SHA256())

    def _issue(self) -> _Pair:
        authority_key, authority = self._authority
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _dated(x509.CertificateBuilder(), self._now(), _SERVER_LIFE)
        builder = (
            builder.subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Walle tunnel")]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .add_extension(x509.SubjectAlternativeName(self._alternative_names()), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )
        return key, builder.sign(authority_key, hashes.SHA256())

    def _alternative_names(self) -> list[x509.GeneralName]:
        names: list[x509.GeneralName] = []
        for host in self._hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(_dns_name(host))
        return names

    def _is_due(self) -> bool:
        if not self.server_path.exists():
            return True
        try:
            _, certificate = _load(self.server_path)
            certificate.verify_directly_issued_by(self._authority[1])
        except (AuthorityError, InvalidSignature, ValueError, TypeError):  # it can be issued again
            return True
        shown = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        near_end = certificate.not_valid_after_utc - _RENEW_BEFORE <= self._now()
        return near_end or set(shown) != set(self._alternative_names())


def _dns_name(host: str) -> x509.DNSName:
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"{host!r} is neither an address nor a host name ({error})") from error


def _usage(*, authority: bool) -> x509.KeyUsage:
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


def _dated(builder: x509.CertificateBuilder, now: dt.datetime, life: dt.timedelta) -> x509.CertificateBuilder:
    serial = x509.random_serial_number()
    return builder.serial_number(serial).not_valid_before(now - _BACKDATED).not_valid_after(now + life)


def _pem(*parts: ec.EllipticCurvePrivateKey | x509.Certificate) -> bytes:
    encoding, text = serialization.Encoding.PEM, b""
    for part in parts:
        if isinstance(part, x509.Certificate):
            text += part.public_bytes(encoding)
        else:
            text += part.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return text


def _load(path: Path) -> _Pair:
    data = path.read_bytes()
    try:
        key = serialization.load_pem_private_key(data, password=None)
        certificate = x509.load_pem_x509_certificate(data)
    except (ValueError, TypeError) as error:
        raise AuthorityError(path, f"is damaged ({error}); restore it or move it away to make another") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise AuthorityError(path, "its key is not that of its certificate; restore it or move it away to make another")
    return key, certificate
