"""Answers to profiles from another gateway's table: what push gateways and edge gateways are made of.

Directives are signed, and sessions are verified by a public key, so that neither the other gateway's folder nor its
keys are needed.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from walle.access.identity.sessions import SessionRefusedError
from walle.base.asgi import ASGIApp, Receive, Scope, Send
from walle.base.clock import Clock
from walle.client.cloud_client import CloudClient
from walle.cloud.api.release_metrics import push_metrics
from walle.cloud.api.releases import Scrape, WatchedPart
from walle.cloud.edge.sighting_report import SightingReport
from walle.cloud.edge.table_follower import TableFollower
from walle.deploy.push.answerer import Answerer
from walle.deploy.push.middleware import WallePush
from walle.deploy.push.pull_budget import PullBudget, PullRate
from walle.metrics.table import gauge_of
from walle.protocol import DEVICE_HEADER, PROFILE_HEADER
from walle.store.background import in_background

_DEVICE = DEVICE_HEADER.lower().encode()


class FollowedAnswers:
    """An answerer with the table that it follows, the report of who was answered, and their health and metrics.

    `has_uploaded`: the answerer is given the uploaded attributes too. `on_lost` is as in `TableFollower`.
    """

    def __init__(
        self,
        cloud: CloudClient,
        rate: PullRate,
        clock: Clock,
        *,
        trace_ratio: float = 0.0,
        has_uploaded: bool = False,
        on_lost: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.answerer = Answerer(trace_ratio=trace_ratio)
        self.follower = TableFollower(cloud, self.answerer, clock, has_uploaded=has_uploaded, on_lost=on_lost)
        self.answerer.budget = PullBudget(rate, clock, self.follower.size_of) if any(rate) else None
        self._report = SightingReport(cloud, self.answerer, clock)
        self._identify = self._report.noting(self.follower.device_id)
        self._clock = clock
        self.parts: dict[str, WatchedPart] = {"sightings": self._report}
        if self.answerer.budget is not None:
            self.parts["pulls"] = self.answerer.budget
        self.checking_in: ASGIApp = self.pushing(_checked_in(self.follower))

    def pushing(self, app: ASGIApp, *, except_under: str | None = None) -> WallePush:
        """Return an app with the push answer added."""
        return WallePush(app, self.answerer, self._identify, except_under=except_under)

    def knows_device(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request's headers have the session of a device. Raises as `TableFollower.device_id`."""
        session = headers.get(_DEVICE)
        return session is not None and bool(self.follower.device_id(session))

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the table, and report, within the block. The first table is there already (`TableFollower.ask`)."""
        async with (
            in_background("the release table", self.follower.follow, self._clock),
            in_background("the report of devices", self._report.run, self._clock),
        ):
            yield

    def health(self) -> dict[str, Any]:
        """Return the state of the table, which decides whether all is well, and of the parts."""
        return {**self.follower.health(), **{name: part.health() for name, part in self.parts.items()}}

    def metrics(self) -> list[Metric]:
        """Return the metrics of the answers, of the table and of the parts, with the names of a cloud's."""
        late = gauge_of("walle_table_late_seconds", self.follower.late_s)
        own = [*push_metrics(self.answerer), late]
        return [*own, *(metric for part in self.parts.values() for metric in part.metrics())]

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Scrape(self.metrics()))
        return generate_latest(registry)


def _checked_in(follower: TableFollower) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the ASGI signature
        headers = dict(scope["headers"])
        try:
            follower.device_id(headers.get(_DEVICE))
        except SessionRefusedError as error:
            await send_json(send, 401, {"error": str(error)})
            return
        if PROFILE_HEADER.lower().encode() not in headers:
            await send_json(send, 400, {"error": f"{PROFILE_HEADER}: is missing"})
            return
        await send_json(send, 204, None)

    return app


async def send_json(
    send: Send, status: int, plain: Mapping[str, Any] | None, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Answer with an object, None for no body."""
    if plain is None:
        await send({"type": "http.response.start", "status": status, "headers": [*headers]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    else:
        await send_bytes(send, status, json.dumps(plain).encode(), b"application/json", headers)


async def send_bytes(
    send: Send, status: int, body: bytes, content_type: bytes, more: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Answer with a whole body."""
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
