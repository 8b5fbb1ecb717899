"""Time of a live stream between its events: when the next timer is due by the device's clock (ADR 19).

The time advances from the latest event as the device's clock does. A clock that is set forward cannot be told from a
suspended device: time has passed. One that is set back takes no time away. After a restart, event times are taken for
times of the device's clock, so that the time in between has passed too.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from walle.base.clock import Clock
from walle.pipeline.events.event import MAX_TS_MS, Event
from walle.pipeline.events.event_journal import EventJournalError
from walle.pipeline.events.ticks import Tick
from walle.pipeline.features.store import StoreClosedError
from walle.pipeline.trigger.stream_engine import StreamEngine

_LOG = logging.getLogger(__name__)

# A sleep may not count the time of a suspended device, and a task that starts gives no notice of its timers.
_LONGEST_SLEEP_S = 60.0
_RETRY_S = 60.0  # pause after a tick that could not be recorded
_BEHIND_MS = 1_000  # an event that is further behind the time gets a tick before it
_CLOCK_STEP_S = 1.0  # see live_source.py


class LiveTime:
    """The time of `stream` while its source is live, from the first `note` or `begin` on."""

    def __init__(self, clock: Clock, stream: StreamEngine) -> None:
        self._clock = clock
        self._stream = stream
        self._anchor: tuple[int, float] | None = None  # a time of the stream and of the clock; None: not live
        self._clock_offset_s = 0.0
        self._seen_ms: int | None = None  # time of the stream at the latest `note`
        self._sleeps_until_ms: int | None = None
        self._changed = asyncio.Event()  # there is an earlier timer than the one that `run` sleeps for

    @property
    def now_ms(self) -> int | None:
        """The time of the stream by the clock; None while the source is not live."""
        if self._anchor is None:
            return None
        anchor_ms, anchor_s = self._anchor
        time_s = self._clock.time()
        offset_s = time_s - self._clock.monotonic()
        if offset_s - self._clock_offset_s <= -_CLOCK_STEP_S:  # the clock was set back
            anchor_s += offset_s - self._clock_offset_s
            self._anchor = anchor_ms, anchor_s
        self._clock_offset_s = offset_s
        return min(anchor_ms + max(0, round((time_s - anchor_s) * 1000)), MAX_TS_MS)

    def begin(self) -> None:
        """Go on from the events of an earlier process."""
        stream_ms = self._stream.now_ms
        if stream_ms is not None:
            self._set_anchor(stream_ms, min(stream_ms / 1000, self._clock.time()))
            self._wake()

    def end(self) -> None:
        """Leave the time to the events: they have positions."""
        self._anchor = None

    def ticks_before(self, event: Event) -> list[Tick]:
        """Return the tick that is to be recorded before an event which is behind the time; none if it is not needed."""
        stream_ms = self._stream.now_ms
        if stream_ms is None or not self._stream.time.running or (now_ms := self.now_ms) is None:
            return []
        return [Tick(now_ms)] if now_ms - max(event.ts_ms, stream_ms) >= _BEHIND_MS else []

    def note(self) -> None:
        """Take note that the stream has taken entries."""
        stream_ms = self._stream.now_ms
        if stream_ms is None:
            return
        now_ms, seen_ms = self.now_ms, self._seen_ms
        if now_ms is None or stream_ms > now_ms or (seen_ms is not None and stream_ms < seen_ms):
            self._set_anchor(stream_ms, self._clock.time())
        self._seen_ms = stream_ms
        self._wake()

    async def run(self, tick: Callable[[int], Awaitable[object]]) -> None:
        """Call `tick` with the time whenever a timer is due, until the device is closed."""
        with contextlib.suppress(StoreClosedError):
            while True:
                now_ms, due_ms = self.now_ms, self._stream.next_due_ms
                if now_ms is None or due_ms is None:
                    await self._changed_within(_LONGEST_SLEEP_S, None)
                elif due_ms > now_ms:
                    await self._changed_within(min((due_ms - now_ms) / 1000, _LONGEST_SLEEP_S), due_ms)
                else:
                    try:
                        await tick(now_ms)
                    except EventJournalError as error:
                        _LOG.warning("timers that are due wait: %s", error)
                        await self._clock.sleep(_RETRY_S)

    def _set_anchor(self, stream_ms: int, clock_s: float) -> None:
        self._anchor = stream_ms, clock_s
        self._clock_offset_s = self._clock.time() - self._clock.monotonic()

    def _wake(self) -> None:
        due_ms, until_ms = self._stream.next_due_ms, self._sleeps_until_ms
        if due_ms is not None and (until_ms is None or due_ms < until_ms):
            self._changed.set()

    async def _changed_within(self, seconds: float, until_ms: int | None) -> None:
        """Return after these seconds, or when there is a timer that is due before `until_ms`, None: any timer."""
        self._changed.clear()
        self._sleeps_until_ms = until_ms
        sleep = asyncio.ensure_future(self._clock.sleep(seconds))
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._changed.wait()), sleep]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
