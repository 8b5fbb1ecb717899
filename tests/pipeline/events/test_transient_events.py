"""Events with arrays: what is recorded of them, what tasks get, the journal's form, and streams of results."""

import asyncio
import pickle
from array import array
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy
import pytest
from hypothesis import HealthCheck, given, settings

from tests.sim.vm_task import write_task
from walle import np
from walle.engine_ext.vm.host import shared_host
from walle.engine_ext.vm.vm import VM
from walle.errors import PipelineError
from walle.pipeline.events.event import Event, EventError
from walle.pipeline.events.event_journal import EventJournal
from walle.pipeline.events.live_source import LivePolicy, LiveSource
from walle.pipeline.events.transient_events import RecordedEvent, TransientEvent, transient
from walle.pipeline.trigger import task_results
from walle.pipeline.trigger.task_queue import QueuedTrigger, Trigger
from walle.pipeline.trigger.task_results import TaskResults

KINDS = st.sampled_from(["uint8", "int16", "float32", "float64", "bool", "int64", "float16"])
ARRAYS = arrays.arrays(KINDS, arrays.array_shapes(max_dims=3, max_side=6, min_side=0), elements=st.just(1))
BIG = st.builds(
    lambda side, value: numpy.full((side, 300, 3), value, "uint8"), st.integers(60, 200), st.integers(0, 255)
)
KEYS = st.text(max_size=6).filter(lambda text: text.isprintable() or text == "")
SIMPLE = (
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | KEYS | st.binary(max_size=9)
)
TREES = st.recursive(
    SIMPLE | ARRAYS | BIG | st.builds(lambda array: array[::-1, ::2], BIG),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=12,
)
CONTENTS = st.dictionaries(KEYS, TREES, max_size=4)


def without_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_arrays(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(without_arrays(item) for item in value)
    return None if isinstance(value, numpy.ndarray) else value


def count(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(count, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(count, value))
    return isinstance(value, numpy.ndarray)


def assert_equal(left: Any, right: Any) -> None:
    if isinstance(right, numpy.ndarray):
        assert isinstance(left, np.ndarray)
        assert numpy.array_equal(numpy.asarray(left), right)
        assert (left.shape, str(left.dtype)) == (right.shape, str(right.dtype))
    elif isinstance(right, dict):
        assert list(left) == list(right)
        for key, item in right.items():
            assert_equal(left[key], item)
    elif isinstance(right, list | tuple):
        assert type(left) is type(right)
        for one, other in zip(left, right, strict=True):
            assert_equal(one, other)
    else:
        assert left == right


@given(CONTENTS)
def test_the_recorded_form_lacks_the_arrays_and_nothing_else(contents: dict[str, Any]) -> None:
    event = Event("frame", "p", 5, contents)
    found = transient(event)
    assert (found is None) == (count(contents) == 0)
    if found is not None:
        assert found.contents is contents
        assert found.recorded == Event("frame", "p", 5, without_arrays(contents))
        assert transient(found) is found
        assert found.recorded.encode()
        copy = pickle.loads(pickle.dumps(Event("frame", "p", 5, {})))
        assert type(copy) is Event


@pytest.mark.asyncio
@pytest.mark.vm_host
async def test_any_nesting_of_arrays_and_plain_data_arrives_equal(tmp_path: Path) -> None:
    vm = VM(write_task(tmp_path, "def echo(x): return x\n"), host=shared_host())
    loop = asyncio.get_running_loop()

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(CONTENTS)
    def check(contents: dict[str, Any]) -> None:
        event = transient(Event("frame", "p", 5, contents))
        sent = event.shared().contents if event is not None else contents
        call = vm.call("echo", sent, deadline=20)
        assert_equal(asyncio.run_coroutine_threadsafe(call, loop).result(20), contents)

    await asyncio.to_thread(check)


@pytest.mark.asyncio
async def test_the_journal_gives_recorded_forms_back_among_others(tmp_path: Path) -> None:
    event = transient(Event("frame", "p", 5, {"image": numpy.zeros((9, 9)), "n": [1, numpy.zeros(3)]}))
    assert isinstance(event, TransientEvent)
    click = Event("click", "p", 6, {"image": None})
    async with EventJournal(tmp_path) as journal:
        journal.append_all([event.recorded, click, event.recorded])
    async with EventJournal(tmp_path) as journal:
        found = [one async for one in journal.replay(0)]
    assert [position for position, _ in found] == [0, 1, 2]
    assert [type(one) for _, one in found] == [RecordedEvent, Event, RecordedEvent]
    assert isinstance(found[0][1], RecordedEvent)
    assert found[0][1].contents == {"image": None, "n": [1, None]}
    assert journal.counts.damaged == 0
    assert journal.first_position == 0  # one file: positions have no gap


def test_frames_are_duplicates_by_their_id_field_alone() -> None:
    frame = transient(Event("frame", "", 5, {"id": 3, "image": numpy.zeros(3)}))
    assert frame is not None
    by_contents, by_id = LiveSource(LivePolicy()), LiveSource(LivePolicy(id_field="id"))
    for source, is_duplicate in ((by_contents, False), (by_id, True)):
        assert source.check(frame.recorded) is None
        source.take(frame.recorded)
        assert (source.check(frame.recorded) is not None) == is_duplicate


def test_scalars_and_bytes_are_no_arrays_and_deep_contents_are_refused() -> None:
    assert transient(Event("a", "", 1, {"x": b"123", "y": numpy.float32(2), "z": numpy.array(3)})) is None
    assert transient(Event("a", "", 1, {"x": object()})) is None  # refused where it is encoded
    deep: Any = numpy.zeros(3)
    for _ in range(200):
        deep = [deep]
    with pytest.raises(EventError, match="nested deeper"):
        transient(Event("a", "", 1, {"x": deep}))


# --- results ----------------------------------------------------------------------------------------------------------


def queued_at(position: int) -> QueuedTrigger:
    return QueuedTrigger(trigger_at(position), 0.0, position, (), {}, 0)


def trigger_at(position: int) -> Trigger:
    return Trigger(Event("frame", "", position + 100, {}), position, (), ())


async def read(stream: task_results.ResultStream, number: int) -> list[Any]:
    async with asyncio.timeout(5):
        return [
            (one.position, one.output if one.failure is None else "failed", one.dropped)
            for one in [await anext(stream) for _ in range(number)]
        ]


@pytest.mark.asyncio
async def test_results_come_in_the_order_of_events_and_a_stream_begins_when_it_is_opened() -> None:
    results = TaskResults()
    results.expect("t", 0)
    first = results.open("t")
    for position in (1, 2, 3):
        results.expect("t", position)
    second = results.open("t")
    other = results.open("u")
    results.expect("t", 4)
    results.drop("t", queued_at(2))
    results.end("t", trigger_at(0), "before", None)
    results.end("t", trigger_at(1), "one", None)
    results.end("t", trigger_at(3), None, PipelineError("no"))
    results.end("t", trigger_at(4), None, None)
    assert await read(first, 4) == [(1, "one", False), (2, None, True), (3, "failed", False), (4, None, False)]
    assert await read(second, 1) == [(4, None, False)]
    results.close()
    for stream in (first, second, other, results.open("t")):
        assert [one async for one in stream] == []


@pytest.mark.asyncio
async def test_a_result_that_is_dropped_removes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_results, "MAX_BYTES", 100_000)
    results = TaskResults()
    with results.open("t") as stream:
        for position in range(4):
            results.expect("t", position)
        for position, size in ((0, 40_000), (2, 50_000), (3, 60_000)):  # 2 and 3 wait for 1, and there is room for one
            results.end("t", trigger_at(position), {"frame": array("B", bytes(size))}, None)
        results.end("t", trigger_at(1), None, None)
    assert [result.position async for result in stream] == [0, 1, 2]  # what was told before the stream was closed
    assert (stream.missed, stream.size_bytes) == (1, 0)


@pytest.mark.asyncio
async def test_a_stream_is_bounded_by_bytes_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_results, "MAX_BYTES", 100_000)
    results = TaskResults()
    with results.open("t") as stream:

        def run(position: int, size: int) -> None:
            results.end("t", trigger_at(position), {"frame": array("B", bytes(size)), "n": [position]}, None)

        for position in range(5):
            results.expect("t", position)
            run(position, 40_000)
        assert stream.missed == 3
        assert 80_000 < stream.size_bytes < 84_000
        assert [record.message for record in caplog.records] == [
            "results of t are removed, since the app does not read them: they have more than 100000 bytes"
        ]
        results.expect("t", 5)
        run(5, 300_000)  # one alone may have more
        assert [(await anext(stream)).position for _ in range(1)] == [5]
        assert (stream.missed, stream.size_bytes) == (5, 0)
        for position in range(6, 10):
            results.expect("t", position)
        for position in range(7, 10):  # runs that wait for the run before them
            run(position, 40_000)
        assert stream.missed == 6
        run(6, 10)
        assert [(await anext(stream)).position for _ in range(3)] == [6, 7, 8]
        assert stream.size_bytes == 0


def test_a_results_memory_is_counted_with_its_containers_and_arrays() -> None:
    for value, least in (([[]] * 1_000, 56_000), ({"k" * 500: "v" * 500}, 1_000), (memoryview(bytes(9_000)), 9_000)):
        assert least <= task_results.memory_bytes(value) <= 2 * least + 1_000


@pytest.mark.asyncio
async def test_an_unread_stream_is_bounded_and_counts_what_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_results, "MAX_RESULTS", 10)
    monkeypatch.setattr(task_results, "_MAX_EXPECTED", 20)
    results = TaskResults()
    with results.open("t") as stream:
        for position in range(50):
            results.expect("t", position)
            results.end("t", trigger_at(position), position, None)
        assert stream.missed == 40
        assert await read(stream, 10) == [(position, position, False) for position in range(40, 50)]
        for position in range(50, 80):  # the first runs long, those behind it are dropped
            results.expect("t", position)
        for position in range(51, 80):
            results.drop("t", queued_at(position))
        results.end("t", trigger_at(50), 50, None)
        assert stream.missed == 40 + 10 + 10  # beyond 20 that were expected, and beyond 10 unread
        assert len(await read(stream, 10)) == 10
    assert [one async for one in stream] == []
    results.expect("t", 99)  # task without a stream
