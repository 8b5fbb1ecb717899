"""HTTP client of the identities of devices (`/v1/identity`), for administrators."""

from typing import TypedDict

from walle.client.cloud_client import CloudClient

_PATH = "/v1/identity"


class IdentityJson(TypedDict):
    """An enrolled device: see `walle.access.identity.store.IdentityRecord`."""

    device_id: str
    generation: int
    enrolled_s: float
    expires_s: float
    seen_s: float
    revoked_s: float | None
    reason: str


class IdentityClient(CloudClient):
    """The identities of one cloud, within `async with`. Every call needs a token with the role `admin`."""

    async def make_token(self, device_id: str, *, uses: int, life_s: float) -> str:
        """Return an enrolment token for one device, or for `uses` new ones if `device_id` is empty."""
        body = {"device_id": device_id, "uses": uses, "life_s": life_s}
        token: str = (await self._call("POST", f"{_PATH}/tokens", body))["token"]
        return token

    async def revoke(self, device_id: str, reason: str) -> IdentityJson:
        """Revoke the key of a device."""
        revoked: IdentityJson = await self._call("POST", f"{_PATH}/revoke", {"device_id": device_id, "reason": reason})
        return revoked

    async def devices(self, *, after: str = "", limit: int = 100, search: str = "") -> list[IdentityJson]:
        """Return enrolled devices in the order of their ids, after the id `after`."""
        parameters: dict[str, str | int | float] = {"after": after, "limit": limit, "search": search}
        found: list[IdentityJson] = (await self._call("GET", f"{_PATH}/devices", parameters=parameters))["devices"]
        return found
