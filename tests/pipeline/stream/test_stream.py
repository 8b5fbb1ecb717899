import pytest

from walle.pipeline.events.event import Event, EventError
from walle.pipeline.stream.events import Events

ITEMS = [
    Event("page_enter", "item", 100, {}),
    Event("exposure", "item", 150, {"id": 1}),
    Event("exposure", "item", 200, {"id": 2}),
    Event("click", "list", 250, {"id": 2}),
    Event("page_exit", "item", 300, {}),
]
EVENTS = Events(ITEMS)


def test_key_by_returns_the_events_whose_event_or_page_id_is_the_key() -> None:
    assert list(EVENTS.key_by("exposure")) == ITEMS[1:3]
    assert list(EVENTS.key_by("list")) == ITEMS[3:4]
    assert len(EVENTS.key_by("nothing")) == 0


def test_key_by_a_function_groups_in_the_order_of_first_appearance() -> None:
    groups = EVENTS.key_by(lambda event: event.page_id)
    assert {key: list(group) for key, group in groups.items()} == {"item": [*ITEMS[:3], ITEMS[4]], "list": [ITEMS[3]]}
    assert list(groups) == ["item", "list"]


def test_a_time_window_holds_its_start_and_not_its_end() -> None:
    assert list(EVENTS.time_window(150, 250)) == ITEMS[1:3]
    assert len(EVENTS.time_window(150, 150)) == 0
    with pytest.raises(EventError, match="before it starts"):
        EVENTS.time_window(2, 1)


def test_filter_and_map_chain_and_leave_the_source_as_it_is() -> None:
    doubled = EVENTS.filter(lambda event: "id" in event.contents).map(lambda contents: {"id": contents["id"] * 2})
    assert [event.contents["id"] for event in doubled] == [2, 4, 4]
    assert [event.ts_ms for event in doubled] == [150, 200, 250]
    assert list(EVENTS) == ITEMS
    with pytest.raises(EventError, match="contents"):
        EVENTS.map(lambda contents: 1)  # type: ignore[arg-type, return-value]


def test_a_stream_accepts_plain_data_and_is_a_sequence() -> None:
    events = Events(event.to_dict() for event in ITEMS)
    assert events == EVENTS
    assert events[0] == ITEMS[0]
    assert events[-1] == ITEMS[-1]
    assert list(events[1:3]) == ITEMS[1:3]
    assert len(events) == 5
    assert not Events()
    with pytest.raises(EventError, match="contents: is missing"):
        Events([{"event_id": "x", "page_id": "", "ts_ms": 1}])
