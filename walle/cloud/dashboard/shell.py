"""Common parts of all pages of the dashboard: a request's session, forms that no other site can send, live parts."""

import dataclasses
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from sse_starlette import EventSourceResponse, ServerSentEvent

from walle.access.access import ANY_SCENARIO, Role
from walle.access.errors import AccessError
from walle.base.clock import Clock
from walle.cloud.api.releases import error_status, retry_after_s
from walle.cloud.dashboard.pages import HEADERS, Pages
from walle.cloud.dashboard.sessions import Session, Sessions
from walle.errors import WalleError
from walle.protocol import ProtocolError

NAVIGATION = (
    ("releases", "/dashboard", "Releases"),
    ("devices", "/dashboard/devices", "Devices"),
    ("targeting", "/dashboard/targeting", "Targeting"),
    ("tasks", "/dashboard/tasks", "Tasks"),
    ("features", "/dashboard/features", "Features"),
    ("metrics", "/dashboard/metrics", "Metrics"),
)
TICK_S = 1.0  # interval at which a live part is rendered again
_SAME_SITE = ("", "same-origin", "none")  # values of Sec-Fetch-Site; a client that is not a browser sends ""
_MAX_FIELDS = 50


@dataclasses.dataclass(frozen=True)
class Shell:
    """Pages, sessions and clock of a dashboard."""

    pages: Pages
    sessions: Sessions
    clock: Clock

    def session(self, request: Request) -> Session:
        """Return the session of a request. Raises AccessError: it has ended since the guard looked."""
        session = self.sessions.find(request.headers.get("cookie", ""))
        if session is None:
            raise AccessError(401, "your session has ended; log in again")
        return session

    async def form(self, request: Request) -> tuple[Session, Mapping[str, str]]:
        """Return the session and the fields of a form that a page of this session sent.

        Raises:
            AccessError: it is another session's, or another site's.
        """
        session, fields = self.session(request), await read_form(request)
        if not self.sessions.is_own_form(session, fields.get("form_key", "")):
            raise AccessError(403, "this form belongs to another session; go back, load the page again, and repeat it")
        return session, fields

    def page(
        self, template: str, session: Session | None, values: Mapping[str, Any], *, status: int = 200
    ) -> HTMLResponse:
        """Return a page with the navigation of a session; without one, of what a read-only link shows."""
        return self.pages.page(template, {**self._common(session), **values}, status=status)

    def fragment(self, template: str, session: Session | None, values: Mapping[str, Any]) -> str:
        return self.pages.fragment(template, {**self._common(session), **values})

    def _common(self, session: Session | None) -> dict[str, Any]:
        if session is None:
            return {"person": "", "form_key": "", "navigation": ()}
        sees_metrics = session.identity.role(ANY_SCENARIO) >= Role.METRICS
        shown = [one for one in NAVIGATION if one[0] != "metrics" or sees_metrics]
        return {"person": session.identity.name, "form_key": session.form_key, "navigation": shown}

    def live(
        self,
        render: Callable[[], Awaitable[str]],
        *,
        may_go_on: Callable[[], bool],
        wait: Callable[[], Awaitable[object]] | None = None,
    ) -> EventSourceResponse:
        """Answer with server-sent events: the part now, and whenever it is another one, while `may_go_on()`."""

        async def events() -> AsyncIterator[ServerSentEvent]:
            sent = ""
            while may_go_on():
                text = await render()
                if text != sent:
                    yield ServerSentEvent(data=text)
                    sent = text
                if wait is None:
                    await self.clock.sleep(TICK_S)
                else:
                    await wait()

        return EventSourceResponse(events(), headers=HEADERS)

    def may_go_on(self, request: Request, session: Session) -> Callable[[], bool]:
        """Return a check of whether a request's session is valid still, with the roles that it had.

        Where a role has changed, the stream ends; the browser opens another one, which shows what it may show now.
        """
        scenarios = session.identity.readable_scenarios()

        def check() -> bool:
            now = self.sessions.find(request.headers.get("cookie", ""))
            if now is None or now.identity != session.identity:
                return False
            return now.identity.readable_scenarios() == scenarios  # groups of scenarios may have changed

        return check

    def router(self) -> APIRouter:
        """Return a router of pages under /dashboard, whose errors are pages too."""
        shell = self

        class PageRoute(APIRoute):
            def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
                handler = super().get_route_handler()

                async def with_errors(request: Request) -> Response:
                    try:
                        return await handler(request)
                    except (WalleError, ProtocolError) as error:
                        return shell.error(request, error_status(error), str(error), retry_after_s(error))
                    except RequestValidationError as error:
                        text = "; ".join(
                            f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors()
                        )
                        return shell.error(request, 422, text)

                return with_errors

        return APIRouter(prefix="/dashboard", route_class=PageRoute, include_in_schema=False)

    def error(self, request: Request, status: int, text: str, again_s: int | None = None) -> Response:
        """Return a page that says what failed; `again_s` is after how many seconds to try again."""
        session = self.sessions.find(request.headers.get("cookie", ""))
        page = self.page("error.html", session, {"text": text, "status": status, "here": ""}, status=status)
        if again_s is not None:
            page.headers["Retry-After"] = str(again_s)
        return page


async def read_form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form.

    Raises:
        AccessError: a browser says that another site made it send the form.
    """
    if request.headers.get("sec-fetch-site", "") not in _SAME_SITE:
        raise AccessError(403, "another site made your browser send this form; it was refused")
    try:
        text = (await request.body()).decode()
        return dict(urllib.parse.parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"))
    except ValueError as error:
        raise AccessError(422, f"the form cannot be read: {error}") from error
