"""HTTP client of uploaded attributes (`/v1/attributes`)."""

import urllib.parse
from collections.abc import AsyncIterator, Iterable
from typing import TypedDict

from walle.client.cloud_client import CloudClient, raise_refusal

_PATH = "/v1/attributes"
_BUILD_S = 900.0  # a table of millions of rows takes a while


class AttributeTableJson(TypedDict):
    """A table of uploaded attributes. `put_s` is in seconds since the epoch, `columns` maps names to types."""

    key: str
    columns: dict[str, str]
    rows: int
    size_bytes: int
    put_s: float
    put_by: str
    version: str


class AttributeTablesJson(TypedDict):
    """The tables; `columns` are all that may be uploaded with their types, `keys` what may have the ids of rows."""

    tables: list[AttributeTableJson]
    columns: dict[str, str]
    keys: list[str]


class AttributeClient(CloudClient):
    """The uploaded attributes of one cloud, within `async with`; errors as there."""

    async def tables(self) -> AttributeTablesJson:
        """Return the tables, and what may be put."""
        found: AttributeTablesJson = await self._call("GET", _PATH)
        return found

    async def put(self, key: str, pieces: Iterable[bytes]) -> AttributeTableJson:
        """Put a table of JSON lines in place of that by this key."""
        import httpx

        async def body() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        with self._reaching():
            timeout = httpx.Timeout(30.0, read=_BUILD_S)
            response = await self._http.put(_table(key), content=body(), timeout=timeout)
        raise_refusal(response)
        table: AttributeTableJson = response.json()
        return table

    async def remove(self, key: str) -> None:
        """Remove the table by this key."""
        with self._reaching():
            response = await self._http.delete(_table(key))
        raise_refusal(response)


def _table(key: str) -> str:
    return f"{_PATH}/{urllib.parse.quote(key, safe='')}"
