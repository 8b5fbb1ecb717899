"""Page of features: the latest ones, and a live tail of those that come."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from walle.cloud.dashboard.pages import HEADERS
from walle.cloud.dashboard.shell import TICK_S, Shell
from walle.cloud.dashboard.sources import DashboardSources
from walle.protocol import MAX_ID_CHARS

LATEST = 50
_MAX_PAYLOAD_CHARS = 2_000
Text = Annotated[str, Query(max_length=MAX_ID_CHARS)]


def feature_page_router(shell: Shell, sources: DashboardSources) -> APIRouter:
    """Return the routes of features, of the scenarios that the caller may read."""
    router = shell.router()

    @router.get("/features")
    async def page(request: Request, task: Text = "", device: Text = "", version: Text = "") -> Response:
        session = shell.session(request)
        rows, head = await sources.features.latest(
            session.identity, task=task, device=device, version=version, count=LATEST
        )
        values = {
            "rows": [shown_feature(row) for row in rows],
            "head": head,
            "task": task,
            "device": device,
            "version": version,
            "here": "features",
        }
        return shell.page("features.html", session, values)

    @router.get("/features/live")
    async def live(
        request: Request,
        task: Text = "",
        device: Text = "",
        version: Text = "",
        after: Annotated[int, Query(ge=0, lt=1 << 53)] = 0,
    ) -> Response:
        session = shell.session(request)
        last = request.headers.get("last-event-id", "")
        start = int(last) if last.isdecimal() and len(last) < 17 else after
        may_go_on = shell.may_go_on(request, session)

        async def events() -> AsyncIterator[ServerSentEvent]:
            position = start
            while may_go_on():
                rows, position = await sources.features.since(
                    session.identity, task=task, device=device, version=version, after=position
                )
                if rows:
                    values = {"rows": [shown_feature(row) for row in rows]}
                    text = shell.fragment("feature_rows.html", session, values)
                    yield ServerSentEvent(data=text, id=str(position))
                else:
                    await shell.clock.sleep(TICK_S)

        return EventSourceResponse(events(), headers=HEADERS)

    return router


def shown_feature(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a feature with its payload as bounded text."""
    text = row.get("error") or json.dumps(row["payload"], ensure_ascii=False)
    if len(text) > _MAX_PAYLOAD_CHARS:
        text = f"{text[:_MAX_PAYLOAD_CHARS]}… ({len(text):,} characters)"
    return {**row, "text": text}
