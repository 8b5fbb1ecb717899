"""Feed of the release table: other gateways ask for the next table, and get it as soon as there is one.

`GET /v1/push-table` waits until the table is another than the one that the caller has, for up to WAIT_S. With it goes
what such a gateway needs to know devices by: the public key of sessions, and the revoked set.
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import JSONResponse

from walle.base.device_identity import Revocations
from walle.deploy.push.answerer import Answerer
from walle.deploy.releases.table import ReleaseTable

WAIT_S = 20.0


class TableFeed:
    """The table that an answerer answers from, numbered by its changes.

    `swap` gives the answerer a table, and then those that wait: a version that is held back here until fallback
    inference has loaded it is held back in the others too. `sizes` are the bytes of its versions by their manifests, as
    far as they are known: others have pull budgets too.
    """

    def __init__(self, answerer: Answerer, sizes: Callable[[], Mapping[str, int]] = dict) -> None:
        self._answerer = answerer
        self._sizes = sizes
        self._name = secrets.token_hex(8)  # another process counts from the beginning
        self._count = 0
        self._changed = asyncio.Event()
        self._revocations = Revocations()
        self._session_key = b""
        self.is_closing = False
        self._encoded: tuple[int, bytes] | None = None

    @property
    def number(self) -> str:
        return f"{self._name}.{self._count}"

    def open(self, session_key: bytes, revocations: Revocations) -> None:
        """Serve from now on, with the public key of sessions and what is revoked."""
        self._session_key, self._revocations = session_key, revocations
        self.tell()

    def close(self) -> None:
        """Let nobody wait any longer: the gateway is about to close."""
        self.is_closing = True
        self.tell()

    def swap(self, table: ReleaseTable) -> None:
        self._answerer.swap(table)
        self.tell()

    def tell(self) -> None:
        """Give those that wait the table: it has changed, or the revoked set has."""
        self._count += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def after(self, number: str, wait_s: float) -> bytes | None:
        """Return the feed's present state as JSON, None if it is still `number` after `wait_s` seconds."""
        if number == self.number and not self.is_closing:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                return None
        if self.is_closing:
            return None
        if self._encoded is None or self._encoded[0] != self._count:
            plain = {
                "number": self.number,
                "table": self._answerer.table.to_plain(),
                "sizes": dict(self._sizes()),
                "session_key": self._session_key.hex(),
                "revoked": {"version": self._revocations.version, "lowest": self._revocations.lowest},
            }
            self._encoded = self._count, json.dumps(plain, separators=(",", ":")).encode()
        return self._encoded[1]


def feed_router(feed: TableFeed, check: Callable[[str], None]) -> APIRouter:
    """Return /v1/push-table. `check` raises where an Authorization header may not have it."""
    router = APIRouter(prefix="/v1", tags=["watching"])

    @router.get("/push-table")
    async def push_table(
        number: Annotated[str, Query(max_length=100)] = "",
        wait_s: Annotated[float, Query(ge=0, le=WAIT_S)] = 0.0,
        authorization: Annotated[str, Header()] = "",
    ) -> Response:
        """Return the release table for another gateway; 204 if it is still `number` after `wait_s` seconds."""
        check(authorization)
        data = await feed.after(number, wait_s)
        if feed.is_closing:
            return JSONResponse({"error": "this gateway is closing; try again"}, 503)
        return Response(status_code=204) if data is None else Response(data, media_type="application/json")

    return router
