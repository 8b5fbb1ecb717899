"""Pages of devices: a list by attribute, task and state, and the story of one."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from walle.access.access import Identity
from walle.access.errors import AccessError
from walle.cloud.api.devices import NO_KEY
from walle.cloud.api.releases import safe_map
from walle.cloud.dashboard.shell import Shell
from walle.cloud.dashboard.sources import DashboardSources
from walle.deploy.fleet.registry import DeviceQuery
from walle.errors import WalleError
from walle.protocol import MAX_ID_CHARS, OutcomeKind

PAGE = 50
_FAILURES = 30
_FEATURES = 20
Text = Annotated[str, Query(max_length=MAX_ID_CHARS)]


def device_page_router(shell: Shell, sources: DashboardSources) -> APIRouter:
    """Return the routes of devices. Devices and tasks of scenarios that the caller may not read are not shown."""
    router = shell.router()
    devices = sources.devices

    @router.get("/devices")
    async def list_page(
        request: Request,
        *,
        after: Text = "",
        search: Text = "",
        app_version: Text = "",
        task: Text = "",
        version: Text = "",
        state: Annotated[str, Query(pattern="^[a-z]{0,20}$")] = "",
        failing: bool = False,
        attribute: Text = "",
        value: Text = "",
        by: Text = "",
    ) -> Response:
        session = shell.session(request)
        given = {
            "search": search,
            "app_version": app_version,
            "task": task,
            "version": version,
            "state": state,
            "attribute": attribute,
            "value": value,
        }
        query = DeviceQuery(
            scenarios=_scenarios(session.identity),
            after=after,
            limit=PAGE,
            search=search,
            app_version=app_version,
            task=task,
            version=version,
            state=state,
            failing=failing,
            attribute=attribute,
            value=value,
        )
        page = await devices.devices(query)
        states = await sources.key_states([one.device_id for one in page.devices])
        rows = [safe_map({**one.to_plain(), **states.get(one.device_id, NO_KEY)}) for one in page.devices]
        ids = [one.device_id for one in page.devices]
        values = {
            "rows": list(zip(ids, rows, strict=True)),
            "page": page,
            "query": {**given, **({"failing": "true"} if failing else {})},
            "kinds": [kind.value for kind in OutcomeKind],
            "keys": ["app_version", *await devices.attribute_keys()],
            "by": by,
            "groups": await devices.attribute_counts(query, by) if by else [],
            "after": after,
            "here": "devices",
        }
        return shell.page("devices.html", session, values)

    @router.get("/device/{device_id:path}")
    async def device_page(
        request: Request, device_id: str, before: Annotated[int, Query(ge=0, lt=1 << 53)] = 0
    ) -> Response:
        session = shell.session(request)
        scenarios = _scenarios(session.identity)
        device = await devices.device(device_id, scenarios)
        states = await sources.key_states([device_id])
        failures = await devices.device_failures(device_id, scenarios, "", before, _FAILURES)
        values = {
            "device_id": device_id,
            "device": safe_map({**device.to_plain(), **states.get(device_id, NO_KEY)}),
            "failures": [one.to_plain() for one in failures],
            "before": failures[-1].number if len(failures) == _FAILURES else 0,
            "connection": await sources.connection(device_id),
            **await _uploads(session.identity, device_id),
            "here": "devices",
        }
        return shell.page("device.html", session, values)

    async def _uploads(identity: Identity, device_id: str) -> dict[str, Any]:
        """Return what came from the device through the tunnel; where the store cannot be read, the reason."""
        try:
            rows, _ = await sources.features.latest(identity, task="", device=device_id, count=_FEATURES)
            return {"features": rows, "losses": await sources.features.losses(device_id), "fault": ""}
        except WalleError as error:
            return {"features": [], "losses": [], "fault": str(error)}

    return router


def _scenarios(identity: Identity) -> frozenset[str] | None:
    scenarios = identity.readable_scenarios()
    if scenarios is not None and not scenarios:
        raise AccessError(403, f"{identity.name} does not have the role reader in any scenario")
    return scenarios
