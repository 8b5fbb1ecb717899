"""Certificate authority of a cloud, which devices trust at the other end of the tunnel (§5.2).

Kept in one folder, readable by its owner only:

    authority.pem   the authority's key and certificate; whoever has it can pose as the cloud
    ca.pem          the certificate alone: what devices are given
    server.pem      the server's key and certificate, issued again before it expires
    tunnel-*.pem    the same of tunnel servers at other addresses

ECDSA on P-256, whose handshake costs a server half of what RSA's does.
"""

import contextlib
import datetime as dt
import fcntl
import ipaddress
import logging
import os
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from walle.access.identity.certificates import (
    AuthorityError,
    CertifiedKey,
    check_unexpired,
    dated,
    key_usage,
    load_pair,
    make_authority,
    pem_of,
)
from walle.base.clock import Clock, SystemClock
from walle.base.durable_file import make_folders, remove_unfinished, write_file
from walle.errors import ConfigError
from walle.trust.tls import server_tls

_AUTHORITY_LIFE = dt.timedelta(days=3650)
_SERVER_LIFE = dt.timedelta(days=90)
_RENEW_BEFORE = dt.timedelta(days=30)
_LOCAL = ("localhost", "127.0.0.1")
_LOG = logging.getLogger(__name__)

__all__ = ["Authority", "AuthorityError"]


class Authority:
    """The authority in `folder`, made there at first use and loaded afterwards.

    The server's certificate, in the file called `server`, names localhost, 127.0.0.1 and `hosts` (names or addresses
    that devices connect to); it is issued again when they change or it expires soon. Processes that start at the same
    time in one folder agree.

    Raises:
        AuthorityError: the authority's file is damaged or expired.
        ConfigError: a host is neither an address nor a name.
        OSError: the folder cannot be written.
    """

    def __init__(
        self, folder: Path, *, hosts: Iterable[str] = (), clock: Clock | None = None, server: str = "server"
    ) -> None:
        self.folder = folder
        self.ca_path = folder / "ca.pem"
        self.server_path = folder / f"{server}.pem"
        self._authority_path = folder / "authority.pem"
        self._clock = clock or SystemClock()
        self._hosts = list(dict.fromkeys([*_LOCAL, *hosts]))
        make_folders(folder, mode=0o700)
        self._contexts: dict[str, ssl.SSLContext] = {}  # by the authority of the clients, "" where they show nothing
        with self._locked():
            remove_unfinished(folder)
            self._authority = self._load_or_make()
            certificate = pem_of(self._authority[1])
            if not self.ca_path.exists() or self.ca_path.read_bytes() != certificate:
                write_file(self.ca_path, certificate, mode=0o644)
        self.renew()

    def server_context(self, *, client_ca_pem: str = "") -> ssl.SSLContext:
        """Return the server's TLS 1.3 context, the same at each call; `renew` also renews what it shows.

        With `client_ca_pem`, clients must show a certificate of that authority.
        """
        context = self._contexts.get(client_ca_pem)
        if context is None:
            context = self._contexts[client_ca_pem] = server_tls(self.server_path, client_ca_pem)
        return context

    def renew(self) -> bool:
        """Issue a new server certificate if it is due, and return whether it was. Call it daily while a server runs."""
        with self._locked():
            if not self._is_due():
                return False
            write_file(self.server_path, pem_of(*self._issue()), mode=0o600)
        for context in self._contexts.values():
            context.load_cert_chain(self.server_path)
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

    def _load_or_make(self) -> CertifiedKey:
        path = self._authority_path
        if not path.exists():
            made = make_authority("Walle authority", self._now(), _AUTHORITY_LIFE)
            write_file(path, pem_of(*made), mode=0o600)
        pair = load_pair(path)
        check_unexpired(path, pair[1], self._now(), remedy=f"give devices the new {self.ca_path.name}")
        return pair

    def _issue(self) -> CertifiedKey:
        authority_key, authority = self._authority
        key = ec.generate_private_key(ec.SECP256R1())
        builder = dated(x509.CertificateBuilder(), self._now(), _SERVER_LIFE)
        builder = (
            builder.subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Walle tunnel")]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .add_extension(x509.SubjectAlternativeName(self._alternative_names()), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(authority=False), critical=True)
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
            _, certificate = load_pair(self.server_path)
            certificate.verify_directly_issued_by(self._authority[1])
        except (AuthorityError, InvalidSignature, ValueError, TypeError) as error:
            why = str(error) or type(error).__name__
            _LOG.warning("the certificate in %s is issued again, since it cannot be used: %s", self.server_path, why)
            return True
        shown = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        near_end = certificate.not_valid_after_utc - _RENEW_BEFORE <= self._now()
        return near_end or set(shown) != set(self._alternative_names())


def _dns_name(host: str) -> x509.DNSName:
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"{host!r} is neither an address nor a host name ({error})") from error
