"""HTTP client with which an author signs versions (`/v1/versions`)."""

import base64
import urllib.parse
from collections.abc import Mapping
from typing import NotRequired, TypedDict

from walle.client.cloud_client import CloudClient


class SigningJson(TypedDict):
    """A version's manifest (`payload`, base64), the public keys of its scenario (id to hex), and those that signed."""

    payload: str
    threshold: int
    keys: dict[str, str]
    signed_by: list[str]
    releases: NotRequired[list[str]]  # those that go on with new signatures


class SignatureClient(CloudClient):
    """The versions of one cloud, within `async with`; errors as there."""

    async def manifest(self, scenario: str, task: str, version: str) -> SigningJson:
        """Return the manifest of a version as the cloud built it."""
        found: SigningJson = await self._call("GET", f"{_path(scenario, task, version)}/manifest")
        return found

    async def add(
        self, scenario: str, task: str, version: str, signatures: Mapping[str, bytes], *, again: bool = False
    ) -> SigningJson:
        """Hand over signatures, key id → bytes; `again` for releases that devices may get already."""
        encoded = {name: base64.b64encode(data).decode() for name, data in signatures.items()}
        body = {"signatures": encoded, "again": again}
        found: SigningJson = await self._call("POST", f"{_path(scenario, task, version)}/signatures", body)
        return found


def _path(*parts: str) -> str:
    return "/v1/versions/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)
