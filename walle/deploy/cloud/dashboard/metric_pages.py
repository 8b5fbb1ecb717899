"""Page of metrics: whether each part of the gateway works, its numbers, and those of the last hour."""

from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client.core import Metric

from walle.deploy.cloud.dashboard.shell import Shell
from walle.deploy.cloud.dashboard.sources import DashboardSources


def metric_page_router(shell: Shell, sources: DashboardSources) -> APIRouter:
    """Return the routes of metrics, which the table of routes gives to the role `metrics` on all scenarios."""
    router = shell.router()

    def values() -> dict[str, Any]:
        parts = [
            {"name": name, "health": part.health(), "rows": [row for one in part.metrics() for row in rows_of(one)]}
            for name, part in sources.parts().items()
        ]
        return {"parts": parts, "charts": sources.series().charts(), "here": "metrics"}

    @router.get("/metrics")
    async def page(request: Request) -> Response:
        return shell.page("metrics.html", shell.session(request), values())

    @router.get("/metrics/live")
    async def live(request: Request) -> Response:
        session = shell.session(request)

        async def render() -> str:
            return shell.fragment("metric_parts.html", session, values())

        return shell.live(render, may_go_on=shell.may_go_on(request, session))

    return router


def rows_of(metric: Metric) -> list[dict[str, Any]]:
    """Return a metric's samples: words, labels and value."""
    return [
        {
            "words": metric.documentation,
            "labels": ", ".join(sample.labels.values()),
            "value": f"{sample.value:,.10g}",
        }
        for sample in metric.samples
        if not sample.name.endswith("_created")
    ]
