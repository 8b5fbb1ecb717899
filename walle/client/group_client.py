"""HTTP client of a cloud's groups of scenarios (`/v1/groups`)."""

import urllib.parse
from typing import TypedDict

from walle.client.cloud_client import CloudClient, raise_refusal

_PATH = "/v1/groups"


class GroupedJson(TypedDict):
    """A scenario with its group, "" for none, and the role of who asks in it."""

    group: str
    scenario: str
    role: str


class MovedJson(TypedDict):
    """A scenario that was put into a group. `was` is the one of before, "" for none."""

    group: str
    scenario: str
    was: str


class GroupClient(CloudClient):
    """The groups of one cloud, within `async with`. Changes need the role `admin`; errors as `CloudClient`."""

    async def list_all(self) -> list[GroupedJson]:
        """Return the scenarios that the token may read, by group."""
        found: list[GroupedJson] = await self._call("GET", _PATH)
        return found

    async def add(self, group: str, scenario: str) -> MovedJson:
        """Put a scenario into a group, out of the one that it is in."""
        moved: MovedJson = await self._call("PUT", _path(group, scenario))
        return moved

    async def remove(self, group: str, scenario: str) -> None:
        """Take a scenario out of a group."""
        with self._reaching():
            response = await self._http.delete(_path(group, scenario))
        raise_refusal(response)


def _path(group: str, scenario: str) -> str:
    return f"{_PATH}/{urllib.parse.quote(group, safe='')}/{urllib.parse.quote(scenario, safe='')}"
