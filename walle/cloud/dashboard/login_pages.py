"""Login and logout at the dashboard, and its static files."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from walle.access.audit import Audit
from walle.access.ended_sessions import SESSION_S
from walle.access.errors import AccessError
from walle.cloud.api.releases import error_status
from walle.cloud.dashboard.pages import HEADERS
from walle.cloud.dashboard.record_quota import RecordQuota
from walle.cloud.dashboard.sessions import COOKIE, LOGIN_COOKIE, LOGIN_S
from walle.cloud.dashboard.shell import Shell, read_form
from walle.errors import ConfigError
from walle.store.disk_space import DiskFullError

_HOME = "/dashboard"
_LOGIN = f"{_HOME}/login"
_ENDED = "Your session has ended; nothing was done. Log in to go back to the page, and do it there again."
_OLD_FORM = (
    "This form was made for another browser, or is older than an hour; nothing was done. Log in with this one;"
    " your browser must accept cookies of this host."
)


def login_router(shell: Shell, log: Audit, quota: RecordQuota) -> APIRouter:
    """Return the routes of login, logout and static files. A login is in the audit log, and counts in `quota`."""
    router = shell.router()

    @router.get("/static/{name}")
    async def static(name: str) -> Response:
        file = shell.pages.static.get(name)
        if file is None:
            raise AccessError(404, "this path does not exist")
        return file.response()

    @router.get("/login")
    async def login_page(
        request: Request,
        came_from: Annotated[str, Query(alias="next", max_length=2000)] = "",
        *,
        ended: bool = False,
        again: bool = False,
    ) -> Response:
        session = shell.sessions.find(request.headers.get("cookie", ""))
        if session is not None and not again:
            return _lead(came_from)
        text = _ENDED if ended else f"You are logged in as {session.identity.name}." if session is not None else ""
        return _login_form(shell, request, came_from, text, 200)

    @router.post("/login")
    async def login(request: Request) -> Response:
        fields = await read_form(request)
        came_from = fields.get("next", "")
        if not shell.sessions.is_own_login(request.headers.get("cookie", ""), fields.get("form_key", "")):
            return _login_form(shell, request, came_from, _OLD_FORM, 403)
        begun = shell.sessions.begin(fields.get("token", "").strip())
        if begun is None:
            text = "This token is not accepted: it is unknown, revoked or has expired."
            return _login_form(shell, request, came_from, text, 401)
        session, cookie = begun
        quota.take(session.identity.name)
        await log.record("dashboard.login", who=session.identity.name, must=False)
        answer = _lead(came_from)
        answer.set_cookie(COOKIE, cookie, max_age=int(SESSION_S), path=_HOME, **_kind(request))
        answer.delete_cookie(LOGIN_COOKIE, path=_LOGIN, **_kind(request))
        return answer

    @router.post("/logout")
    async def logout(request: Request) -> Response:
        session, _ = await shell.form(request)
        answer: Response
        try:
            await asyncio.to_thread(shell.sessions.end, session)
            answer = RedirectResponse(_LOGIN, 303, headers=HEADERS)
        except (DiskFullError, ConfigError) as error:
            text = f"You are logged out here. A copy of your session may be valid until it expires: {error}"
            answer = shell.error(request, error_status(error), text)
        answer.delete_cookie(COOKIE, path=_HOME, **_kind(request))
        return answer

    return router


def _login_form(shell: Shell, request: Request, came_from: str, text: str, status: int) -> Response:
    """Return the page with the form of the login, which only the browser that gets it can send."""
    form_key, cookie = shell.sessions.login_form(request.headers.get("cookie", ""))
    values = {"came_from": _inside(came_from), "text": text, "here": "", "form_key": form_key}
    page = shell.page("login.html", None, values, status=status)
    page.set_cookie(LOGIN_COOKIE, cookie, max_age=int(LOGIN_S), path=_LOGIN, **_kind(request))
    return page


def _kind(request: Request) -> dict[str, Any]:
    """Return the attributes that all cookies have: no script reads them, and no other site has them sent."""
    return {"secure": request.url.scheme == "https", "httponly": True, "samesite": "strict"}


def _inside(address: str) -> str:
    """Return an address of the dashboard, its first page for any other."""
    is_inside = address == _HOME or address.startswith((f"{_HOME}/", f"{_HOME}?"))
    is_login = address.startswith(f"{_HOME}/log")
    return address if is_inside and not is_login and address.isprintable() and "\\" not in address else _HOME


def _lead(came_from: str) -> RedirectResponse:
    return RedirectResponse(_inside(came_from), 303, headers={**HEADERS, "Cache-Control": "no-store"})
