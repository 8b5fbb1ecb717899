"""Simulated users of the demo's devices: a shopper with generated events, or with the events of a log."""

from collections.abc import Iterator
from typing import Any

import httpx

from apps.ipv.generator import ShoppingEvents, event_bytes
from apps.ipv.shopper import Shopper
from walle.base.clock import SystemClock
from walle.device import Device
from walle.errors import ConfigError
from walle.pipeline.events.event import PAGE_ENTER, PAGE_EXIT, Event
from walle.pipeline.events.event_log import EventLog

_ROUND_GAP_MS = 3_600_000  # pause between two rounds of a log


class ShopperDriver:
    """One user, with counts of events and of the raw bytes of each page visit (compact JSON of its events)."""

    def __init__(self, device: Device, shopper: Shopper, client: httpx.AsyncClient, meter: "_Meter") -> None:
        self._device = device
        self._shopper = shopper
        self._client = client
        self._meter = meter

    async def run(self) -> None:
        try:
            await self._shopper.run()
        finally:
            await self._client.aclose()

    def finish(self) -> None:
        self._shopper.stop()

    def counts(self) -> dict[str, Any]:
        counts = self._shopper.counts
        return {
            "events": counts.events,
            "exits": counts.exits,
            "requests": counts.requests,
            "failed_requests": counts.failed,
            "visits": self._meter.visits,
            "visit_events": self._meter.visit_events,
            "visit_bytes": self._meter.visit_bytes,
        }


class _Meter:
    """A counter between shopper and device that sums the raw events of finished page visits."""

    def __init__(self, device: Device) -> None:
        self.visits = self.visit_events = self.visit_bytes = 0
        self._device = device
        self._open: dict[str, tuple[int, int]] = {}  # page → events and bytes since its enter

    async def on_event(self, event: Event, position: int) -> None:
        size_bytes = event_bytes(event)
        if event.event_id == PAGE_ENTER:
            self._open[event.page_id] = (0, 0)
        if event.page_id in self._open:
            events, total = self._open[event.page_id]
            self._open[event.page_id] = (events + 1, total + size_bytes)
        await self._device.on_event(event, position, can_wait=True)  # a simulated user can
        if event.event_id == PAGE_EXIT and event.page_id in self._open:
            events, total = self._open.pop(event.page_id)
            self.visits += 1
            self.visit_events += events
            self.visit_bytes += total

    def request_headers(self) -> dict[str, str]:
        return self._device.request_headers()

    async def handle_answer(self, header: str | None, trust: str | None = None) -> None:
        await self._device.handle_answer(header, trust)


class LogEvents:
    """The events of some streams of a log, repeated: each round continues the times and positions of the one before.

    With several streams, page ids are prefixed by the stream's id, because users do not share page visits.
    """

    def __init__(self, log: EventLog, streams: list[str]) -> None:
        self._log = log
        self._is_prefixed = len(streams) > 1
        first_ms, last_ms, self._length = 0, 0, 0
        for record in log.records():
            first_ms = first_ms if self._length else record.event.ts_ms
            last_ms, self._length = max(last_ms, record.event.ts_ms), record.position + 1
        if not self._length:
            raise ConfigError(f"event log {log.path}: has no event that can be played")
        self._span_ms = last_ms - first_ms + _ROUND_GAP_MS

    def events_from(self, position: int) -> Iterator[tuple[int, Event]]:
        """Yield (position, event) from `position` on, endlessly."""
        round_, start = divmod(position, self._length)
        while True:
            for record in self._log.records(start):
                event = record.event
                page_id = f"{record.stream}/{event.page_id}" if self._is_prefixed else event.page_id
                ts_ms = event.ts_ms + round_ * self._span_ms
                yield record.position + round_ * self._length, Event(event.event_id, page_id, ts_ms, event.contents)
            round_, start = round_ + 1, 0


def make_driver(device: Device, options: dict[str, Any]) -> ShopperDriver:
    """Return the user of `device`.

    Options: `shop_url`, `seed`, `speed` (times real time, None for as fast as possible), and for the events of a log
    `log`, `mapping`, and `streams`: device id → the log's streams that it plays.
    """
    device_id = device.config.device_id
    client = httpx.AsyncClient(base_url=options["shop_url"], timeout=10.0)
    meter = _Meter(device)
    source: LogEvents | ShoppingEvents
    if options["log"]:
        streams = options["streams"][device_id]
        source = LogEvents(EventLog(options["log"], options["mapping"], streams=frozenset(streams)), streams)
    else:
        source = ShoppingEvents(options["seed"], device_id)
    events = source.events_from(device.resume_from)
    shopper = Shopper(events, meter, client, SystemClock(), shopper_id=device_id, speed=options["speed"])
    return ShopperDriver(device, shopper, client, meter)
