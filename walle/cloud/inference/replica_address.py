"""Addresses of replica processes, and connections to them: by Unix socket on one node, by mutual TLS between nodes.

Each connection between nodes has two keys, one of each end, which never leave their processes. The ends learn each
other's certificate from who starts them (Ray) and accept that one alone, so that no other certificate lets anyone in,
be it the cloud's authority's.
"""

import asyncio
import dataclasses
import datetime as dt
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from walle.base.clock import Clock, SystemClock

_CLOCK_SKEW = dt.timedelta(days=1)  # difference between the clocks of nodes
_LIFE = dt.timedelta(hours=1)  # the connection has to begin within this time
CONNECT_S = 5.0  # time for a connection and its handshake

type Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclasses.dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket on the scheduler's node, in a folder that lets only its user in."""

    path: Path


@dataclasses.dataclass(frozen=True, slots=True)
class TlsAddress:
    """A port on another node, for one connection, and the `certificate` (PEM) that is shown there."""

    host: str
    port: int
    certificate: str


class PeerKey:
    """A key of one end of a connection, and `certificate` (PEM), which the other end must know beforehand."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        now = dt.datetime.fromtimestamp((clock or SystemClock()).time(), dt.UTC)
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Walle fallback inference")])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + _CLOCK_SKEW + _LIFE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM).decode()

    def server_context(self, peer: str) -> ssl.SSLContext:
        """Return the TLS 1.3 context of the end that listens, for the other end with the certificate `peer`."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER, peer)
        context.num_tickets = 0  # no session is resumed
        return context

    def client_context(self, peer: str) -> ssl.SSLContext:
        """Return the TLS 1.3 context of the end that connects, for the other end with the certificate `peer`."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT, peer)

    def _context(self, protocol: int, peer: str) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.check_hostname = False  # the certificate is known as a whole
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=peer)
        secret = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with tempfile.NamedTemporaryFile(prefix="walle-") as file:  # Python takes keys from files alone; mode 600
            file.write(secret + self.certificate.encode())
            file.flush()
            context.load_cert_chain(file.name)
        return context


async def connect(address: UnixAddress | TlsAddress, key: PeerKey) -> Connection:
    """Return a connection to a replica process that was told the certificate of `key`.

    Raises:
        OSError: nothing listens there, or it shows another certificate (ssl.SSLError).
        TimeoutError: not within CONNECT_S.
    """
    if isinstance(address, UnixAddress):
        return await asyncio.open_unix_connection(address.path)
    context = key.client_context(address.certificate)
    async with asyncio.timeout(CONNECT_S):
        return await asyncio.open_connection(address.host, address.port, ssl=context, ssl_shutdown_timeout=CONNECT_S)


class TlsListener:
    """A port that takes one connection, of the end with the certificate `peer`, and closes then or after CONNECT_S."""

    def __init__(self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, peer: str) -> TlsAddress:
        """Listen at `host`, an address of this node; what listened before is closed.

        Raises:
            OSError: `host` is not an address of this node.
            ssl.SSLError: `peer` is not a certificate.
        """
        self.close()
        key = PeerKey()
        context = key.server_context(peer)
        self._server = await asyncio.start_server(
            self._accept,
            host,
            0,
            ssl=context,
            backlog=8,
            ssl_handshake_timeout=CONNECT_S,
            ssl_shutdown_timeout=CONNECT_S,
        )
        asyncio.get_running_loop().call_later(2 * CONNECT_S, self._server.close)
        port: int = self._server.sockets[0].getsockname()[1]
        return TlsAddress(host, port, key.certificate)

    def close(self) -> None:
        """Close the port; a connection that it took continues."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.close()
        await self._serve(reader, writer)
