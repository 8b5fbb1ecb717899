"""Dashboard of a cloud: pages for people, rendered by the gateway (docs/how-to/dashboard.md)."""

from walle.deploy.cloud.dashboard.pages import Pages
from walle.deploy.cloud.dashboard.router import dashboard_router
from walle.deploy.cloud.dashboard.sessions import Sessions, cookie_of
from walle.deploy.cloud.dashboard.shell import Shell

__all__ = ["Pages", "Sessions", "Shell", "cookie_of", "dashboard_router"]
