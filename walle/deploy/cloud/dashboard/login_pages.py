"""Login and logout at the dashboard, and its static files."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from walle.deploy.cloud.api import AccessError
from walle.deploy.cloud.audit import Audit
from walle.deploy.cloud.dashboard.pages import HEADERS
from walle.deploy.cloud.dashboard.sessions import COOKIE, SESSION_S
from walle.deploy.cloud.dashboard.shell import Shell, read_form

_HOME = "/dashboard"
_ENDED = "Your session has ended, and nothing was done. Log in to go back to the page, and do it there again."


def login_router(shell: Shell, log: Audit) -> APIRouter:
    """Return the routes of login, logout and static files. A login is in the audit log."""
    router = shell.router()

    @router.get("/static/{name}")
    async def static(name: str) -> Response:
        file = shell.pages.static.get(name)
        if file is None:
            raise AccessError(404, "there is nothing at this path")
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
        return shell.page("login.html", None, {"came_from": _inside(came_from), "text": text, "here": ""})

    @router.post("/login")
    async def login(request: Request) -> Response:
        fields = await read_form(request)
        came_from = _inside(fields.get("next", ""))
        begun = shell.sessions.begin(fields.get("token", "").strip())
        if begun is None:
            text = "This token is not accepted: it is unknown, revoked or has expired."
            return shell.page("login.html", None, {"came_from": came_from, "text": text, "here": ""}, status=401)
        session, cookie = begun
        await log.record("dashboard.login", who=session.identity.name, must=False)
        answer = _lead(came_from)
        answer.set_cookie(
            COOKIE,
            cookie,
            max_age=int(SESSION_S),
            path=_HOME,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    @router.post("/logout")
    async def logout(request: Request) -> Response:
        session, _ = await shell.form(request)
        shell.sessions.end(session)
        answer = RedirectResponse("/dashboard/login", 303, headers=HEADERS)
        answer.delete_cookie(COOKIE, path=_HOME)
        return answer

    return router


def _inside(address: str) -> str:
    """Return an address of the dashboard, its first page for any other."""
    is_inside = address == _HOME or address.startswith((f"{_HOME}/", f"{_HOME}?"))
    is_login = address.startswith(f"{_HOME}/log")
    return address if is_inside and not is_login and address.isprintable() and "\\" not in address else _HOME


def _lead(came_from: str) -> RedirectResponse:
    return RedirectResponse(_inside(came_from), 303, headers={**HEADERS, "Cache-Control": "no-store"})
