"""The event stream: trie, sequences and sizes behind one call, against the sequences and the trie one by one."""

import array
import gc
import random
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.python_sequences import PageSequence, TimeSequence
from tests.pipeline.slow_matcher import Occurrence, SlowMatcher
from walle.base import plain
from walle.engine_ext import _core
from walle.pipeline.events.event import MAX_EVENT_BYTES, PAGE_ENTER, PAGE_EXIT, Event, EventError
from walle.pipeline.trigger.sequences import RecentEvents
from walle.pipeline.trigger.trie import EventStream
from walle.protocol import TriggerCondition


def event(event_id: str, page_id: str = "p", ts_ms: int = 0, **contents: Any) -> Event:
    return Event(event_id, page_id, ts_ms, contents)


@pytest.mark.parametrize("seed", range(8))
def test_one_call_means_what_the_sequences_and_the_slow_matcher_mean(seed: int) -> None:
    rng = random.Random(seed)
    bounds = {"max_events": rng.randint(1, 12), "max_bytes": rng.randint(50, 600)}
    open_bounds = {"max_open": rng.randint(1, 4), "max_bytes": rng.randint(100, 900), "max_span": rng.randint(3, 30)}
    open_bounds["max_span_bytes"] = rng.randint(60, 1500)
    stream = EventStream(
        **bounds,
        max_open=open_bounds["max_open"],
        max_visit_bytes=open_bounds["max_bytes"],
        max_span=open_bounds["max_span"],
        max_span_bytes=open_bounds["max_span_bytes"],
    )
    recent, pages, slow = TimeSequence(**bounds), PageSequence(**open_bounds), SlowMatcher()
    for ids in (["a"], ["page_enter", "a"], ["p1", "*", "page_exit"]):
        for skip in (False, True):
            condition = TriggerCondition.of(ids, skip_till_next=skip, within_ms=15 * skip)
            stream.add(condition, f"{ids} {skip}")
            slow.add(condition, f"{ids} {skip}")
    visits: dict[int, Any] = {}
    position, seen, cut = 0, 0, 0
    views: list[tuple[RecentEvents, list[Event]]] = []
    for step in range(3000):
        position += rng.randint(1, 3)
        one = event(
            rng.choice([PAGE_ENTER, PAGE_EXIT, "a", "b"]),
            rng.choice(["", "p1", "p2"]),
            step,
            x="x" * rng.randint(0, 40),
        )
        size_bytes = one.size_bytes()
        recent.append(position, one, size_bytes)
        expected = pages.feed(position, one, size_bytes)
        if step % 100 == 0:  # a replay restores cut visits too
            restored = tuple(rng.sample(["", "p1", "p2", "p3"], rng.randint(0, 3)))
            stream.restore_cut(restored, position + 5)
            pages.restore_cut(restored, position + 5)
        visit, tasks = stream.feed(position, one)
        assert stream.last_size_bytes == size_bytes
        assert stream.cut_before(position + 1) == pages.cut_before(position + 1)
        assert tasks == slow.feed(Occurrence(one.event_id, one.page_id, one.ts_ms, one.contents))
        assert (visit is None) == (expected is None)
        if visit is not None and expected is not None:
            seen += 1
            found = visit.page_id, visit.position, visit.events, visit.size_bytes, visit.is_cut
            whole = expected.page_id, expected.position, expected.events, expected.size_bytes, expected.is_cut
            assert found == whole
            cut += visit.is_cut
            assert visits.setdefault(visit.position, visit) is visit
            assert all(kept is given for kept, given in zip(visit.events, expected.events, strict=True))
        if step % 10 == 0:
            views = [*views[-20:], (RecentEvents(*stream._snapshot()), list(recent))]
        for view, expected_events in views:  # whatever the sequence has dropped since
            assert list(view) == expected_events
            assert len(view) == len(expected_events)
        assert stream.recent() == list(recent)
        assert stream.recent(2) == list(recent)[-2:]
        assert stream.counters() == {
            "recent_events": len(recent),
            "recent_bytes": recent.size_bytes,
            "dropped": recent.dropped,
            "open_visits": len(pages),
            "visit_bytes": pages.size_bytes,
            "evicted": pages.evicted,
            "unmatched_exits": pages.unmatched_exits,
        }
        oldest = [at for at in (recent.oldest_position, pages.oldest_position) if at is not None]
        if oldest:
            assert stream.needed_from is not None
            assert stream.needed_from <= min(oldest)
    evicted = sum(visit.evicted for visit in visits.values())
    assert evicted == pages.evicted > 0
    assert min(seen - cut, cut) > 100


def test_a_match_that_skips_events_needs_no_more_bytes_than_a_visit_may_span() -> None:
    """The position is that of a mark, of which there are 256 for the bound."""
    stream = EventStream(max_events=1, max_span_bytes=100_000)
    stream.add(TriggerCondition.of(["a", "z"], skip_till_next=True), "t")
    stream.feed(0, event("a", x="x" * 100))
    for position in range(1, 2_000):
        stream.feed(position, event("b"), 1_000)
        needed_from = stream.needed_from
        assert needed_from is not None
        assert max(0, position - 101) <= needed_from <= max(0, position - 98)
    _, tasks = stream.feed(2_000, event("z"))
    assert tasks == ["t"]


def test_a_match_under_way_needs_its_first_event() -> None:
    stream = EventStream(max_bytes=1)
    stream.add(TriggerCondition.of(["a", "b", "c"]), "t")
    needed_from = [stream.needed_from]
    stream.feed(5, event("a"))
    stream.feed(8, event("b"))
    needed_from.append(stream.needed_from)
    stream.feed(9, event("d"))
    needed_from.append(stream.needed_from)
    stream.add(TriggerCondition.of(["a", "c"], skip_till_next=True), "s")
    for position, event_id in ((11, "a"), (12, "d"), (13, "d"), (14, "d")):
        stream.feed(position, event(event_id))
    needed_from.append(stream.needed_from)
    assert stream.feed(15, event("c"))[1] == ["s"]
    needed_from.append(stream.needed_from)
    assert needed_from == [None, 5, None, 11, None]


def test_old_events_and_old_visits_go_by_their_age() -> None:
    stream = EventStream(max_age_ms=10, max_visit_age_ms=20)
    visit, _ = stream.feed(1, event(PAGE_ENTER, ts_ms=0))
    assert visit is not None
    stream.feed(2, event("a", ts_ms=10))
    assert [one.ts_ms for one in stream.recent()] == [0, 10]
    stream.feed(3, event("a", ts_ms=20))
    assert [one.ts_ms for one in stream.recent()] == [10, 20]
    assert (visit.evicted, len(visit.events)) == (False, 3)
    stream.feed(4, event("a", "q", ts_ms=21))
    assert visit.evicted
    last = event(PAGE_EXIT, ts_ms=21)
    cut, tasks = stream.feed(5, last)
    assert cut is not None
    assert (cut.is_cut, cut.events, tasks) == (True, [last], [])
    assert stream.feed(6, last) == (None, [])


def test_a_wrong_event_is_refused_and_not_fed() -> None:
    stream = EventStream()
    stream.add(TriggerCondition.of(["a"]), "t")
    deep: Any = []
    for _ in range(3000):
        deep = [deep]
    for wrong in (
        event("a", x=object()),
        event("a", x=deep),
        event("a", x="x" * MAX_EVENT_BYTES),
        event("a", x=1 << 64),
    ):
        with pytest.raises(EventError):
            stream.feed(1, wrong)
    with pytest.raises(AttributeError):
        stream.feed(1, "a")
    with pytest.raises(ValueError, match="negative"):
        stream.feed(1, event("a"), -1)
    assert stream.recent() == []
    assert stream.feed(1, event("a"), 1 << 40) == (None, ["t"])
    with pytest.raises(ValueError, match="positions must grow"):
        stream.feed(1, event("a"))
    with pytest.raises(ValueError, match="below 1"):
        EventStream(max_open=0)


def test_events_are_released_with_the_stream_and_when_they_are_dropped() -> None:
    class Watched(Event):
        __slots__ = ("__weakref__",)

    stream = EventStream(max_events=2)
    given = [Watched(PAGE_ENTER if index % 4 == 0 else "a", "p", index, {}) for index in range(8)]
    alive = [weakref.ref(one) for one in given]
    for position, one in enumerate(given):
        stream.feed(position, one)
    del given, one
    assert sum(ref() is not None for ref in alive) == 8  # visits are open
    stream.feed(8, event(PAGE_EXIT))
    stream.feed(9, event(PAGE_EXIT))
    assert sum(ref() is not None for ref in alive) == 0
    stream.feed(10, Watched("b", "", 0, {"stream": stream}), 1)
    cycle = weakref.ref(stream.recent()[-1])
    del stream
    gc.collect()
    assert cycle() is None


PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.sampled_from([n + d for b in (5, 7, 8, 15, 16, 31, 32, 62) for n in (2**b, -(2**b)) for d in (-1, 0, 1)]),
        st.floats(),
        st.text(st.characters(codec="utf-8")),
        st.sampled_from([n + d for n in (0, 31, 255, 65535) for d in (0, 1)]).map("é".__mul__),
        st.sampled_from([n + d for n in (0, 255, 65535) for d in (0, 1)]).map(bytes),
    ),
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(st.text(st.characters(codec="utf-8")), inner)
    ),
    max_leaves=30,
)


@given(PLAIN)
def test_the_size_is_that_of_the_encoding(value: Any) -> None:
    assert _core.packed_size(value) == len(plain.encode(value))
    assert _core.packed_size([value] * 16) == len(plain.encode([value] * 16))


def number_of_values(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(number_of_values, value.values()))
    return 1 + sum(map(number_of_values, value)) if isinstance(value, list | tuple) else 1


@given(PLAIN)
def test_values_are_counted_with_those_in_containers(value: Any) -> None:
    assert _core.packed_values(plain.encode(value)) == number_of_values(value)


def test_values_are_counted_up_to_where_the_bytes_end_or_are_damaged() -> None:
    array_ = plain.encode(array.array("f", range(300)))
    for data, values in (
        (b"", 0),
        (array_, 1),
        (array_[:-1], 0),
        (b"\xdd\xff\xff\xff\xff\x90", 2),
        (b"\x92\xc0\xc1\xc0", 2),
    ):
        assert _core.packed_values(data) == values


@pytest.mark.parametrize(
    "value", [object(), 1 << 64, "\ud800", {1, 2}, memoryview(b"x"), [[], object()], {"a": object()}]
)
def test_a_size_that_only_the_encoder_knows_is_left_to_it(value: object) -> None:
    assert _core.packed_size(value) is None
