"""Events whose contents hold arrays, such as a video's frames: they trigger tasks, and no record keeps their arrays.

`transient` splits such an event in two. Tasks get the whole event. The sequences and the event journal get its
*recorded* form, which has None in the place of each array: a replay needs it to match the trigger conditions of later
events as they were matched, and triggers no task by it. The longer history lacks both (ADR 20).

An array is an object with the buffer protocol and one axis or more, as `walle.base.plain` takes it; bytes are not one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from walle.base import plain
from walle.engine_ext import _core
from walle.errors import EngineError
from walle.pipeline.events.event import MAX_CONTENTS_DEPTH, Event, EventError

MAX_ARRAY_BYTES = 64 << 20  # limit for all arrays of one event
SIMPLE_TYPES = frozenset({type(None), bool, int, float, str, bytes})  # types whose values neither are nor hold arrays


class RecordedEvent(Event):
    """An event that had arrays, with None in their places; a replay feeds it and triggers no task by it."""

    __slots__ = ()


class TransientEvent(Event):
    """An event whose contents hold arrays, of `array_bytes` in all, and its recorded form."""

    __slots__ = ("array_bytes", "recorded")
    array_bytes: int
    recorded: RecordedEvent

    def __init__(self, event: Event, recorded: RecordedEvent, array_bytes: int) -> None:
        super().__init__(event.event_id, event.page_id, event.ts_ms, event.contents)
        object.__setattr__(self, "recorded", recorded)
        object.__setattr__(self, "array_bytes", array_bytes)

    def __reduce__(self) -> tuple[type[Event], tuple[str, str, int, Mapping[str, Any]]]:  # type: ignore[override]
        return Event, (self.event_id, self.page_id, self.ts_ms, self.contents)

    def shared(self) -> TransientEvent:
        """Return the event with its large arrays in memory that a VM host reads without a further copy.

        Arrays of `walle.vm.shared_empty`, and views of them, are not copied.
        """
        contents = _replaced(self.contents, "contents", lambda array, _: _core.shared_copy(array))
        event = Event(self.event_id, self.page_id, self.ts_ms, contents)
        return TransientEvent(event, self.recorded, self.array_bytes)


def transient(event: Event) -> TransientEvent | None:
    """Return the event with its recorded form if its contents hold an array, else None.

    Raises:
        EventError: arrays take more than MAX_ARRAY_BYTES together, or one is not of numbers; it names the place.
    """
    if isinstance(event, TransientEvent):
        return event
    if type(event) is not Event or SIMPLE_TYPES.issuperset(map(type, event.contents.values())):
        return None
    if _core.packed_size(event.contents) is not None:
        return None  # plain data without an array
    arrays = array_bytes = 0

    def without(array: object, place: str) -> None:
        nonlocal arrays, array_bytes
        arrays += 1
        array_bytes += _checked_size(array, place)
        if array_bytes > MAX_ARRAY_BYTES:
            raise EventError(place, f"makes the event's arrays larger than {MAX_ARRAY_BYTES} bytes; send a smaller one")

    contents = _replaced(event.contents, "contents", without)
    if not arrays:
        return None
    recorded = RecordedEvent(event.event_id, event.page_id, event.ts_ms, contents)
    return TransientEvent(event, recorded, array_bytes)


def _replaced(value: Any, place: str, replace: Callable[[object, str], Any], depth: int = 0) -> Any:
    """Return a value with `replace(array, place)` in the place of each array. What is not plain data stays."""
    if type(value) in SIMPLE_TYPES:
        return value
    if isinstance(value, Mapping | list | tuple) and depth > MAX_CONTENTS_DEPTH:
        raise EventError("contents", f"are nested deeper than {MAX_CONTENTS_DEPTH} levels; flatten them")
    if isinstance(value, Mapping):
        return {
            key: item
            if type(item) in SIMPLE_TYPES
            else _replaced(item, place + plain.place_step(key), replace, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = [
            _replaced(item, place + plain.place_step(index), replace, depth + 1) for index, item in enumerate(value)
        ]
        return items if isinstance(value, list) else tuple(items)
    return replace(value, place) if _is_array(value) else value


def _is_array(value: object) -> bool:
    if isinstance(value, bytes | str | int | float):
        return False
    try:
        view = memoryview(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return view.ndim > 0


def _checked_size(array: object, place: str) -> int:
    """Return an array's size in bytes.

    Raises:
        EventError: it is not an array of numbers.
    """
    try:
        size_bytes = plain.array_view(array).nbytes
        _core.asarray(array)  # what tasks get; it is not copied
    except plain.PlainDataError as error:
        raise EventError(place, str(error)) from error
    except (EngineError, TypeError, ValueError) as error:
        raise EventError(place, f"is an array that tasks cannot get: {error}") from error
    return size_bytes
