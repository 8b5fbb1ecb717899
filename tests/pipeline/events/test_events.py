import json
import pickle
import subprocess
import sys
from typing import Any

import pytest

from walle import pipeline
from walle.pipeline.events import event as events
from walle.pipeline.events.event import MAX_EVENT_BYTES, Event, EventError

EVENT = Event("exposure", "item_page", 1_700_000_000_000, {"item_id": "i1", "position": 3})


def test_an_event_comes_back_from_a_json_line_and_from_pickle() -> None:
    assert Event.from_dict(json.loads(json.dumps(EVENT.to_dict()))) == EVENT
    assert pickle.loads(pickle.dumps(EVENT)) == EVENT
    assert hash(Event.from_dict(EVENT.to_dict())) == hash(EVENT)
    assert Event("click", "item_page", EVENT.ts_ms, EVENT.contents) != EVENT


def test_an_event_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        EVENT.page_id = "other"
    with pytest.raises(AttributeError):
        del EVENT.page_id
    with pytest.raises(AttributeError):
        EVENT.extra = 1


def test_a_field_is_an_attribute_and_a_key() -> None:
    (read,) = Event.list_from_json(json.dumps([EVENT.to_dict()]).encode())
    forms: list[Any] = [EVENT, read, events.TriggerEvent(EVENT.to_dict())]
    for event in forms:
        assert dict(event) == {**event} == EVENT.to_dict()
        assert (event["event_id"], event["page_id"], event["ts_ms"], event["contents"]) == (
            event.event_id, event.page_id, event.ts_ms, event.contents,
        )  # fmt: skip
        assert list(event) == ["event_id", "page_id", "ts_ms", "contents"]
        assert "page_id" in event
        assert "item_id" not in event
        assert (event.get("page_id"), event.get("item_id", 5)) == ("item_page", 5)
        with pytest.raises(KeyError, match=r"an event has event_id, page_id, ts_ms, contents, and no item_id; other"):
            event["item_id"]
        with pytest.raises(AttributeError, match="no item_id; other fields are in its contents"):
            event.item_id  # noqa: B018 -- it must raise


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"event_id": ""}, "event_id"),
        ({"event_id": 3}, "event_id"),
        ({"event_id": "x" * 2000}, "event_id"),
        ({"page_id": None}, "page_id"),
        ({"page_id": "x" * 2000}, "page_id"),
        ({"ts_ms": 1.5}, "ts_ms"),
        ({"ts_ms": True}, "ts_ms"),
        ({"ts_ms": -1}, "ts_ms"),
        ({"ts_ms": 2**60}, "ts_ms"),
        ({"contents": [1]}, "contents"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], where: str) -> None:
    with pytest.raises(EventError) as caught:
        Event.from_dict({**EVENT.to_dict(), **change})
    assert caught.value.where == where


def test_errors_name_a_missing_field_and_a_value_that_is_not_an_object() -> None:
    value = EVENT.to_dict()
    del value["ts_ms"]
    with pytest.raises(EventError, match="ts_ms: is missing"):
        Event.from_dict(value)
    with pytest.raises(EventError, match="must be an object, is list"):
        Event.from_dict([1])


def test_an_enormous_event_is_refused_and_one_just_below_is_not() -> None:
    small = Event("click", "p", 1, {"text": "x" * (MAX_EVENT_BYTES - 100)})
    assert MAX_EVENT_BYTES - 100 < small.size_bytes() <= MAX_EVENT_BYTES
    with pytest.raises(EventError, match="more than"):
        Event("click", "p", 1, {"text": "x" * MAX_EVENT_BYTES}).size_bytes()
    with pytest.raises(EventError, match="is of type object, which is not plain data"):
        Event("click", "p", 1, {"thing": object()}).size_bytes()


def test_the_basic_kinds_are_those_of_the_paper() -> None:
    assert events.BASIC_KINDS == ("page_enter", "page_scroll", "exposure", "click", "page_exit")


def test_stream_functions_load_nothing_heavy() -> None:
    heavy = "['asyncio', 'sqlite3', 'dataclasses', 'json', 'msgpack', 'ssl']"
    code = f"import sys, walle.pipeline.stream.events; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_every_public_name_of_this_part_is_found_and_no_other() -> None:
    for name in ("Event", "EventLog", "FeatureStore", "Outbox", "StreamEngine", "TriggerTrie"):
        assert getattr(pipeline, name).__name__ == name
        assert name in dir(pipeline)
    assert set(pipeline._MODULES) == set(pipeline.__all__)
    with pytest.raises(AttributeError):
        _ = pipeline.Nothing


def test_events_from_json_keep_their_bytes_and_decode_contents_when_they_are_read() -> None:
    text = json.dumps([EVENT.to_dict(), {**EVENT.to_dict(), "contents": {"a": [1, {"b": 2.5}]}}]).encode()
    first, second = Event.list_from_json(text)
    assert type(first) is events.EncodedEvent
    with pytest.raises(AttributeError):
        vars(Event)["contents"].__get__(first)  # the slot is empty
    assert first.encode() == EVENT.encode()
    assert first.size_bytes() == EVENT.size_bytes() == len(EVENT.encode())
    assert first == EVENT
    assert hash(first) == hash(EVENT)
    assert pickle.loads(pickle.dumps(first)) == EVENT
    assert second.contents == {"a": [1, {"b": 2.5}]}
    assert second.contents is second.contents
    with pytest.raises(AttributeError):
        first.other  # noqa: B018
    with pytest.raises(EventError, match="ts_ms: of event 0 is missing"):
        Event.list_from_json(b'{"event_id": "x", "page_id": "", "contents": {}}')


@pytest.mark.parametrize("value", [2**64, {1}, memoryview(b"12"), "x" * MAX_EVENT_BYTES, [[]] * 3, {"a": b"1"}, (1, 2)])
def test_the_size_of_an_event_is_that_of_its_encoding(value: object) -> None:
    event = Event("x", "p", 5, {"v": value})
    try:
        size = len(event.encode())
    except EventError as error:
        with pytest.raises(EventError, match=error.what[:20]):
            event.size_bytes()
        return
    assert event.size_bytes() == size


def test_an_event_with_an_integer_that_python_does_not_print_has_a_repr() -> None:
    assert repr(Event("click", "p", 1, {"n": 10**5000})) == "Event('click', 'p', 1, ...)"
    assert repr(Event("click", "p", 1, {"n": 10})) == "Event('click', 'p', 1, {'n': 10})"
