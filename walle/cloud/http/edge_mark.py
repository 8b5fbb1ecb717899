"""Mark on requests that an edge gateway passes on: who the client is, and that its profile was answered.

The mark is a header with a key of the cloud's folder. An edge takes it from what clients send, and a gateway believes
none without the key, so that nobody chooses his address, through an edge or around it.
"""

import hmac
import re
from typing import NamedTuple

from walle.base.asgi import ANSWERED, ASGIApp, Receive, Scope, Send

EDGE_HEADER = b"x-walle-edge"
_FIELDS = 5
_HOST = re.compile(r"[!-~]+")


class EdgeMark(NamedTuple):
    """Word of an edge about a request: `scheme` is how the client came, `is_answered` that it has its push answer."""

    host: str
    port: int
    scheme: str
    is_answered: bool

    @classmethod
    def of(cls, scope: Scope, *, is_answered: bool) -> "EdgeMark":
        host, port = scope.get("client") or ("", 0)
        return cls(host, port, scope["scheme"], is_answered)

    def value(self, key: bytes) -> bytes:
        """Return the header's value. A host is left out that a proxy has let a client write, and that is none."""
        host = self.host if _HOST.fullmatch(self.host) else "-"
        fields = (host, str(self.port), self.scheme, "1" if self.is_answered else "0")
        return b" ".join((key, *(one.encode("latin-1") for one in fields)))

    @classmethod
    def read(cls, value: bytes, key: bytes) -> "EdgeMark | None":
        """Return the mark of a header's value, None where it does not have the key."""
        fields = value.split(b" ")
        if len(fields) != _FIELDS or not hmac.compare_digest(fields[0], key):
            return None
        host, port, scheme, answered = (one.decode("latin-1") for one in fields[1:])
        return cls(host.removeprefix("-"), int(port), scheme, answered == "1")


class FromEdges:
    """ASGI middleware: requests with a mark go to `app` as their client's, others `otherwise`; no app sees it."""

    def __init__(self, app: ASGIApp, otherwise: ASGIApp, key: bytes) -> None:
        self._app = app
        self._otherwise = otherwise
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        values = [value for name, value in scope["headers"] if name == EDGE_HEADER]
        if values:
            scope["headers"] = [one for one in scope["headers"] if one[0] != EDGE_HEADER]
        mark = EdgeMark.read(values[0], self._key) if len(values) == 1 else None
        if mark is None:
            await self._otherwise(scope, receive, send)
            return
        scope["client"] = (mark.host, mark.port)
        scope["scheme"] = mark.scheme
        scope[ANSWERED] = mark.is_answered
        await self._app(scope, receive, send)
