"""Audit records of HTTP requests: made once the caller's role is known, before the request is acted on.

`RequestNotes` around the app notes method, path and address of each request; `audited` around an `Authorize` writes the
record. A caller without the role leaves none: else anyone could fill the log.
"""

import contextvars
import re
from typing import NamedTuple

from walle.deploy.cloud.access import Role
from walle.deploy.cloud.api import Authorize
from walle.deploy.cloud.asgi import ASGIApp, Receive, Scope, Send, address_of
from walle.deploy.cloud.audit import Audit

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_ACTION = re.compile(r"/v1/(?P<kind>[a-z-]+?)s?(?:/(?P<subject>[^/]+))?(?:/(?P<verb>[a-z-]+))?/?")
_VERBS = {"POST": "create", "PUT": "set", "PATCH": "change", "DELETE": "delete"}


class _Note(NamedTuple):
    method: str
    path: str
    address: str


_note: contextvars.ContextVar[_Note | None] = contextvars.ContextVar("request_note", default=None)


class RequestNotes:
    """ASGI middleware: what `audited` has to know of the request that is being answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            _note.set(_Note(scope["method"], scope["path"], address_of(scope)))
        await self._app(scope, receive, send)


def audited(authorize: Authorize, audit: Audit) -> Authorize:
    """Return a check that also records a request which changes something, before the request goes on.

    Raises, from the check:
        AuditError: the record is not durable; the request is refused. A rollback or a pause goes on.
    """

    async def check(authorization: str, scenario: str, role: Role) -> str:
        who = await authorize(authorization, scenario, role)
        note = _note.get()
        if note is not None and note.method not in _READING:
            action, subject = action_of(note.method, note.path)
            await audit.record(
                action,
                who=who,
                subject=subject or scenario,
                address=note.address,
                details={"scenario": scenario, "role": str(role)},
                must=action not in ("release.rollback", "release.pause"),
            )
        return who

    return check


def action_of(method: str, path: str) -> tuple[str, str]:
    """Return the action and the subject of a request, such as ("release.start", "ipv-v1-1")."""
    match = _ACTION.fullmatch(path)
    if match is None:
        return f"http.{method.lower()}", path
    verb = match["verb"] or _VERBS.get(method, method.lower())
    return f"{match['kind']}.{verb}", match["subject"] or ""
