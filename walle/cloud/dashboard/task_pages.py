"""Pages of tasks: their versions in git, and what changed between two of them."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from walle.access.access import Role
from walle.access.errors import AccessError
from walle.cloud.api.releases import check_role
from walle.cloud.dashboard.shell import Shell
from walle.cloud.dashboard.sources import DashboardSources, readable_scenarios
from walle.deploy.releases.query import ReleaseQuery

Version = Annotated[str, Query(pattern="^(v[1-9][0-9]{0,8})?$")]
_SHOWN = 20  # versions of a task on the page of all
_RELEASES = 20


def task_page_router(shell: Shell, sources: DashboardSources) -> APIRouter:
    """Return the routes of tasks, of the scenarios that the caller may read."""
    router = shell.router()
    history = sources.history

    @router.get("/tasks")
    async def list_page(request: Request) -> Response:
        session = shell.session(request)
        readable = await readable_scenarios(sources, session)
        listings = {one: await asyncio.to_thread(history.listing, one) for one in readable}
        return shell.page("tasks.html", session, {"scenarios": listings, "shown": _SHOWN, "here": "tasks"})

    @router.get("/tasks/{scenario}/{task}")
    async def task_page(request: Request, scenario: str, task: str, old: Version = "", new: Version = "") -> Response:
        session = shell.session(request)
        check_role(session.identity, scenario, Role.READER)
        versions = await asyncio.to_thread(history.versions, scenario, task)
        names = [one.version for one in versions]
        if not new:
            new = names[0]
            old = names[1] if len(names) > 1 else ""
        if old == new:
            raise AccessError(422, f"{old} is compared with itself; choose two versions")
        changes = await asyncio.to_thread(history.changes, scenario, task, old, new)
        name = f"{scenario}/{task}"
        releases = await sources.releases.page(ReleaseQuery(task=name, limit=_RELEASES))
        values = {
            "name": name,
            "scenario": scenario,
            "task": task,
            "versions": versions,
            "old": old,
            "new": new,
            "changes": changes,
            "releases": releases.releases,
            "health": {one.version: one for one in await sources.devices.versions(name)},
            "here": "tasks",
        }
        return shell.page("task.html", session, values)

    return router
