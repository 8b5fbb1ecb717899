"""Routes of a gateway and who may call each: the table from which the gateway's guard and its page in docs are made.

A request whose method and path are not in the table is answered as unknown, so that a route without an entry is
closed. The guard decides by the header alone, before the body is read.
"""

import dataclasses
import enum
import functools
import html
import json
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from starlette.routing import BaseRoute, Mount, compile_path

from walle.access.access import ANY_SCENARIO, Identifier, Identity, Role
from walle.base.asgi import ASGIApp, Message, Receive, Scope, Send
from walle.errors import ConfigError
from walle.metrics.http_durations import HttpDurations, route_class

_FOR_PEOPLE = ((b"x-content-type-options", b"nosniff"),)  # a browser takes no text of somebody for a page
_UNFRAMED = (b"content-security-policy", b"base-uri 'none'; frame-ancestors 'none'")
_REFUSED = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>No access – Walle</title></head>
<body><main><h1>No access</h1><p role="alert">{what}.</p>
<p>Someone with the role admin gives roles, with <code>walle token add</code>.</p>
{link}<p><a href="/dashboard/login?again=1">Log in with another token</a></p></main></body></html>
"""


class Caller(enum.Enum):
    """Kind of caller that a route is for."""

    ANYONE = "anyone"
    DEVICE = "a device"
    PERSON = "a token"
    FILE_ADDRESS = "a file address"  # address in a directive, which is the permission
    SESSION = "a person at the dashboard"  # logged in with a token
    LINK = "a read-only link"  # the link is the permission
    BUSINESS = "the business app's own check"


class Where(enum.Enum):
    """Scenario in which a person needs the role."""

    SOME = "in some scenario; others' things are not shown"
    ITS = "in the scenario of what the path or body names"
    ALL = "on `*`"


@dataclasses.dataclass(frozen=True)
class RouteRule:
    """Rule of a route: who may call it. `path` is a template of Starlette.

    `role` and `where` are for `Caller.PERSON` and `Caller.SESSION`; `NONE` as the role is any token. `is_page` is a
    page that a browser asks for by itself, or git's: its 401 asks for a password, which is a token; other routes take
    the token as Bearer only.
    """

    methods: str
    path: str
    caller: Caller
    role: Role = Role.NONE
    where: Where = Where.SOME
    note: str = ""
    is_page: bool = False

    @functools.cached_property
    def duration_class(self) -> str:
        """Return the class under which the durations of its requests are counted, "" for none."""
        return route_class(self.path)

    def admits(self, identity: Identity) -> bool:
        """Return whether a person may call the route, as far as the path tells: `ITS` is checked by the route."""
        role = identity.role(ANY_SCENARIO) if self.where is Where.ALL else identity.highest_role
        return role >= self.role


def _person(methods: str, path: str, role: Role, where: Where, note: str = "", *, is_page: bool = False) -> RouteRule:
    return RouteRule(methods, path, Caller.PERSON, role, where, note, is_page)


def _git_routes(repository: str, note: str = "") -> tuple[RouteRule, ...]:
    """Return the rules of a repository's address; `note` comes before the notes of the rules."""

    def rule(methods: str, tail: str, role: Role, its_note: str = "") -> RouteRule:
        notes = "; ".join(filter(None, (note, its_note)))
        return _person(methods, f"{repository}/{tail}", role, Where.ITS, notes, is_page=True)

    return (
        rule("GET", "info/refs", Role.READER, "author for a push"),
        rule("POST", "info/lfs/objects/batch", Role.READER, "author for a push"),
        rule("GET", "info/lfs/objects/{sha256}", Role.READER),
        rule("PUT HEAD PATCH", "info/lfs/objects/{sha256}", Role.AUTHOR),
        rule("POST", "git-upload-pack", Role.READER),
        rule("POST", "git-receive-pack", Role.AUTHOR, "an author: branches of its patterns; tags `TASK/vN`: releaser"),
    )


def _page(methods: str, path: str, role: Role, where: Where, note: str = "") -> RouteRule:
    return RouteRule(methods, path, Caller.SESSION, role, where, note)


_BY_FORM = "a form of the session's own"
ROUTES: tuple[RouteRule, ...] = (
    RouteRule("GET", "/", Caller.ANYONE, note="leads to the dashboard"),
    RouteRule("GET POST", "/dashboard/login", Caller.ANYONE, note="reads a token, and begins a session"),
    RouteRule("GET", "/dashboard/static/{name}", Caller.ANYONE, note="styles and scripts"),
    RouteRule("GET", "/dashboard/shared/{link}", Caller.LINK, note="one release, until the link expires"),
    RouteRule("GET", "/dashboard/shared/{link}/live", Caller.LINK),
    _page("POST", "/dashboard/logout", Role.NONE, Where.SOME, _BY_FORM),
    _page("GET", "/dashboard", Role.READER, Where.SOME),
    _page("GET", "/dashboard/live", Role.READER, Where.SOME),
    _page("GET", "/dashboard/releases/{release_id}", Role.READER, Where.ITS),
    _page("GET", "/dashboard/releases/{release_id}/live", Role.READER, Where.ITS, "ends when the token is revoked"),
    _page("GET", "/dashboard/releases/{release_id}/confirm/{verb}", Role.RELEASER, Where.ITS),
    _page("POST", "/dashboard/releases/{release_id}/{verb}", Role.RELEASER, Where.ITS, _BY_FORM),
    _page("POST", "/dashboard/links/{release_id}", Role.READER, Where.ITS, _BY_FORM),
    _page("GET", "/dashboard/devices", Role.READER, Where.SOME),
    _page("GET", "/dashboard/device/{device_id:path}", Role.READER, Where.SOME),
    _page("GET", "/dashboard/targeting", Role.READER, Where.SOME),
    _page("GET", "/dashboard/tasks", Role.READER, Where.SOME),
    _page("GET", "/dashboard/tasks/{scenario}/{task}", Role.READER, Where.ITS),
    _page("GET", "/dashboard/features", Role.READER, Where.SOME),
    _page("GET", "/dashboard/features/live", Role.READER, Where.SOME),
    _page("GET", "/dashboard/metrics", Role.METRICS, Where.ALL),
    _page("GET", "/dashboard/metrics/live", Role.METRICS, Where.ALL),
    RouteRule("GET", "/healthz", Caller.ANYONE, note="says `ok` only; more to the role metrics on `*`"),
    RouteRule("GET", "/v1/authority", Caller.ANYONE, note="the certificate by which clients trust the cloud"),
    _person("GET", "/metrics", Role.METRICS, Where.ALL),
    _person("POST", "/v1/releases", Role.RELEASER, Where.ITS),
    _person("GET", "/v1/releases", Role.READER, Where.SOME),
    _person("POST", "/v1/releases/retire", Role.RELEASER, Where.ITS),
    _person("GET", "/v1/releases/{release_id}", Role.READER, Where.ITS),
    _person("GET", "/v1/releases/{release_id}/failures", Role.READER, Where.ITS),
    _person("GET", "/v1/releases/{release_id}/evidence", Role.READER, Where.ITS),
    _person("GET", "/v1/releases/{release_id}/course", Role.READER, Where.ITS),
    _person("GET", "/v1/releases/{release_id}/stream", Role.READER, Where.ITS, "ends when the token is revoked"),
    _person("POST", "/v1/releases/{release_id}/start", Role.RELEASER, Where.ITS),
    _person("POST", "/v1/releases/{release_id}/pause", Role.RELEASER, Where.ITS),
    _person("POST", "/v1/releases/{release_id}/resume", Role.RELEASER, Where.ITS),
    _person("POST", "/v1/releases/{release_id}/rollback", Role.RELEASER, Where.ITS),
    _person("POST", "/v1/releases/{release_id}/retry", Role.RELEASER, Where.ITS),
    _person("GET", "/v1/explain/{device_id:path}", Role.READER, Where.SOME),
    _person("POST", "/v1/preview", Role.READER, Where.ITS),
    _person("GET", "/v1/attributes", Role.READER, Where.ALL, "keys, columns and sizes of tables, not their rows"),
    _person("PUT", "/v1/attributes/{key}", Role.RELEASER, Where.ALL),
    _person("DELETE", "/v1/attributes/{key}", Role.RELEASER, Where.ALL),
    _person("GET", "/v1/versions/{scenario}/{task}/{version}/manifest", Role.READER, Where.ITS),
    _person("POST", "/v1/versions/{scenario}/{task}/{version}/signatures", Role.AUTHOR, Where.ITS),
    _person("GET", "/v1/audit", Role.ADMIN, Where.ALL),
    _person("GET", "/v1/audit/head", Role.ADMIN, Where.ALL),
    _person("GET", "/v1/audit/verify", Role.ADMIN, Where.ALL),
    RouteRule("POST", "/v1/identity/certificate", Caller.ANYONE, note="an enrolment token, or the key of the device"),
    RouteRule("POST", "/v1/identity/challenge", Caller.ANYONE),
    RouteRule("POST", "/v1/identity/session", Caller.ANYONE, note="who signs the challenge with the device's key"),
    _person("POST", "/v1/identity/tokens", Role.ADMIN, Where.ALL),
    _person("POST", "/v1/identity/revoke", Role.ADMIN, Where.ALL),
    _person("GET", "/v1/identity/devices", Role.ADMIN, Where.ALL),
    RouteRule("GET", "/trust/{name}", Caller.ANYONE, note="signed metadata: which keys the fleet trusts"),
    _person("GET", "/v1/push-table", Role.READER, Where.ALL, "for other gateways: releases, and whom they are for"),
    _person("POST", "/v1/push-sightings", Role.READER, Where.ALL, "for other gateways; each device by its session"),
    _person("GET", "/v1/cloud", Role.READER, Where.ALL, "processes, leases and lag"),
    _person("GET", "/v1/cloud/nodes", Role.READER, Where.ALL, "drained nodes, and processes to start again"),
    _person("POST", "/v1/cloud/nodes/drain", Role.ADMIN, Where.ALL),
    _person("POST", "/v1/cloud/nodes/undrain", Role.ADMIN, Where.ALL),
    _person("POST", "/v1/cloud/nodes/restart", Role.ADMIN, Where.ALL),
    RouteRule("POST", "/v1/outcomes", Caller.DEVICE),
    RouteRule("POST", "/v1/checkin", Caller.DEVICE),
    RouteRule("POST", "/v1/tuning/{scenario}/{task}", Caller.DEVICE, note="a device's model of a task, and no data"),
    RouteRule("GET", "/v1/tuning/{scenario}/{task}/peers", Caller.DEVICE, note="who shares a model"),
    RouteRule("GET", "/v1/tuning/{scenario}/{task}/peers/{sha256}", Caller.DEVICE, note="who shares a model"),
    _person("GET", "/v1/devices", Role.READER, Where.SOME),
    _person("GET", "/v1/devices/{device_id:path}", Role.READER, Where.SOME),
    _person("GET", "/v1/device-attributes/{attribute}", Role.READER, Where.SOME),
    _person("GET", "/v1/device-log/{device_id:path}", Role.READER, Where.SOME),
    _person("GET", "/v1/features", Role.READER, Where.SOME),
    _person("GET", "/v1/whoami", Role.NONE, Where.SOME),
    _person("GET", "/v1/tokens", Role.ADMIN, Where.ALL),
    _person("POST", "/v1/tokens", Role.ADMIN, Where.ALL),
    _person("DELETE", "/v1/tokens/{name:path}", Role.ADMIN, Where.ALL),
    _person("GET", "/v1/groups", Role.READER, Where.SOME),
    _person("PUT", "/v1/groups/{group}/{scenario}", Role.ADMIN, Where.ALL),
    _person("DELETE", "/v1/groups/{group}/{scenario}", Role.ADMIN, Where.ALL),
    RouteRule("GET", "/cen/files", Caller.DEVICE, note="exclusive files of this device alone; others: 404"),
    RouteRule("GET", "/cen/files/{sha256}", Caller.DEVICE, note="a file of that list, sealed to its key; others: 404"),
    _person("GET", "/v1/exclusive/{scenario}", Role.READER, Where.ITS),
    _person("PUT", "/v1/exclusive/{scenario}/{task}/{name}", Role.RELEASER, Where.ITS),
    _person("DELETE", "/v1/exclusive/{scenario}/{task}/{name}", Role.RELEASER, Where.ITS),
    RouteRule("GET HEAD", "/cdn/{address:path}", Caller.FILE_ADDRESS),
    *_git_routes("/git/{scenario}"),
    *_git_routes("/git/{group}/{scenario}", "the scenario must be in the group"),
    _person("GET HEAD", "/openapi.json", Role.READER, Where.SOME, is_page=True),
    _person("GET", "/docs", Role.READER, Where.SOME, is_page=True),
    _person("GET", "/docs/oauth2-redirect", Role.READER, Where.SOME, is_page=True),
    _person("GET HEAD", "/docs/assets/{path:path}", Role.READER, Where.SOME, is_page=True),
)
# A POST that changes nothing, or the same thing at most once: an edge gateway may send it again (docs/adr/0027).
REPEATABLE_POSTS = frozenset(
    {
        *("/v1/outcomes", "/v1/checkin", "/v1/preview", "/v1/push-sightings", "/v1/identity/challenge"),
        *("/v1/identity/revoke", "/git/{scenario}/git-upload-pack", "/git/{group}/{scenario}/git-upload-pack"),
        *("/git/{scenario}/info/lfs/objects/batch", "/git/{group}/{scenario}/info/lfs/objects/batch"),
    }
)
_REPEATABLE_POSTS = [compile_path(path)[0] for path in sorted(REPEATABLE_POSTS)]
_REPEATABLE = frozenset({"GET", "HEAD", "PUT"})
BUSINESS = RouteRule("any", "/{path:path}", Caller.BUSINESS, note="where a cloud has one: every other path")


class RouteTable:
    """Look-up of the rule of a request: the first whose path matches, as the app's router does."""

    def __init__(self, rules: Iterable[RouteRule] = ROUTES, *, has_business: bool = False) -> None:
        self._rules = [(compile_path(rule.path)[0], frozenset(rule.methods.split()), rule) for rule in rules]
        self._has_business = has_business

    def find(self, method: str, path: str) -> RouteRule | None:
        """Return the rule, None where no rule has the path or its method."""
        is_known = False
        for pattern, methods, rule in self._rules:
            if pattern.match(path):
                if method in methods:
                    return rule
                is_known = True
        return BUSINESS if self._has_business and not is_known else None

    def has_entry(self, method: str, path: str) -> bool:
        """Return whether the table has an entry of this template, or below it for a mounted app's."""
        below = path.removesuffix("{path:path}")
        return any(
            method in methods and (rule.path == path or (below != path and rule.path.startswith(below)))
            for _, methods, rule in self._rules
        )

    def methods(self, path: str) -> tuple[str, ...]:
        """Return the methods that the path has."""
        return tuple(sorted({one for pattern, methods, _ in self._rules if pattern.match(path) for one in methods}))


def may_repeat(method: str, path: str) -> bool:
    """Return whether a request may be sent again when its answer was lost: it changes nothing, or only once.

    Of paths that are not Walle's, GET and HEAD alone.
    """
    if method == "POST":
        return any(pattern.match(path) for pattern in _REPEATABLE_POSTS)
    return method in _REPEATABLE and (method != "PUT" or path.startswith(("/v1/", "/git/")))


def check_routes(routes: Iterable[BaseRoute], table: RouteTable) -> None:
    """Check that each route of an app has its entry in the table.

    Raises:
        ConfigError: some have none; the message names them.
    """
    missing = [
        f"{method} {path}"
        for path, methods in _paths(routes)
        for method in sorted(methods)
        if not table.has_entry(method, path)
    ]
    if missing:
        raise ConfigError(f"{', '.join(missing)}: no entry in walle/cloud/api/routes.py says who may call this")


def _paths(routes: Iterable[BaseRoute]) -> Iterator[tuple[str, frozenset[str]]]:
    """Return path and methods of each route, those of included routers too; of a mounted app, its path and GET."""
    for route in routes:
        if isinstance(route, Mount):
            if route.path:  # the business app is at ""
                yield f"{route.path}/{{path:path}}", frozenset({"GET"})
        elif (inner := getattr(route, "original_router", None)) is not None:  # FastAPI's, whose class is private
            yield from _paths(inner.routes)
        else:
            yield vars(route)["path"], frozenset(vars(route)["methods"] or ())


class SessionFinder(Protocol):
    """Finds the owner of a session of the dashboard, by a Cookie header."""

    def __call__(self, cookie_header: str) -> Identity | None: ...


class RouteGuard:
    """ASGI middleware: answers requests that the table does not allow, and lets the others through.

    What is not walle's goes to `business` at once: walle's router has 40 routes to look at. `durations` counts how long
    requests take.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Identifier,
        table: RouteTable,
        business: ASGIApp | None = None,
        *,
        find_session: SessionFinder | None = None,
        durations: HttpDurations | None = None,
    ) -> None:
        self._durations = durations or HttpDurations()
        self._app = app
        self._find_session = find_session
        self._access = access
        self._table = table
        self._business = business

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        counted = await self._answer(scope, receive, send)
        if counted:
            self._durations.add(counted, time.perf_counter() - began_s)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> str:
        """Answer a request; return the class under which its duration is counted, "" for none."""
        rule = self._table.find(scope["method"], scope["path"])
        if rule is None:
            methods = self._table.methods(scope["path"])
            allow = [(b"allow", ", ".join(methods).encode())] if methods else []
            what = "this path does not allow the method" if methods else "this path does not exist"
            await _refuse(send, 405 if methods else 404, what, allow, is_page=False)
            return "refused"
        if rule.caller is Caller.SESSION:
            cookies = [value for name, value in scope["headers"] if name.lower() == b"cookie"]
            cookie = b"; ".join(cookies).decode("latin-1")
            person = self._find_session(cookie) if self._find_session is not None else None
            if person is None:
                await _send_to_login(scope, send)
                return "refused"
            if not rule.admits(person):
                there = " for all scenarios" if rule.where is Where.ALL else " in any scenario"
                what = f"{person.name} does not have the role {rule.role}{there}"
                await _refuse_person(send, scope, what, person)
                return "refused"
        if rule.caller is Caller.PERSON:
            authorization = _authorization(scope)
            # A browser sends a password that it was once given for /docs with every request, also one that another
            # site makes it send: only pages and git take a token as a password.
            is_taken = rule.is_page or authorization[:7].lower() == "bearer "
            identity = self._access.identify_header(authorization) if is_taken else None
            if identity is None:
                challenge = b'Basic realm="walle", charset="UTF-8"' if rule.is_page else b"Bearer"
                what = "this needs a valid token: send the header Authorization: Bearer TOKEN"
                headers = [(b"www-authenticate", challenge)]
                await _refuse(send, 401, what, headers, is_page=rule.is_page)
                return "refused"
            if not rule.admits(identity):
                there = " for all scenarios" if rule.where is Where.ALL else ""
                what = f"{identity.name} does not have the role {rule.role}{there}"
                await _refuse(send, 403, what, [], is_page=rule.is_page)
                return "refused"
        app = self._business if rule is BUSINESS and self._business is not None else self._app
        if rule.caller is Caller.PERSON:
            is_docs = scope["path"] == "/docs" or scope["path"].startswith("/docs/")
            send = _with_fields(send, (*_FOR_PEOPLE, _UNFRAMED) if is_docs else _FOR_PEOPLE)
        await app(scope, receive, send)
        return rule.duration_class


def _with_fields(send: Send, fields: Sequence[tuple[bytes, bytes]]) -> Send:
    """Return `send` with these header fields in each answer."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *fields]}
        await send(message)

    return sending


def _authorization(scope: Scope) -> str:
    found = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    return found[0].decode("latin-1") if len(found) == 1 else ""  # two headers: others may read the other one


async def _send_to_login(scope: Scope, send: Send) -> None:
    """Lead a browser to the login, from where it comes back; answer a script's request with 401.

    A form is not sent again: the login leads back to the page that had it, and says that nothing was done.
    """
    headers = {name.lower(): value for name, value in scope["headers"]}
    accept = headers.get(b"accept", b"")
    is_form = scope["method"] == "POST" and b"text/html" in accept
    is_script = b"hx-request" in headers or accept == b"text/event-stream"
    if is_script or not (is_form or scope["method"] == "GET"):
        what = "this needs a session, which begins with a login at /dashboard/login"
        return await _refuse(send, 401, what, [(b"hx-refresh", b"true")], is_page=True)
    if is_form:
        host = headers.get(b"host", b"").decode("latin-1")
        came_from = urllib.parse.quote(_own_page(headers.get(b"referer", b"").decode("latin-1"), host), safe="")
        location = f"/dashboard/login?ended=1&next={came_from}".encode("latin-1")
        return await _refuse(
            send, 303, "the session has ended; nothing was done", [(b"location", location)], is_page=True
        )
    query = f"?{scope['query_string'].decode('latin-1')}" if scope.get("query_string") else ""
    came_from = urllib.parse.quote(urllib.parse.quote(scope["path"]) + query, safe="")
    location = f"/dashboard/login?next={came_from}".encode("latin-1")
    return await _refuse(send, 303, "log in first", [(b"location", location)], is_page=True)


async def _refuse_person(send: Send, scope: Scope, what: str, person: Identity) -> None:
    """Refuse a page to a person who is logged in; a browser's answer leads to the login, which takes another token."""
    accept = next((value for name, value in scope["headers"] if name.lower() == b"accept"), b"")
    if scope["method"] != "GET" or b"text/html" not in accept:
        await _refuse(send, 403, what, [], is_page=True)
        return
    is_metrics = person.role(ANY_SCENARIO) >= Role.METRICS
    link = '<p><a href="/dashboard/metrics">To the metrics</a></p>' if is_metrics else ""
    page = _REFUSED.format(what=html.escape(what), link=link).encode()
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(page)).encode()),
        *_FOR_PEOPLE,
        (b"content-security-policy", b"default-src 'none'; base-uri 'none'; frame-ancestors 'none'"),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": page, "more_body": False})


def _own_page(referer: str, host: str) -> str:
    """Return path and query of the page of this host that sent a form, "" for any other."""
    try:
        page = urllib.parse.urlsplit(referer)
    except ValueError:
        return ""
    if page.netloc != host:
        return ""
    return f"{page.path}?{page.query}" if page.query else page.path


async def _refuse(send: Send, status: int, what: str, headers: Sequence[tuple[bytes, bytes]], *, is_page: bool) -> None:
    """Answer with the reason: as text to git and browsers, which show it, and as the API's JSON to others."""
    text = f"{what}\n" if is_page else json.dumps({"error": what, "type": "AccessError"})
    kind = b"text/plain; charset=utf-8" if is_page else b"application/json"
    fields = [
        (b"content-type", kind),
        (b"content-length", str(len(text.encode())).encode()),
        *_FOR_PEOPLE,
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": text.encode(), "more_body": False})
