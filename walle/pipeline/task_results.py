"""Results of a device's tasks for its app: the outcome of each trigger of a task, in the order of its events.

Each trigger gives one result: the output of its run, the run's failure, or that the trigger was dropped because the
task's queue was full or the task was removed. A trigger that is dropped while an earlier one runs is told after it.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from typing import Any, Self

from walle.pipeline.task_queue import Trigger
from walle.protocol import Failure
from walle.task_failure import failure_of

MAX_RESULTS = 1_000  # of a stream that are not read yet; beyond it the oldest are removed
_MAX_EXPECTED = 10_000  # triggers of a stream without a result, and results that wait for an earlier one


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The outcome of one trigger: `output`, None also for a run that returned nothing; or `failure`; or `dropped`.

    `event_id`, `ts_ms` and `position` are those of the event that triggered. `cpu_s` is the CPU time of a run that
    returned, in seconds on the thread of the task's VM, None where it is not known. The VM says it: what a task could
    falsify.
    """

    task: str
    event_id: str
    ts_ms: int
    position: int
    output: Any = None
    failure: Failure | None = None
    dropped: bool = False
    cpu_s: float | None = None


class ResultStream:
    """The results of one task, of the triggers since the stream was opened: iterate over it, and close it.

    `missed` counts results that were removed because the app read too slowly. The iteration ends when the stream or
    its device is closed, after the results before that.
    """

    def __init__(self, task: str, results: TaskResults) -> None:
        self.task = task
        self.missed = 0
        self._results = results
        self._unread: collections.deque[TaskResult] = collections.deque()
        self._expected: dict[int, TaskResult | None] = {}  # by position, in their order; None: no result yet
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
        return self._unread.popleft()

    def expect(self, position: int) -> None:
        """Take note of a trigger, which gets its result later."""
        if len(self._expected) >= _MAX_EXPECTED:
            self.missed += 1
        else:
            self._expected[position] = None

    def put(self, result: TaskResult) -> None:
        """Give a trigger its result, which is told when all before it have theirs."""
        expected = self._expected
        if result.position not in expected:
            return  # of a trigger before the stream, or beyond its bound
        expected[result.position] = result
        while expected and (first := next(iter(expected.values()))) is not None:
            del expected[first.position]
            if len(self._unread) == MAX_RESULTS:
                self._unread.popleft()
                self.missed += 1
            self._unread.append(first)
            self._has_news.set()


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

    def expect(self, task: str, trigger: Trigger) -> None:
        """Take note that a trigger is queued."""
        for stream in self._streams.get(task, ()):
            stream.expect(trigger.position)

    def end(
        self, task: str, trigger: Trigger, output: Any, error: Exception | None, *, cpu_s: float | None = None
    ) -> None:
        """Tell the end of a trigger's run."""
        if task in self._streams:
            failure = None if error is None else failure_of(error)
            self._tell(_result(task, trigger, output=output, failure=failure, cpu_s=cpu_s))

    def drop(self, task: str, trigger: Trigger) -> None:
        """Tell that a trigger was dropped."""
        if task in self._streams:
            self._tell(_result(task, trigger, dropped=True))

    def _tell(self, result: TaskResult) -> None:
        for stream in self._streams[result.task]:
            stream.put(result)


def _result(task: str, trigger: Trigger, **outcome: Any) -> TaskResult:
    event = trigger.event
    return TaskResult(task=task, event_id=event.event_id, ts_ms=event.ts_ms, position=trigger.position, **outcome)
