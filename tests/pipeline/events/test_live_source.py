"""Late, out-of-order, duplicate and clock-jumping events of a live source."""

import contextlib
import random

import pytest

from walle.pipeline.events.event import Event, EventError
from walle.pipeline.events.event_faults import Fault
from walle.pipeline.events.live_source import LatePolicy, LiveCounts, LivePolicy, LiveSource


def fed(source: LiveSource, *times: int, event_id: str = "click") -> list[int]:
    """Feed events at these times; return the times of those that were taken."""
    taken = []
    for ts_ms in times:
        event = Event(event_id, "p", ts_ms, {})
        if source.check(event) is None:
            source.take(event)
            taken.append(ts_ms)
    return taken


def test_an_event_behind_the_bound_is_late_and_one_within_it_is_out_of_order() -> None:
    source = LiveSource(LivePolicy(late_ms=100, jump_ms=1000, late=LatePolicy.DROP))
    assert fed(source, 500, 700, 600, 599, 800, 701, 699) == [500, 700, 600, 800, 701]
    assert source.counts == LiveCounts(late=2, out_of_order=2)
    assert source.check(Event("click", "q", 698, {})) is Fault.OUT_OF_ORDER


@pytest.mark.parametrize("minutes", [0.5, 1.02, 30, 61, 60 * 24 * 365])
def test_one_rule_holds_for_all_late_events(minutes: float) -> None:
    latest_ms = 1_700_000_000_000
    ts_ms = latest_ms - int(minutes * 60_000)
    for late in LatePolicy:
        source = LiveSource(LivePolicy(late=late))
        source.note_clock(latest_ms / 1000, 50.0)
        is_late = minutes > 1
        expected = [latest_ms, ts_ms, latest_ms + 1]
        if is_late and late is LatePolicy.DROP:
            expected.remove(ts_ms)
        assert fed(source, latest_ms, ts_ms, latest_ms + 1) == expected
        assert source.counts == LiveCounts(late=int(is_late), out_of_order=int(not is_late))


def test_events_of_any_time_are_taken_by_default() -> None:
    source = LiveSource(LivePolicy(late_ms=100, jump_ms=1000))
    times = (10_000, 8_999, 9_000, 50_000, 9_100, 9_950, 49_950)  # back; far ahead and back again
    assert fed(source, *times) == list(times)
    assert source.counts == LiveCounts(late=4, out_of_order=1, clock_jumps=1)


def test_a_device_clock_that_is_set_back_makes_no_event_late() -> None:
    source = LiveSource(LivePolicy(late_ms=100, jump_ms=1_000_000, late=LatePolicy.DROP))
    source.note_clock(1_000.0, 50.0)
    assert fed(source, 1_000_000) == [1_000_000]
    source.note_clock(1_000.4, 50.5)  # a slow correction
    assert source.counts.clock_jumps == 0
    source.note_clock(901.0, 51.0)  # 100 s back
    assert fed(source, 901_000, 901_010, 900_000) == [901_000, 901_010]
    assert source.counts == LiveCounts(clock_jumps=1, late=1)


def test_events_at_the_device_clock_are_not_late_after_one_from_the_future() -> None:
    source = LiveSource(LivePolicy(late_ms=100, jump_ms=1_000_000, late=LatePolicy.DROP))
    source.restore(Event("click", "p", 900_000, {}))  # an event of a process whose clock was fast
    source.note_clock(500.0, 50.0)
    assert fed(source, 500_000, 950_000, 500_010, 499_901, 499_899) == [500_000, 950_000, 500_010, 499_901]
    source.note_clock(951.0, 501.0)
    assert fed(source, 949_899, 949_901) == [949_901]
    assert source.counts == LiveCounts(late=2, out_of_order=4)


def test_an_id_that_is_not_plain_data_is_an_error_of_the_event() -> None:
    with pytest.raises(EventError, match=r"contents: contents\.id is of type object, which is not plain data"):
        LiveSource(LivePolicy(id_field="id", drop_equal=True)).check(Event("click", "p", 1, {"id": object()}))


def test_equal_events_in_one_millisecond_are_kept() -> None:
    source = LiveSource(LivePolicy())
    assert fed(source, 1, 1, 1) == [1, 1, 1]
    assert source.counts == LiveCounts()


def test_an_equal_event_is_a_duplicate_within_the_window_where_the_policy_says_so() -> None:
    source = LiveSource(LivePolicy(duplicates=3, drop_equal=True))
    assert fed(source, 1, 1, 2, 2, 1) == [1, 2]
    assert fed(source, 1, event_id="scroll") == [1]
    assert fed(source, 5, 1) == [5, 1]  # the window has moved on
    assert source.counts.duplicates == 3
    assert fed(LiveSource(LivePolicy(duplicates=0, drop_equal=True)), 1, 1) == [1, 1]


def test_an_id_in_the_contents_names_an_event() -> None:
    source = LiveSource(LivePolicy(id_field="uuid"))
    first, again = (Event("click", "p", ts_ms, {"uuid": "a"}) for ts_ms in (1, 2))
    other = Event("click", "p", 1, {"uuid": "b"})
    source.take(first)
    assert source.check(again) is Fault.DUPLICATE
    assert source.check(other) is None
    assert source.check(Event("click", "p", 1, {})) is None


def test_an_event_that_was_not_taken_is_not_a_duplicate_when_it_comes_again() -> None:
    source = LiveSource(LivePolicy(drop_equal=True))
    event = Event("click", "p", 1, {})
    assert [source.check(event), source.check(event)] == [None, None]


@pytest.mark.parametrize("bounds", [{"late_ms": -1}, {"late_ms": 5, "jump_ms": 5}, {"duplicates": 65_537}])
def test_bounds_that_make_no_sense_are_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be 0"):
        LivePolicy(**bounds)  # type: ignore[arg-type]


def test_a_batch_that_is_taken_back_leaves_no_trace() -> None:
    rng = random.Random(7)
    for _ in range(200):
        policy = LivePolicy(
            late_ms=100, jump_ms=1000, late=LatePolicy.DROP, duplicates=rng.randrange(0, 6), drop_equal=True
        )
        source, expected = LiveSource(policy), LiveSource(policy)
        for _ in range(20):
            batch = [rng.randrange(20) * 40 for _ in range(rng.randrange(1, 9))]
            if rng.random() < 0.5:
                with contextlib.suppress(ZeroDivisionError), source.undone_on_error():
                    fed(source, *batch)
                    raise ZeroDivisionError
            else:
                with source.undone_on_error():
                    taken = fed(source, *batch)
                assert taken == fed(expected, *batch)
            assert source.counts == expected.counts
            assert list(source._seen._digests) == list(expected._seen._digests)
