"""All routes of the dashboard."""

from fastapi import APIRouter
from fastapi.responses import RedirectResponse

from walle.access.audit import Audit
from walle.cloud.dashboard.device_pages import device_page_router
from walle.cloud.dashboard.feature_pages import feature_page_router
from walle.cloud.dashboard.login_pages import login_router
from walle.cloud.dashboard.metric_pages import metric_page_router
from walle.cloud.dashboard.record_quota import RecordQuota
from walle.cloud.dashboard.release_pages import ReleasePages, release_page_router
from walle.cloud.dashboard.shell import Shell
from walle.cloud.dashboard.sources import DashboardSources
from walle.cloud.dashboard.targeting_pages import targeting_page_router
from walle.cloud.dashboard.task_pages import task_page_router


def dashboard_router(shell: Shell, sources: DashboardSources, log: Audit) -> APIRouter:
    """Return the routes of the dashboard, and that of `/`, which leads to it."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def root() -> RedirectResponse:
        return RedirectResponse("/dashboard", 303)

    quota = RecordQuota(shell.clock)
    pages = ReleasePages(shell, sources.releases, sources.outcomes, sources.devices.versions, log, quota)
    router.include_router(login_router(shell, log, quota))
    router.include_router(release_page_router(shell, pages))
    for make in (
        device_page_router,
        targeting_page_router,
        task_page_router,
        feature_page_router,
        metric_page_router,
    ):
        router.include_router(make(shell, sources))
    return router
