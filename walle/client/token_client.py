"""HTTP client of a cloud's tokens (`/v1/tokens`, `/v1/whoami`)."""

import urllib.parse
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from walle.client.cloud_client import CloudClient, raise_refusal, unreachable

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
        with self._reaching():
            response = await self._http.delete(f"{_PATH}/{urllib.parse.quote(name, safe='')}")
        raise_refusal(response)


async def fetch_authority(url: str) -> str:
    """Return the certificate authority that a server at `url` says is its own, in PEM: nobody has checked it.

    Raises:
        CloudUnreachableError: there is no answer.
        CloudRefusedError: the answer is an error.
    """
    import httpx

    # What comes is shown to a person, or compared with a fingerprint, before anything else is sent.
    async with httpx.AsyncClient(base_url=url, verify=False, timeout=30.0) as http:  # noqa: S501
        try:
            response = await http.get("/v1/authority")
        except httpx.HTTPError as error:
            raise unreachable(url, error) from error
    raise_refusal(response)
    return response.text
