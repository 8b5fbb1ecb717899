"""HTTP client of the devices that a cloud has heard of (`/v1/devices`, `/v1/device-log`)."""

import urllib.parse
from typing import Any, NotRequired, TypedDict

from walle.client.cloud_client import CloudClient

_PATH = "/v1/devices"
_LOG_PATH = "/v1/device-log"


class DeviceTaskJson(TypedDict):
    """A task of a device: see `walle.deploy.fleet.registry.DeviceTask`."""

    task: str
    active: str
    version: str
    state: str
    release: str
    reported_s: float | None
    ok: int
    failed: int


class DeviceJson(TypedDict):
    """A device that the cloud has heard of. Times are in seconds since the epoch.

    `key` is "enrolled", "revoked" or "" for none.
    """

    device_id: str
    app_version: str
    attributes: dict[str, Any]
    first_seen_s: float
    last_seen_s: float
    reported_s: float | None
    tasks: list[DeviceTaskJson]
    key: str
    certificate_until_s: float | None


class DevicePageJson(TypedDict):
    """A page of devices: `after` is for the next one, "" at the end; `total` counts those of all pages.

    Where `is_full`, the cloud had to forget devices: there are more than it lists.
    """

    devices: list[DeviceJson]
    after: str
    total: int
    unlisted: int
    is_full: NotRequired[bool]  # a cloud of before does not say


class DeviceFailureJson(TypedDict):
    """A failure that a device reported, `count` times in one report."""

    number: int
    at_s: float
    task: str
    version: str
    release: str
    kind: str
    error_type: str
    error: str
    place: str
    traceback: str
    log: str
    count: int


class DeviceClient(CloudClient):
    """The devices of one cloud, within `async with`. Every call needs the role `reader`; errors as there."""

    async def page(self, **query: str | float) -> DevicePageJson:
        """Return one page of devices; `query` are the parameters of GET /v1/devices."""
        page: DevicePageJson = await self._call("GET", _PATH, parameters=query)
        return page

    async def get(self, device_id: str) -> DeviceJson:
        """Return one device with its tasks."""
        device: DeviceJson = await self._call("GET", f"{_PATH}/{urllib.parse.quote(device_id, safe='')}")
        return device

    async def failures(
        self, device_id: str, *, task: str = "", before: int = 0, limit: int = 100
    ) -> list[DeviceFailureJson]:
        """Return failures that the device reported, newest first: those of numbers below `before`, 0 for all."""
        parameters: dict[str, str | int | float] = {"task": task, "before": before, "limit": limit}
        path = f"{_LOG_PATH}/{urllib.parse.quote(device_id, safe='')}"
        found: list[DeviceFailureJson] = (await self._call("GET", path, parameters=parameters))["failures"]
        return found
