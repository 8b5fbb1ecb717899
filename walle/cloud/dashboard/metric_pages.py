"""Page of metrics: whether each part of the gateway works, its numbers, and those of the last hour."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client.core import Metric

from walle.cloud.dashboard.pages import size_of, when
from walle.cloud.dashboard.shell import Shell
from walle.cloud.dashboard.sources import DashboardSources

_TITLES = {  # titles of parts whose name says too little; /healthz and /metrics keep the name
    "losses": "lost uploads",
    "inference": "fallback inference",
    "identity": "identities of devices",
    "tokens": "access tokens",
    "delays": "delays of uploads",
    "pulls": "budget of downloads",
    "sightings": "devices seen by further gateways",
}


def metric_page_router(shell: Shell, sources: DashboardSources) -> APIRouter:
    """Return the routes of metrics, which the table of routes gives to the role `metrics` on all scenarios."""
    router = shell.router()

    def values() -> dict[str, Any]:
        parts = [
            {
                "title": _TITLES.get(name, name),
                "health": part.health(),
                "rows": [row for one in part.metrics() for row in rows_of(one)],
            }
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
    """Return a metric's numbers, each with its unit: words, labels, value, and whether the metric `begins` with it.

    A histogram is one number for each of its labels' values: how many there were, p50 and p99.
    """
    values = _distributions(metric) if metric.type == "histogram" else _samples(metric)
    return [
        {"words": metric.documentation, "labels": labels, "value": value, "begins": number == 0}
        for number, (labels, value) in enumerate(values)
    ]


def _samples(metric: Metric) -> Iterator[tuple[str, str]]:
    for sample in metric.samples:
        if not sample.name.endswith("_created"):
            yield ", ".join(sample.labels.values()), _with_unit(metric.name, sample.value)


def _distributions(metric: Metric) -> Iterator[tuple[str, str]]:
    found: dict[str, list[tuple[float, float]]] = {}  # labels → upper bounds of buckets, and how many were within
    for sample in metric.samples:
        if sample.name.endswith("_bucket"):
            labels = ", ".join(value for name, value in sample.labels.items() if name != "le")
            found.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
    for labels, buckets in found.items():
        buckets.sort()
        count = buckets[-1][1]
        text = f"{count:,.10g}"
        if count:
            text += f": {', '.join(_within(metric.name, buckets, *part) for part in (('p50', 0.5), ('p99', 0.99)))}"
        yield labels, text


def _within(name: str, buckets: Sequence[tuple[float, float]], words: str, part: float) -> str:
    bound = next(bound for bound, within in buckets if within >= part * buckets[-1][1])
    if math.isfinite(bound):
        return f"{words} ≤ {_with_unit(name, bound)}"
    return f"{words} > {_with_unit(name, buckets[-2][0])}"


def _with_unit(name: str, value: float) -> str:
    """Return a number of a metric, whose name ends with its unit."""
    match name.removesuffix("_total").rpartition("_")[2]:
        case "seconds" if name.endswith("_timestamp_seconds"):
            return when(value)
        case "seconds":
            return f"{value:,.4g} s"
        case "bytes":
            return size_of(value)
        case "ratio":
            return f"{100 * value:.4g} %"
        case _:
            return f"{value:,.10g}"
