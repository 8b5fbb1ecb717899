"""Page of targeting: whom a policy would reach before it is released, and why a device gets what it gets."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from walle.cloud.api.releases import error_status, safe_map
from walle.cloud.api.targeting import PreviewBody
from walle.cloud.dashboard.shell import Shell
from walle.cloud.dashboard.sources import DashboardSources, readable_scenarios
from walle.deploy.policies.rule import MAX_RULE_CHARS
from walle.errors import WalleError
from walle.protocol import MAX_ID_CHARS

Text = Annotated[str, Query(max_length=MAX_ID_CHARS)]


def targeting_page_router(shell: Shell, sources: DashboardSources) -> APIRouter:
    """Return the route of the page; a rule or a device that is refused is answered on the page, with the reason."""
    router = shell.router()

    @router.get("/targeting")
    async def targeting_page(
        request: Request,
        *,
        scenario: Text = "",
        task: Text = "",
        rule: Annotated[str, Query(max_length=MAX_RULE_CHARS)] = "",
        app_version: Text = "",
        device: Text = "",
        of_task: Text = "",
    ) -> Response:
        session = shell.session(request)
        values: dict[str, Any] = {
            "query": {"scenario": scenario, "task": task, "rule": rule, "app_version": app_version},
            "device": device,
            "of_task": of_task,
            "preview": None,
            "preview_fault": "",
            "explanation": None,
            "explain_fault": "",
            "scenarios": await readable_scenarios(sources, session),
            "here": "targeting",
        }
        status = 200
        if scenario:
            try:
                body = PreviewBody(scenario=scenario, task=task, rule=rule, app_version=app_version)
                values["preview"] = safe_map(await sources.targeting.preview(session.identity, body))
            except WalleError as error:
                values["preview_fault"], status = str(error), error_status(error)
        if device:
            try:
                values["explanation"] = safe_map(await sources.targeting.explain(session.identity, device, of_task))
            except WalleError as error:
                values["explain_fault"], status = str(error), error_status(error)
        return shell.page("targeting.html", session, values, status=status)

    return router
