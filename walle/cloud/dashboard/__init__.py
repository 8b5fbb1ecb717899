"""Dashboard of a cloud: pages for people, rendered by the gateway (docs/how-to/dashboard.md)."""

from walle.cloud.dashboard.metric_series import SERIES_S, MetricSeries
from walle.cloud.dashboard.pages import Pages
from walle.cloud.dashboard.router import dashboard_router
from walle.cloud.dashboard.sessions import Sessions, cookie_of
from walle.cloud.dashboard.shell import Shell
from walle.cloud.dashboard.sources import DashboardSources

__all__ = [
    "SERIES_S",
    "DashboardSources",
    "MetricSeries",
    "Pages",
    "Sessions",
    "Shell",
    "cookie_of",
    "dashboard_router",
]
