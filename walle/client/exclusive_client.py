"""HTTP client of exclusive files (`/v1/exclusive`)."""

import urllib.parse
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypedDict

from walle.client.cloud_client import CloudClient, raise_refusal


class ExclusiveFileJson(TypedDict):
    """An exclusive file of a device. `size_bytes` is that of the sealed file, `put_s` in seconds since the epoch."""

    device_id: str
    generation: int
    task: str
    name: str
    size_bytes: int
    put_s: float
    put_by: str


class GroupFileJson(TypedDict):
    """An exclusive file of a group. `policy` has `app_version`, and `rule` where there is one."""

    number: int
    task: str
    name: str
    policy: dict[str, Any]
    size_bytes: int
    put_s: float
    put_by: str


class ExclusiveClient(CloudClient):
    """The exclusive files of one cloud, within `async with`; errors as there. `task` is without the scenario."""

    async def put(self, scenario: str, task: str, name: str, device_id: str, data: bytes) -> None:
        """Give a device a file, in place of the one that it has by this name."""
        await self._put(_path(scenario, task, name), {"device": device_id}, data)

    async def put_group(
        self, scenario: str, task: str, name: str, data: bytes, *, rule: str = "", app_version: str = ""
    ) -> None:
        """Give the devices of a rule a file, in place of the one by this name that is for the same rule."""
        await self._put(_path(scenario, task, name), {"rule": rule, "app_version": app_version}, data)

    async def _put(self, path: str, parameters: Mapping[str, str], data: bytes) -> None:
        with self._reaching():
            headers = {"Content-Type": "application/octet-stream"}
            response = await self._http.put(path, params=parameters, content=data, headers=headers)
        raise_refusal(response)

    async def remove(self, scenario: str, task: str, name: str, device_id: str) -> None:
        """Take a file from a device."""
        await self._remove(_path(scenario, task, name), {"device": device_id})

    async def remove_group(self, scenario: str, task: str, name: str, *, rule: str = "", app_version: str = "") -> None:
        """Take a file from the devices of a rule, which is written as it was put."""
        await self._remove(_path(scenario, task, name), {"rule": rule, "app_version": app_version})

    async def _remove(self, path: str, parameters: Mapping[str, str]) -> None:
        with self._reaching():
            response = await self._http.delete(path, params=parameters)
        raise_refusal(response)

    async def groups(self, scenario: str, *, task: str = "") -> list[GroupFileJson]:
        """Return the files of groups of a scenario's tasks, the newest first."""
        found: list[GroupFileJson] = (await self._call("GET", _path(scenario), parameters={"task": task, "limit": 1}))[
            "groups"
        ]
        return found

    async def files(self, scenario: str, *, task: str = "", device_id: str = "") -> AsyncIterator[ExclusiveFileJson]:
        """Yield the files of a scenario's tasks, by device."""
        after = ""
        while True:
            found = await self._call(
                "GET", _path(scenario), parameters={"task": task, "device": device_id, "after": after, "limit": 1000}
            )
            for file in found["files"]:
                yield file
            after = found["after"]
            if not after:
                return


def _path(*parts: str) -> str:
    return "/v1/exclusive/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)
