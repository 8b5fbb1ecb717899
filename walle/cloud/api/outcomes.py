"""Routes that devices call: reports of outcomes and heartbeats, with a session of the device.

`read_report` is what every gateway does with a report before it counts: `device_router` has it as a route of the
gateway, `ReportApp` as an ASGI app for the edge gateways before it.
"""

import json
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from walle.access.errors import AccessError
from walle.base.asgi import Receive, Scope, Send
from walle.cloud.api.releases import Outcomes, error_answer
from walle.deploy.push.middleware import IdentifyDevice
from walle.errors import WalleError
from walle.protocol import DEVICE_HEADER, PROFILE_HEADER, REPORT_INTERVAL_HEADER, OutcomeBatch, ProtocolError

MAX_OUTCOMES_BYTES = 1 << 20

type OnBatch = Callable[[OutcomeBatch], None]


async def read_report(request: Request, identify: IdentifyDevice) -> tuple[OutcomeBatch, int]:
    """Return a request's report, which is of the device whose session it has, and the bytes of its body.

    Raises:
        ProtocolError: the body is not an `OutcomeBatch`, or is too large.
        AccessError: the report is of another device.
        DeployError: as `identify`, where the session is not valid.
    """
    sender = identify(session_of(request))
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_OUTCOMES_BYTES:
            raise ProtocolError("batch", f"is larger than {MAX_OUTCOMES_BYTES} bytes; send it in parts")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("batch", f"not JSON ({error})") from error
    batch = OutcomeBatch.from_json(value)
    if batch.device_id != sender:
        what = f"the outcomes are of device {batch.device_id[:100]!r}, the session of {sender[:100]!r}"
        raise AccessError(403, f"{what}; a device reports its own outcomes only")
    return batch, len(body)


def device_router(outcomes: Outcomes, identify: IdentifyDevice, on_batch: OnBatch | None = None) -> APIRouter:
    """Return the routes that devices call: /v1/outcomes and /v1/checkin, with a session of the device.

    `on_batch` is called with each report that was taken.
    """
    router = APIRouter(prefix="/v1", tags=["devices"])

    @router.post("/outcomes", status_code=204)
    async def take_outcomes(request: Request) -> Response:
        """Take an `OutcomeBatch` of the device whose session X-Walle-Device is; the same batch again counts once."""
        batch, _ = await read_report(request, identify)
        interval_s = await outcomes.take(batch)
        if on_batch is not None and batch.traces:
            on_batch(batch)
        return _taken(interval_s)

    @router.post("/checkin", status_code=204)
    async def check_in(request: Request) -> None:
        """Answer a heartbeat of a device with a session; `WallePush` around the app adds the push answer."""
        identify(session_of(request))
        if PROFILE_HEADER not in request.headers:
            raise ProtocolError(PROFILE_HEADER, "is missing; a heartbeat is a request with this header and no body")

    return router


class ReportApp:
    """ASGI app that answers /v1/outcomes as `device_router` does. `take` returns once a report of some bytes counts.

    What it returns is what the device is told, as `MonitorService.take`.
    """

    def __init__(
        self,
        take: Callable[[OutcomeBatch, int], Awaitable[int | None]],
        identify: IdentifyDevice,
        on_batch: OnBatch | None = None,
    ) -> None:
        self._take = take
        self._identify = identify
        self._on_batch = on_batch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            batch, size_bytes = await read_report(Request(scope, receive), self._identify)
            interval_s = await self._take(batch, size_bytes)
        except (WalleError, ProtocolError) as error:
            answer: Response = error_answer(error)
        else:
            if self._on_batch is not None and batch.traces:
                self._on_batch(batch)
            answer = _taken(interval_s)
        await answer(scope, receive, send)


def _taken(interval_s: int | None) -> Response:
    headers = None if interval_s is None else {REPORT_INTERVAL_HEADER: str(interval_s)}
    return Response(status_code=204, headers=headers)


def session_of(request: Request) -> bytes | None:
    """Return the session of the device that asks, None without one."""
    session = request.headers.get(DEVICE_HEADER)
    return None if session is None else session.encode("latin-1")
