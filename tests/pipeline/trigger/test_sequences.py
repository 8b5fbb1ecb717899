import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.python_sequences import PageSequence, TimeSequence
from walle.pipeline.events.event import PAGE_ENTER, PAGE_EXIT, Event


def event(event_id: str, page_id: str = "p") -> Event:
    return Event(event_id, page_id, 0, {})


def test_a_time_sequence_keeps_the_latest_events_within_both_bounds() -> None:
    sequence = TimeSequence(max_events=3, max_bytes=100)
    for position in range(5):
        sequence.append(position, event(f"e{position}"), 10)
    assert [kept.event_id for kept in sequence] == ["e2", "e3", "e4"]
    assert (sequence.oldest_position, sequence.size_bytes, sequence.dropped) == (2, 30, 2)
    sequence.append(5, event("big"), 85)
    assert [kept.event_id for kept in sequence] == ["e4", "big"]
    sequence.append(6, event("bigger"), 101)
    assert len(sequence) == 0
    assert sequence.oldest_position is None
    assert sequence.size_bytes == 0


def test_a_visit_holds_the_events_between_enter_and_exit_of_its_page() -> None:
    pages = PageSequence()
    visit = None
    for position, (kind, page) in enumerate(
        [
            (PAGE_ENTER, "a"),
            ("click", "a"),
            (PAGE_ENTER, "b"),
            ("click", "b"),
            ("click", "a"),
            ("click", "elsewhere"),
            (PAGE_EXIT, "a"),
        ]
    ):
        visit = pages.feed(position, event(kind, page), 1)
    assert visit is not None
    assert [(one.event_id, one.page_id) for one in visit.events] == [
        (PAGE_ENTER, "a"),
        ("click", "a"),
        ("click", "a"),
        (PAGE_EXIT, "a"),
    ]
    assert pages.oldest_position == 2  # b is open still
    assert len(pages) == 1


def test_the_later_visit_of_a_page_open_twice_gets_its_events_and_exit() -> None:
    pages = PageSequence()
    kinds = [PAGE_ENTER, "outer", PAGE_ENTER, "inner", PAGE_EXIT, "outer", PAGE_EXIT]
    visits = [pages.feed(position, event(kind), 1) for position, kind in enumerate(kinds)]
    inner, outer = visits[4], visits[6]
    assert inner is not None
    assert outer is not None
    assert [one.event_id for one in inner.events] == [PAGE_ENTER, "inner", PAGE_EXIT]
    assert [one.event_id for one in outer.events] == [PAGE_ENTER, "outer", "outer", PAGE_EXIT]
    assert pages.oldest_position is None


@pytest.mark.parametrize("bound", [{"max_open": 2}, {"max_bytes": 25}, {"max_span": 2}, {"max_span_bytes": 35}])
def test_a_page_never_closed_is_evicted_and_counted_and_its_visit_is_cut(bound: dict[str, int]) -> None:
    pages = PageSequence(**bound)
    for position, page in enumerate(["a", "b", "c"]):
        pages.feed(position, event(PAGE_ENTER, page), 10)
    pages.feed(3, event("click", "none"), 10)
    assert pages.evicted == 1
    assert pages.oldest_position == 1
    assert pages.cut_before(4) == ("a",)
    for position, kind in ((4, "click"), (5, PAGE_EXIT)):
        visit = pages.feed(position, event(kind, "a"), 1)
        assert visit is not None
        assert (visit.is_cut, [one.event_id for one in visit.events]) == (True, [kind])
    assert pages.feed(6, event(PAGE_EXIT, "a"), 10) is None
    assert "a" not in pages.cut_before(6)
    assert pages.unmatched_exits == 1


def test_pages_of_cut_visits_are_bounded_and_a_replay_restores_them_at_a_position() -> None:
    pages = PageSequence(max_open=3)
    for position in range(100):
        pages.feed(position, event(PAGE_ENTER, f"page {position}"), 10)
    assert pages.cut_before(100) == ("page 94", "page 95", "page 96")
    again = PageSequence(max_open=3)
    again.restore_cut(pages.cut_before(100), 100)
    for position in (98, 99):  # whatever comes before
        assert again.feed(position, event(PAGE_EXIT, "page 94"), 10) is None
    assert again.feed(100, event("click", "page 94"), 10) is not None


@given(st.lists(st.tuples(st.sampled_from([PAGE_ENTER, "click", PAGE_EXIT]), st.sampled_from("abc")), max_size=60))
def test_a_replay_from_the_oldest_position_finds_the_open_visits_again(stream: list[tuple[str, str]]) -> None:
    pages = PageSequence(max_open=3)
    for position, (kind, page) in enumerate(stream):
        pages.feed(position, event(kind, page), 1)
    again = PageSequence(max_open=3)
    start = len(stream) if pages.oldest_position is None else pages.oldest_position
    for position, (kind, page) in enumerate(stream[start:], start):
        again.feed(position, event(kind, page), 1)
    assert again.oldest_position == pages.oldest_position
    assert [(v.position, v.events) for v in again._open.values()] == [
        (v.position, v.events) for v in pages._open.values()
    ]
    assert pages.size_bytes == sum(len(visit.events) for visit in pages._open.values())
    assert len(pages) <= 3
