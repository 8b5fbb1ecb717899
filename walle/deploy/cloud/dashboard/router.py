"""All routes of the dashboard."""

from fastapi import APIRouter
from fastapi.responses import RedirectResponse

from walle.deploy.cloud.api import Outcomes, Releases
from walle.deploy.cloud.audit import Audit
from walle.deploy.cloud.dashboard.login_pages import login_router
from walle.deploy.cloud.dashboard.release_pages import ReleasePages, release_page_router
from walle.deploy.cloud.dashboard.shell import Shell
from walle.deploy.cloud.device_api import Devices


def dashboard_router(shell: Shell, releases: Releases, outcomes: Outcomes, devices: Devices, log: Audit) -> APIRouter:
    """Return the routes of the dashboard, and that of `/`, which leads to it."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def root() -> RedirectResponse:
        return RedirectResponse("/dashboard", 303)

    pages = ReleasePages(shell, releases, outcomes, devices.versions, log)
    router.include_router(login_router(shell, log))
    router.include_router(release_page_router(shell, pages))
    return router
