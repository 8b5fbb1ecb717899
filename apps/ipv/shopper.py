"""A shopper: plays an event stream into a device, and sends the requests that a shop app sends meanwhile.

The requests belong to the app. Walle adds the device's profile as a header, and the device gets the answer's header
with tasks, if it has one (§6, push-then-pull).
"""

import asyncio
import dataclasses
import urllib.parse
from collections.abc import Iterable
from typing import Protocol

import httpx

from walle.base.clock import Clock
from walle.pipeline.events.event import CLICK, PAGE_ENTER, PAGE_EXIT, Event, EventError
from walle.protocol import TASKS_HEADER, TRUST_HEADER

WAITING_REQUESTS = 8  # an app with more open requests makes its user wait
LONGEST_WAIT_S = 1.0  # pauses between sessions last hours


class ShopperDevice(Protocol):
    """The interface to a device that a shopper uses."""

    async def on_event(self, event: Event, position: int) -> object:
        """Take the next event; return when it is ready for another.

        Raises:
            EventError: the event cannot be taken and is skipped.
        """

    def request_headers(self) -> dict[str, str]:
        """Return the headers with which the device rides on a request."""

    async def handle_answer(self, header: str | None, trust: str | None = None) -> object:
        """Act on the tasks and trust headers of an answer."""


@dataclasses.dataclass(slots=True, kw_only=True)
class ShopperCounts:
    """Counts of a shopper. `failed` of the `requests` found no server, or got a status of 500 or more.

    `events` are those that the device processed, `exits` the page exits among them, `refused` those that it refused.
    """

    events: int = 0
    refused: int = 0
    exits: int = 0
    requests: int = 0
    failed: int = 0
    last_position: int | None = None  # position of the last event that the device has processed


class Shopper:
    """A player of `events` (with positions, in order) into `device`: `page_visits` visits, all, or until `stop()`.

    `speed` is the factor by which it is faster than the events' own times, None for as fast as the device allows. A
    wait is at most LONGEST_WAIT_S. Requests are sent in order beside the events; `client` has the shop's base URL.
    Failed requests and refused events are counted; any other error of the device ends the run and is raised.
    """

    def __init__(
        self,
        events: Iterable[tuple[int, Event]],
        device: ShopperDevice,
        client: httpx.AsyncClient,
        clock: Clock,
        *,
        shopper_id: str,
        speed: float | None = None,
        page_visits: int | None = None,
    ) -> None:
        if speed is not None and speed <= 0:
            raise ValueError(f"speed {speed}: must be above 0, or None for as fast as the device takes events")
        if page_visits is not None and page_visits < 1:
            raise ValueError(f"page_visits {page_visits}: must be at least 1, or None for as many as there are")
        self._events = events
        self._device = device
        self._client = client
        self._clock = clock
        self._shopper_id = shopper_id
        self._speed = speed
        self._page_visits = page_visits
        self._stopped = asyncio.Event()
        self.counts = ShopperCounts()

    def stop(self) -> None:
        """Make `run` return after the current event."""
        self._stopped.set()

    async def run(self) -> ShopperCounts:
        """Play, and return the counts when the last request is answered. Cancelled, it leaves nothing running."""
        waiting: asyncio.Queue[httpx.Request | None] = asyncio.Queue(WAITING_REQUESTS)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send_all(waiting))
                await self._play(waiting)
                await waiting.put(None)
        except BaseExceptionGroup as errors:  # the first error of one player and one sender is the one that matters
            raise errors.exceptions[0] from None
        return self.counts

    async def _play(self, waiting: asyncio.Queue[httpx.Request | None]) -> None:
        before_ms: int | None = None
        for position, event in self._events:
            await self._pause(before_ms, event.ts_ms)
            if self._stopped.is_set():
                return
            before_ms = event.ts_ms
            try:
                await self._device.on_event(event, position)
            except EventError:
                self.counts.refused += 1
                continue
            self.counts.events += 1
            self.counts.exits += event.event_id == PAGE_EXIT
            self.counts.last_position = position
            request = self._request(event)
            if request is not None:
                await waiting.put(request)
            if self.counts.exits == self._page_visits:
                return

    async def _pause(self, before_ms: int | None, ts_ms: int) -> None:
        """Sleep until the event is due or `stop()` is called; yield to the event loop in any case."""
        seconds = 0.0
        if before_ms is not None and self._speed is not None:
            seconds = min(LONGEST_WAIT_S, (ts_ms - before_ms) / 1000 / self._speed)
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleep = asyncio.ensure_future(self._clock.sleep(seconds))
        stop = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait((sleep, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            stop.cancel()

    def _request(self, event: Event) -> httpx.Request | None:
        """Return the request that the app sends on this event, if any."""
        contents = event.contents
        item_id = str(contents.get("item_id", ""))
        if event.event_id == PAGE_ENTER:
            if item_id:
                return self._client.build_request("GET", f"/shop/items/{urllib.parse.quote(item_id, safe='')}")
            return self._client.build_request("GET", "/shop/search", params={"q": str(contents.get("category", ""))})
        if event.event_id == CLICK and contents.get("action") == "add_cart":
            line = {"shopper": self._shopper_id, "item_id": item_id}
            return self._client.build_request("POST", "/shop/cart", json=line)
        return None

    async def _send_all(self, waiting: asyncio.Queue[httpx.Request | None]) -> None:
        while (request := await waiting.get()) is not None:
            request.headers.update(self._device.request_headers())
            self.counts.requests += 1
            try:
                response = await self._client.send(request)
            except httpx.HTTPError:
                self.counts.failed += 1
                continue
            self.counts.failed += response.is_server_error  # an item that the shop does not have is an answer
            tasks, trust = response.headers.get(TASKS_HEADER), response.headers.get(TRUST_HEADER)
            if tasks or trust:
                await self._device.handle_answer(tasks, trust)
