"""Models that devices of a task share to tune each other's, and no data of them (Mistify §5.2): /v1/tuning.

The models are in this gateway's memory: after a restart devices share them again with their next round.
"""

import asyncio
import re
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response

from walle.adapt.tuning.coordinator import MAX_MODEL_BYTES, MAX_PEERS, SharedModelError, TuningCoordinator
from walle.adapt.tuning.hints import Hints
from walle.base.clock import Clock
from walle.cloud.api.outcomes import session_of
from walle.deploy.git.repo import RepoError, TaskRepos
from walle.deploy.git.slots import Places
from walle.deploy.push.middleware import IdentifyDevice
from walle.errors import ConfigError
from walle.store.threads import StoreThreads

_THREADS = StoreThreads("models for tuning")
_NUMBER = re.compile(r"-?[0-9]{1,3}(\.[0-9]{1,9})?")
_MAX_SUMMARY_CHARS = 4096
_BODIES = 16  # bodies in memory at once, one of a device; with the largest, as much as the coordinator keeps
_BODY_S = 60.0  # limit of a body, which has one of these places meanwhile: the largest needs 0.6 Mbit/s

Degrees = Annotated[float, Query(allow_inf_nan=False)]
Loss = Annotated[float, Query(ge=0, allow_inf_nan=False, description="of the device's data")]
Accuracy = Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)]
Summary = Annotated[str, Query(max_length=_MAX_SUMMARY_CHARS, description="numbers from -1 to 1, with commas between")]
Count = Annotated[int, Query(ge=1, le=MAX_PEERS)]


def tuning_router(
    coordinator: TuningCoordinator, repos: TaskRepos, identify: IdentifyDevice, clock: Clock, *, body_s: float = _BODY_S
) -> APIRouter:
    """Return /v1/tuning/SCENARIO/TASK, which devices call with a session.

    A model that has not come within `body_s` is refused with 408.
    """
    coordinating = StoreThreads("tuning coordinator", 1)  # one thread: hashes and distances would hold up the loop
    bodies = Places(_BODIES, 1)
    router = APIRouter(prefix="/v1/tuning/{scenario}/{task}", tags=["devices"])

    @router.post("")
    async def share(
        scenario: str, task: str, request: Request, loss: Loss, accuracy: Accuracy, latitude: Degrees = 0.0,
        longitude: Degrees = 0.0, time_s: Degrees = 0.0, summary: Summary = "",
    ) -> dict[str, int]:  # fmt: skip
        """Take a device's model of a task, a `.walle` file, instead of the one before. Return {"version"}."""
        device = identify(session_of(request))
        try:
            await _THREADS.run(repos.versions, scenario, task)
        except RepoError:
            raise HTTPException(404, f"unknown task {scenario[:100]}/{task[:100]}") from None
        try:
            hints = Hints(latitude, longitude, time_s, _numbers(summary))
        except ConfigError as error:
            raise SharedModelError(str(error)) from error
        with bodies.taken(device):
            file = await _body(request, body_s)
            version = await coordinating.run(
                coordinator.share, device, f"{scenario}/{task}", file, hints, loss=loss, accuracy=accuracy,
                now_s=clock.time(),
            )  # fmt: skip
        return {"version": version}

    @router.get("/peers")
    async def peers(scenario: str, task: str, request: Request, count: Count) -> dict[str, list[dict[str, object]]]:
        """Return the models of other devices with the nearest hints, {"peers": [{"sha256", "size_bytes"}]}."""
        device = identify(session_of(request))
        of_task = f"{scenario}/{task}"
        found = await coordinating.run(coordinator.peers, device, of_task, count, now_s=clock.time())
        return {"peers": [{"sha256": one.sha256, "size_bytes": len(one.file)} for one in found]}

    @router.get("/peers/{sha256}")
    async def peer(scenario: str, task: str, sha256: str, request: Request) -> Response:
        """Return a model in that list; 404 where its device has shared another one since."""
        device = identify(session_of(request))
        of_task = f"{scenario}/{task}"
        file = await coordinating.run(coordinator.file, device, of_task, sha256, now_s=clock.time())
        if file is None:
            raise HTTPException(404, "the device of this model has shared another one since; list the peers again")
        return Response(file, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})

    return router


def _numbers(text: str) -> tuple[float, ...]:
    parts = text.split(",") if text else []
    if not all(map(_NUMBER.fullmatch, parts)):
        raise SharedModelError("a summary has decimal numbers with commas between")
    return tuple(map(float, parts))


async def _body(request: Request, limit_s: float) -> bytes:
    data = bytearray()
    try:
        async with asyncio.timeout(limit_s) as reading:
            async for chunk in request.stream():
                data += chunk
                if len(data) > MAX_MODEL_BYTES:
                    raise SharedModelError(f"the model is larger than {MAX_MODEL_BYTES} bytes")
    except TimeoutError:
        if not reading.expired():
            raise
        raise HTTPException(408, f"the model did not come within {limit_s:g} s") from None
    return bytes(data)
