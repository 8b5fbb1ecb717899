"""HTTP client of exclusive files (`/v1/exclusive`)."""

import urllib.parse
from collections.abc import AsyncIterator
from typing import TypedDict

from walle.deploy.cloud_client import CloudClient, raise_refusal


class ExclusiveFileJson(TypedDict):
    """An exclusive file of a device. `size_bytes` is that of the sealed file, `put_s` in seconds since the epoch."""

    device_id: str
    generation: int
    task: str
    name: str
    size_bytes: int
    put_s: float
    put_by: str


class ExclusiveClient(CloudClient):
    """The exclusive files of one cloud, within `async with`; errors as there. `task` is without the scenario."""

    async def put(self, scenario: str, task: str, name: str, device_id: str, data: bytes) -> None:
        """Give a device a file, in place of the one that it has by this name."""
        with self._reaching():
            response = await self._http.put(
                _path(scenario, task, name),
                params={"device": device_id},
                content=data,
                headers={"Content-Type": "application/octet-stream"},
            )
        raise_refusal(response)

    async def remove(self, scenario: str, task: str, name: str, device_id: str) -> None:
        """Take a file from a device."""
        with self._reaching():
            response = await self._http.delete(_path(scenario, task, name), params={"device": device_id})
        raise_refusal(response)

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
