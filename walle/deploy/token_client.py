"""HTTP client of a cloud's tokens (`/v1/tokens`, `/v1/whoami`)."""

import urllib.parse
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

import httpx

from walle.deploy.cloud_client import CloudClient, CloudUnreachableError, raise_refusal

_PATH = "/v1/tokens"


class TokenJson(TypedDict):
    """A token, without its secret. Times are in seconds since the epoch."""

    name: str
    roles: dict[str, str]
    branches: dict[str, list[str]]
    expires_s: float | None
    made_s: float | None
    made_by: str
    used_s: NotRequired[float | None]  # not in the answer of `whoami`


class NewTokenJson(TypedDict):
    """A token that was made. `token` is the secret, which the cloud does not keep."""

    name: str
    token: str
    expires_s: float | None


class TokenClient(CloudClient):
    """The tokens of one cloud, within `async with`. All but `whoami` need the role `admin`; errors as there."""

    async def whoami(self) -> TokenJson:
        """Return the token that asks."""
        found: TokenJson = await self._call("GET", "/v1/whoami")
        return found

    async def list_all(self) -> list[TokenJson]:
        """Return the tokens, by name."""
        found: list[TokenJson] = await self._call("GET", _PATH)
        return found

    async def add(
        self,
        name: str,
        roles: Mapping[str, str],
        *,
        branches: Mapping[str, Sequence[str]] | None = None,
        days: float | None = None,
    ) -> NewTokenJson:
        """Make a token; `days` None: it does not expire."""
        kept = {scenario: list(patterns) for scenario, patterns in (branches or {}).items()}
        body = {"name": name, "roles": dict(roles), "branches": kept, "days": days}
        made: NewTokenJson = await self._call("POST", _PATH, body)
        return made

    async def revoke(self, name: str) -> None:
        """Revoke a token; every gateway refuses it within 5 s."""
        try:
            response = await self._http.delete(f"{_PATH}/{urllib.parse.quote(name, safe='')}")
        except httpx.HTTPError as error:
            raise CloudUnreachableError(self.url, str(error) or type(error).__name__) from error
        raise_refusal(response)
