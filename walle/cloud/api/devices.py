"""Devices over HTTP: those that the cloud has heard of, each with its tasks and failures."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Header, Query
from fastapi import Path as PathParameter

from walle.access.access import Identifier
from walle.access.errors import AccessError
from walle.cloud.api.releases import identify
from walle.deploy.fleet.device_tables import MAX_PAGE
from walle.deploy.fleet.registry import (
    MAX_FAILURES_PAGE,
    AttributeCount,
    DeviceFailure,
    DevicePage,
    DeviceQuery,
    KnownDevice,
    VersionHealth,
)
from walle.protocol import MAX_ID_CHARS, OutcomeKind

type Scenarios = frozenset[str] | None
type KeyStates = Callable[[list[str]], Awaitable[Mapping[str, Mapping[str, Any]]]]
"""`await key_states(ids)` returns `key` (enrolled, revoked) and `certificate_until_s` of those that have a key."""
NO_KEY: Mapping[str, Any] = {"key": "", "certificate_until_s": None}


class Devices(Protocol):
    """Methods of `walle.deploy.monitor.service.MonitorService` that the routes call."""

    async def devices(self, query: DeviceQuery) -> DevicePage: ...
    async def device(self, device_id: str, scenarios: Scenarios) -> KnownDevice: ...
    async def attribute_keys(self) -> list[str]: ...
    async def attribute_counts(self, query: DeviceQuery, key: str) -> list[AttributeCount]: ...
    async def versions(self, task: str) -> list[VersionHealth]: ...
    async def device_failures(
        self, device_id: str, scenarios: Scenarios, task: str, before: int, limit: int
    ) -> list[DeviceFailure]: ...


Text = Annotated[str, Query(max_length=MAX_ID_CHARS)]
Authorization = Annotated[str, Header()]


def registry_router(devices: Devices, access: Identifier, key_states: KeyStates) -> APIRouter:
    """Return /v1/devices, /v1/device-attributes and /v1/device-log.

    A device's id may have slashes and end in any word, so that it is the rest of a path, and nothing follows it.

    The routes need a token with the role `reader`. Devices and tasks of other scenarios than the token's are not shown.
    """
    router = APIRouter(tags=["devices"])

    def readable(authorization: str, group: str = "") -> Scenarios:
        identity = identify(access, authorization)
        scenarios = identity.readable_scenarios()
        if scenarios is not None and not scenarios:
            raise AccessError(403, f"{identity.name} does not have the role reader in any scenario")
        if group:
            members = identity.groups.members(group)
            return members if scenarios is None else members & scenarios
        return scenarios

    @router.get("/v1/devices")
    async def list_devices(
        *,
        after: Text = "",
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        search: Annotated[str, Query(max_length=MAX_ID_CHARS, description="a part of the device's id")] = "",
        app_version: Text = "",
        task: Annotated[str, Query(max_length=MAX_ID_CHARS, description="scenario/task")] = "",
        group: Annotated[str, Query(max_length=MAX_ID_CHARS, description="with tasks of its scenarios")] = "",
        version: Annotated[str, Query(max_length=MAX_ID_CHARS, description="an active version, such as v3")] = "",
        state: Annotated[OutcomeKind | None, Query(description="the latest outcome that a task reported")] = None,
        failing: Annotated[bool, Query(description="only with failed runs of a version that they have")] = False,
        seen_within_s: Annotated[float, Query(ge=0, le=1e9, description="0: at any time")] = 0.0,
        attribute: Annotated[str, Query(max_length=MAX_ID_CHARS, description="an attribute, with `value`")] = "",
        value: Annotated[str, Query(max_length=MAX_ID_CHARS, description="its value as text, such as android")] = "",
        authorization: Authorization = "",
    ) -> dict[str, Any]:
        """List devices that the cloud has heard of, by id. The next page is `after` of the answer, "" at the end."""
        query = DeviceQuery(
            scenarios=readable(authorization, group),
            after=after,
            limit=limit,
            search=search,
            app_version=app_version,
            task=task,
            version=version,
            state=state.value if state is not None else "",
            failing=failing,
            seen_within_s=seen_within_s,
            attribute=attribute,
            value=value,
        )
        found = await devices.devices(query)
        states = await key_states([device.device_id for device in found.devices])
        return {
            "devices": [{**device.to_plain(), **states.get(device.device_id, NO_KEY)} for device in found.devices],
            "after": found.after,
            "total": found.total,
            "unlisted": found.unlisted,
            "is_full": found.is_full,
        }

    @router.get("/v1/device-attributes/{attribute}")
    async def count_values(
        attribute: Annotated[str, PathParameter(max_length=MAX_ID_CHARS, description="an attribute of profiles")],
        *,
        task: Annotated[str, Query(max_length=MAX_ID_CHARS, description="scenario/task")] = "",
        seen_within_s: Annotated[float, Query(ge=0, le=1e9, description="0: at any time")] = 0.0,
        authorization: Authorization = "",
    ) -> list[dict[str, Any]]:
        """Count the devices that have each value of an attribute, those of most devices first, at most 30."""
        query = DeviceQuery(scenarios=readable(authorization), task=task, seen_within_s=seen_within_s)
        counts = await devices.attribute_counts(query, attribute)
        return [{"value": one.value, "devices": one.devices} for one in counts]

    @router.get("/v1/device-log/{device_id:path}")
    async def device_log(
        device_id: str,
        *,
        task: Text = "",
        before: Annotated[int, Query(ge=0, lt=1 << 63)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_FAILURES_PAGE)] = MAX_FAILURES_PAGE,
        authorization: Authorization = "",
    ) -> dict[str, Any]:
        """Show the failures that a device reported, newest first, each with traceback and last log lines.

        A device sends the last lines of failing runs only. The lines of other runs stay in its own log file.
        """
        found = await devices.device_failures(device_id, readable(authorization), task, before, limit)
        return {"failures": [failure.to_plain() for failure in found]}

    @router.get("/v1/devices/{device_id:path}")
    async def show_device(device_id: str, authorization: Authorization = "") -> dict[str, Any]:
        """Show one device: profile, state of its key, tasks with active version, latest outcome and counts of runs."""
        device = await devices.device(device_id, readable(authorization))
        return {**device.to_plain(), **(await key_states([device_id])).get(device_id, NO_KEY)}

    return router
