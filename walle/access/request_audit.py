"""Audit records of HTTP requests, with the address of the client.

`RequestNotes` around the app notes the address of each request; `RequestAudit` adds it to the records that the routes
make, once the caller's role is known and before the change: a caller without the role leaves none, else anyone could
fill the log.
"""

import contextvars
from typing import Unpack

from walle.access.audit import Audit, AuditFields
from walle.base.asgi import ASGIApp, Receive, Scope, Send, address_of

_address: contextvars.ContextVar[str] = contextvars.ContextVar("request_address", default="")


class RequestNotes:
    """ASGI middleware: notes the address of the request that is being answered."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            _address.set(address_of(scope))
        await self.app(scope, receive, send)


class RequestAudit:
    """An `Audit` for the routes of an app in `RequestNotes`."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    async def record(self, action: str, *, must: bool = True, **fields: Unpack[AuditFields]) -> None:
        fields["address"] = fields.get("address") or _address.get()
        await self._audit.record(action, must=must, **fields)
