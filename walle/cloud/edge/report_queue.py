"""Queue of reports of outcomes from an edge gateway to the monitor, several in one call.

A report is answered once the monitor has journalled it. Reports that come within GATHER_S go together; while CALLS
calls are under way, those that come wait for the next one, so that a monitor that is busy gets larger batches, and
fewer. What waits is bounded in number and bytes, also while the monitor is started again: beyond that, reports are
refused with 503 and Retry-After. Devices send them again, and the monitor counts each once, by its id.
"""

import asyncio
import collections
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from prometheus_client.core import Metric

from walle.base.clock import Clock
from walle.cloud.api.interfaces import ReportsPeer
from walle.deploy.monitor.service import ReportsTaken
from walle.errors import DeployError
from walle.metrics.table import counter, gauge_of
from walle.protocol import OutcomeBatch
from walle.store.background import in_background

_LOG = logging.getLogger(__name__)

GATHER_S = 0.01
CALLS = 2  # calls at once: one gathers in the monitor while another is journalled
MAX_WAITING = 8192  # reports, with those of the calls under way
MAX_WAITING_BYTES = 32 << 20
MAX_CALL = 256  # reports, some 20 ms of the monitor's time
MAX_CALL_BYTES = 4 << 20
ANSWER_S = 30.0  # time for a call: the monitor may be started again meanwhile


class ReportsWaitError(DeployError):
    """Reports that this edge gateway cannot pass on now. The device sends them again."""

    status = 503
    retry_after_s = 5


class ReportFailedError(DeployError):
    """A report that the monitor could not count; its log says why."""

    status = 500


class _Waiting(NamedTuple):
    batch: OutcomeBatch
    size_bytes: int
    counted: asyncio.Future[int | None]


class ReportQueue:
    """Reports on their way to `monitor`, within `async with passing_on()`."""

    def __init__(self, monitor: ReportsPeer, clock: Clock) -> None:
        self.results = collections.Counter[str]()
        self.calls = 0
        self._monitor = monitor
        self._clock = clock
        self._queue: collections.deque[_Waiting] = collections.deque()
        self._count = 0  # reports, those of the calls under way included
        self._size_bytes = 0
        self._has_any = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()
        self._error = ""
        self._interval_s = 0  # interval that devices are told, 0 for nothing

    async def take(self, batch: OutcomeBatch, size_bytes: int) -> int | None:
        """Return once a report, of a body of `size_bytes`, counts: what its device is told, as `MonitorService.take`.

        A caller that is cancelled does not call the report back.

        Raises:
            ReportsWaitError: too many wait, or the monitor does not answer.
            ReportFailedError: the monitor cannot count it.
            DeployError: as the monitor's `take_reports`.
        """
        if self._count >= MAX_WAITING or self._size_bytes + size_bytes > MAX_WAITING_BYTES:
            self.results["refused"] += 1
            what = "wait for the monitor, as many as an edge gateway keeps; send this one again"
            raise ReportsWaitError(f"{self._count} reports of {self._size_bytes} bytes {what}")
        self._count += 1
        self._size_bytes += size_bytes
        counted: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(batch, size_bytes, counted))
        self._has_any.set()
        return await counted

    @asynccontextmanager
    async def passing_on(self) -> AsyncIterator[None]:
        """Pass reports on within the block; those that wait at its end are refused."""
        try:
            async with in_background("reports of outcomes", self._pass_on, self._clock):
                yield
        finally:
            calls = [*self._under_way]
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            self._end([*self._queue], ReportsWaitError("this edge gateway is stopping; send the report again"))
            self._queue.clear()

    async def _pass_on(self) -> None:
        while True:
            await self._has_any.wait()
            await self._clock.sleep(GATHER_S)
            while len(self._under_way) >= CALLS:
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            call = asyncio.create_task(self._call(self._next()), name="reports to the monitor")
            self._under_way.add(call)
            call.add_done_callback(self._under_way.discard)

    def _next(self) -> list[_Waiting]:
        """Remove and return the reports of the next call, those first that came first."""
        chosen: list[_Waiting] = []
        size_bytes = 0
        while self._queue and len(chosen) < MAX_CALL:
            size_bytes += self._queue[0].size_bytes
            if chosen and size_bytes > MAX_CALL_BYTES:
                break
            chosen.append(self._queue.popleft())
        if not self._queue:
            self._has_any.clear()
        return chosen

    async def _call(self, chosen: list[_Waiting]) -> None:
        self.calls += 1
        try:
            async with asyncio.timeout(ANSWER_S):
                taken = await self._take([one.batch for one in chosen])
        except TimeoutError:
            self._note_error(f"the monitor has not answered within {ANSWER_S:g} s")
            self._end(chosen, ReportsWaitError(f"{self._error}; send the report again"))
        except asyncio.CancelledError:
            self._end(chosen, ReportsWaitError("this edge gateway is stopping; send the report again"))
            raise
        except DeployError as error:  # such as of a process that is gone
            self._note_error(str(error))
            self._end(chosen, error)
        except Exception as error:  # noqa: BLE001 - of one call: its reports are sent again
            _LOG.exception("reports could not be passed on")
            self._error = repr(error)
            self._end(chosen, ReportFailedError(f"reports could not be passed on to the monitor: {error!r}"))
        else:
            self._error = ""
            for number, one in enumerate(chosen):
                if number in taken.failed:
                    self._end([one], ReportFailedError("the monitor could not count this report"))
                else:
                    self._end([one], None, taken.interval_of(number))
            self._interval_s = taken.interval_s or 0

    async def _take(self, batches: list[OutcomeBatch]) -> ReportsTaken:
        try:
            return await self._monitor.take_reports(batches)
        except AttributeError:  # an older one, in a cloud whose processes are being replaced
            await asyncio.gather(*(self._monitor.take(one) for one in batches))
            return ReportsTaken()

    def _note_error(self, error: str) -> None:
        if not self._error:
            _LOG.warning("reports cannot be passed on: %s", error)
        self._error = error

    def _end(self, ended: list[_Waiting], error: Exception | None, interval_s: int | None = None) -> None:
        if ended:
            self.results["taken" if error is None else "failed"] += len(ended)
        for one in ended:
            self._count -= 1
            self._size_bytes -= one.size_bytes
            if one.counted.done():  # the client has left
                continue
            if error is None:
                one.counted.set_result(interval_s)
            else:
                one.counted.set_exception(error)

    # --- state ---

    def health(self) -> dict[str, Any]:
        """Return the counts, and why the latest call failed; profiles are answered without the monitor."""
        why = {"why": self._error} if self._error else {}
        return {"ok": True, "waiting": self._count, "calls": self.calls, **self.results, **why}

    def metrics(self) -> list[Metric]:
        reports = counter("walle_edge_reports_total")
        for result in ("taken", "failed", "refused"):
            reports.add_metric([result], self.results[result])
        calls = counter("walle_edge_report_calls_total")
        calls.add_metric([], self.calls)
        interval = gauge_of("walle_edge_report_interval_seconds", self._interval_s)
        return [reports, calls, gauge_of("walle_edge_waiting_reports", self._count), interval]
