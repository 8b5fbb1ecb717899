"""TLS sessions of a device, resumed at its next connection: no certificates and no signatures (§5.2).

asyncio and uvloop take no session for a connection, but both make their TLS objects by `SSLContext.wrap_bio`.
"""

import collections
import ssl
from pathlib import Path
from typing import Any

_KEPT = 4  # sessions of one server name


class ResumingContext(ssl.SSLContext):
    """A client's TLS context that resumes the sessions that `keep` was given.

    It is for one device: the server takes a resumed session for the device whose certificate began it. A session is
    used once, as RFC 8446 C.4 asks, and for the server name whose certificate was checked when it began.
    """

    def __init__(self, *_: Any) -> None:
        self._sessions: dict[str, collections.deque[ssl.SSLSession]] = {}

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        kept = self._sessions.get(str(server_hostname))
        if session is None and kept:
            session = kept.pop()
        return super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)

    def show(self, certificate: Path, key: Path) -> None:
        """Show this certificate at the next connection: sessions that began with another are forgotten.

        Raises:
            OSError: the files cannot be read, or do not belong together.
        """
        self.load_cert_chain(certificate, key)
        self._sessions.clear()

    def keep(self, connection: ssl.SSLObject) -> None:
        """Keep the latest session of an open connection, if its server has sent a ticket for it."""
        session = connection.session
        if session is not None and session.has_ticket:
            name = str(connection.server_hostname)
            self._sessions.setdefault(name, collections.deque(maxlen=_KEPT)).append(session)
