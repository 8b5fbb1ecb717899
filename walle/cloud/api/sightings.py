"""Sightings: devices that checked in at other gateways, for the list of devices and for betas by chance.

`POST /v1/push-sightings` takes pairs of a device's session and its profile. The session proves the device here as it
did there: who has a token for this route can make up no device.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Header
from prometheus_client.core import Metric
from pydantic import BaseModel, ConfigDict, Field

from walle.deploy.push.answerer import Answerer
from walle.errors import DeployError
from walle.metrics.table import counter

MAX_SIGHTINGS = 500  # limit of one request
_AT_ONCE = 16  # sessions to verify, 0.1 ms each, before other requests have a turn


class SightingsBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    seen: list[tuple[str, str]] = Field(max_length=MAX_SIGHTINGS, description="session and profile of each device")


class SightingsAnswer(BaseModel):
    taken: int
    refused: int = Field(description="sessions that have expired or were revoked, and profiles of other devices")


class Sightings:
    """Intake of what other gateways saw. `identify` returns the device of a session, or raises DeployError."""

    def __init__(self, answerer: Answerer, identify: Callable[[bytes], str]) -> None:
        self.taken = 0
        self.refused = 0
        self._answerer = answerer
        self._identify = identify

    async def take(self, seen: list[tuple[str, str]]) -> SightingsAnswer:
        """Take note of devices."""
        taken = 0
        for number, (session, profile) in enumerate(seen, 1):
            try:
                device_id = self._identify(session.encode(errors="replace"))
            except DeployError:
                continue
            taken += self._answerer.note_elsewhere(device_id, profile.encode(errors="replace"))
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        self.taken += taken
        self.refused += len(seen) - taken
        return SightingsAnswer(taken=taken, refused=len(seen) - taken)

    def health(self) -> dict[str, int | bool]:
        """Return the counts; there is nothing that can fail."""
        return {"ok": True, "taken": self.taken, "refused": self.refused}

    def metrics(self) -> list[Metric]:
        counts = counter("walle_sightings_total")
        counts.add_metric(["taken"], self.taken)
        counts.add_metric(["refused"], self.refused)
        return [counts]


def sightings_router(sightings: Sightings, check: Callable[[str], None]) -> APIRouter:
    """Return /v1/push-sightings. `check` raises where an Authorization header may not use it."""
    router = APIRouter(prefix="/v1", tags=["watching"])

    @router.post("/push-sightings")
    async def push_sightings(body: SightingsBody, authorization: Annotated[str, Header()] = "") -> SightingsAnswer:
        """Take note of devices that checked in at another gateway; each is proved by its session."""
        check(authorization)
        return await sightings.take(body.seen)

    return router
