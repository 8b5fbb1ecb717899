"""TLS contexts of the tunnel: the server shows its certificate, and so does each device (docs/adr/0030)."""

import _ssl
import ctypes
import logging
import ssl
from pathlib import Path

_LOG = logging.getLogger(__name__)

_SESSIONS = b"walle tunnel"
_ALL_BITS = (1 << 64) - 1


def server_tls(server_pem: Path | str, client_ca_pem: str = "") -> ssl.SSLContext:
    """Return a server's TLS 1.3 context; with `client_ca_pem`, clients must show a certificate of that authority.

    Raises:
        OSError: a certificate cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(server_pem)
    if client_ca_pem:
        context.load_verify_locations(cadata=client_ca_pem)
        context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 1  # a device keeps the latest; each holds its certificate, which takes 0.1 ms to encode
    return context


def name_sessions(context: ssl.SSLContext) -> None:
    """Let connections that aiofastnet makes from a server's context resume the sessions of devices.

    OpenSSL resumes no session in which a client showed a certificate, and ends the connection, unless the server has
    named its sessions. Python names those of its own connections, and no context. The context's pointer is where
    aiofastnet takes it from; where OpenSSL is part of the interpreter, aiofastnet makes Python's connections.
    """
    try:
        library = ctypes.CDLL(_ssl.__file__)
        name, options = library.SSL_CTX_set_session_id_context, library.SSL_CTX_get_options
    except (AttributeError, OSError):
        return
    name.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint]
    options.argtypes, options.restype = [ctypes.c_void_p], ctypes.c_uint64
    pointer = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
    is_context = bool(pointer) and options(pointer) == context.options & _ALL_BITS
    if not is_context or not name(pointer, _SESSIONS, len(_SESSIONS)):
        _LOG.warning("tunnel: sessions of devices cannot be resumed with this Python; each connection proves its key")
        context.num_tickets = 0  # else each second connection of a device would end
