"""Results of a device's tasks for its app: the outcome of each trigger of a task, in the order of its events.

Each trigger gives one result: the output of its run, the run's failure, or that the trigger was dropped because the
task's queue was full or the task was removed. A trigger that is dropped while an earlier one runs is told after it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import sys
from typing import Any, Self

from walle.pipeline.trigger.task_queue import DeferredTrigger, QueuedTrigger, Trigger
from walle.protocol import Failure
from walle.task.format.failure import failure_of

_LOG = logging.getLogger(__name__)

MAX_RESULTS = 1_000  # unread results of a stream; above, the oldest are removed
MAX_BYTES = 64 << 20  # memory for a stream's results, unless one alone has more
_RESULT_BYTES = 500  # size of a result without its output
_ARRAY_BYTES = 200  # size of an array without its elements
_SIMPLE = frozenset({type(None), bool, int, float, str, bytes})
_MAX_EXPECTED = 10_000  # triggers of a stream without a result, and results that wait for an earlier one


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The outcome of one trigger: `output`, None also for a run that returned nothing; or `failure`; or `dropped`.

    `event_id`, `ts_ms` and `position` are those of the event that triggered. A timer has the position of the entry at
    which it was due; `step` is the number of triggers that the task had at this position before. `cpu_s` is the CPU
    time of a run, also of one that failed, in seconds on the thread of the task's VM, None where it is not known. The
    VM says it: what a task could falsify.
    """

    task: str
    event_id: str
    ts_ms: int
    position: int
    output: Any = None
    failure: Failure | None = None
    dropped: bool = False
    cpu_s: float | None = None
    step: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Sized:
    result: TaskResult
    size_bytes: int


class ResultStream:
    """The results of one task, of the triggers since the stream was opened: iterate over it, and close it.

    `missed` counts results that were removed because the app read too slowly: the oldest, beyond MAX_RESULTS or
    MAX_BYTES. The first one is logged too. Results that wait for an earlier run count towards MAX_BYTES; where they
    fill it alone, the next ones are removed. The iteration ends when the stream or its device is closed, after the
    results before that.
    """

    def __init__(self, task: str, results: TaskResults) -> None:
        self.task = task
        self.missed = 0
        self._results = results
        self.size_bytes = 0  # size of the results in memory
        self._waiting_bytes = 0  # size of the results that wait for an earlier one
        self._unread: collections.deque[_Sized] = collections.deque()
        # By position and step, in their order; None: no result yet.
        self._expected: dict[tuple[int, int], _Sized | None] = {}
        self._has_news = asyncio.Event()
        self._is_closed = False

    def close(self) -> None:
        """End the stream. A second call does nothing."""
        self._results.remove(self)
        self._is_closed = True
        self._has_news.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TaskResult:
        while not self._unread:
            if self._is_closed:
                raise StopAsyncIteration
            self._has_news.clear()
            await self._has_news.wait()
        return self._take_oldest()

    def expect(self, position: int, step: int = 0) -> None:
        """Take note of a trigger, which gets its result later."""
        if len(self._expected) >= _MAX_EXPECTED:
            self._miss("they wait for an earlier one")
        else:
            self._expected[position, step] = None

    def put(self, result: TaskResult, size_bytes: int) -> None:
        """Give a trigger its result, which is told when all before it have theirs."""
        expected, place = self._expected, (result.position, result.step)
        if place not in expected:
            return  # the trigger came before the stream, or beyond its bound
        if self._waiting_bytes and self._waiting_bytes + size_bytes > MAX_BYTES:
            del expected[place]
            self._miss(f"they have more than {MAX_BYTES} bytes and wait for an earlier one")
        else:
            while self._unread and self.size_bytes + size_bytes > MAX_BYTES:
                self._take_oldest()
                self._miss(f"they have more than {MAX_BYTES} bytes")
            expected[place] = _Sized(result, size_bytes)
            self.size_bytes += size_bytes
            self._waiting_bytes += size_bytes
        while expected and (first := next(iter(expected.values()))) is not None:
            del expected[first.result.position, first.result.step]
            self._waiting_bytes -= first.size_bytes
            if len(self._unread) == MAX_RESULTS:
                self._take_oldest()
                self._miss(f"they are more than {MAX_RESULTS}")
            self._unread.append(first)
            self._has_news.set()

    def _take_oldest(self) -> TaskResult:
        oldest = self._unread.popleft()
        self.size_bytes -= oldest.size_bytes
        return oldest.result

    def _miss(self, why: str) -> None:
        if not self.missed:
            _LOG.warning("results of %s are removed, since the app does not read them: %s", self.task, why)
        self.missed += 1


class TaskResults:
    """The open streams of results, by task."""

    def __init__(self) -> None:
        self._streams: dict[str, list[ResultStream]] = {}
        self._is_closed = False

    def open(self, task: str) -> ResultStream:
        """Return a stream of the task's results, of triggers from now on."""
        stream = ResultStream(task, self)
        if self._is_closed:
            stream.close()
        else:
            self._streams.setdefault(task, []).append(stream)
        return stream

    def remove(self, stream: ResultStream) -> None:
        """Forget a stream; one that is unknown is not an error."""
        streams = self._streams.get(stream.task, [])
        if stream in streams:
            streams.remove(stream)
        if not streams:
            self._streams.pop(stream.task, None)

    def close(self) -> None:
        """End all streams; those that are opened later have no results."""
        self._is_closed = True
        for stream in [stream for streams in self._streams.values() for stream in streams]:
            stream.close()

    def expect(self, task: str, position: int, step: int = 0) -> None:
        """Take note that the event at this position triggered the task, or a timer that was due before it."""
        for stream in self._streams.get(task, ()):
            stream.expect(position, step)

    def end(
        self, task: str, trigger: Trigger, output: Any, error: Exception | None, *, cpu_s: float | None = None
    ) -> None:
        """Tell the end of a trigger's run."""
        if task in self._streams:
            failure = None if error is None else failure_of(error)
            self._tell(_result(task, trigger, output=output, failure=failure, cpu_s=cpu_s))

    def drop(self, task: str, queued: QueuedTrigger | DeferredTrigger) -> None:
        """Tell that a trigger was dropped."""
        if task in self._streams:
            trigger = queued.trigger if isinstance(queued, QueuedTrigger) else queued
            self._tell(_result(task, trigger, dropped=True))

    def _tell(self, result: TaskResult) -> None:
        size_bytes = memory_bytes(result.output) + _RESULT_BYTES
        if result.failure is not None:
            size_bytes += memory_bytes(dataclasses.astuple(result.failure))
        for stream in self._streams[result.task]:
            stream.put(result, size_bytes)


def memory_bytes(value: object) -> int:
    """Return an upper bound on what plain data takes in memory; objects that are there twice count twice."""
    total_bytes, values = 0, [value]
    while values:
        one = values.pop()
        if isinstance(one, list | tuple | dict) or type(one) in _SIMPLE:
            total_bytes += sys.getsizeof(one)
        if isinstance(one, list | tuple):
            values.extend(one)
        elif isinstance(one, dict):
            values.extend(one.keys())
            values.extend(one.values())
        elif type(one) not in _SIMPLE:
            total_bytes += _ARRAY_BYTES
            with contextlib.suppress(TypeError):  # no array
                total_bytes += memoryview(one).nbytes  # type: ignore[arg-type]
    return total_bytes


def _result(task: str, trigger: Trigger | DeferredTrigger, **outcome: Any) -> TaskResult:
    outcome |= {"position": trigger.position, "step": trigger.step}
    return TaskResult(task=task, event_id=trigger.event_id, ts_ms=trigger.ts_ms, **outcome)
