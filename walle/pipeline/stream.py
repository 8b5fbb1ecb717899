"""KeyBy, TimeWindow, Filter and Map (§5.1): a task's operations on its events.

Runs in a task VM; imports only events.
"""

from __future__ import annotations

from walle.pipeline.events import Event, EventError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
    from typing import Any, overload


class Events:
    """An immutable view over events, in the order they came. Every function returns a new view.

    Takes events, or the plain data of events (`Event.to_dict`), or both.
    """

    __slots__ = ("_events",)

    def __init__(self, events: Iterable[Event | Mapping[str, Any]] = ()) -> None:
        self._events = tuple(event if isinstance(event, Event) else Event.from_dict(event) for event in events)

    if TYPE_CHECKING:

        @overload
        def key_by(self, key: str) -> Events: ...
        @overload
        def key_by[K: Hashable](self, key: Callable[[Event], K]) -> dict[K, Events]: ...

    def key_by(self, key: str | Callable[[Event], Any]) -> Events | dict[Any, Events]:
        """Return the events whose event id or page id is `key`; of a function, the events grouped by what it returns.

        Groups stand in the order in which their first event came.

        Source: §5.1, which has the first form only.
        """
        if isinstance(key, str):
            return Events(event for event in self._events if key in (event.event_id, event.page_id))
        groups: dict[Any, list[Event]] = {}
        for event in self._events:
            groups.setdefault(key(event), []).append(event)
        return {value: Events(events) for value, events in groups.items()}

    def time_window(self, start_ms: int, end_ms: int) -> Events:
        """Return the events with start_ms <= ts_ms < end_ms.

        Raises:
            EventError: the window ends before it starts.
        """
        if end_ms < start_ms:
            raise EventError("time_window", f"ends at {end_ms}, before it starts at {start_ms}")
        return Events(event for event in self._events if start_ms <= event.ts_ms < end_ms)

    def filter(self, rule: Callable[[Event], object]) -> Events:
        """Return the events for which `rule` is true."""
        return Events(event for event in self._events if rule(event))

    def map(self, function: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Events:
        """Return the events with `function(contents)` for contents; ids and times stay.

        Raises:
            EventError: `function` returned something that is not a mapping.
        """
        return Events(
            Event(event.event_id, event.page_id, event.ts_ms, function(event.contents)) for event in self._events
        )

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, index: int) -> Event: ...
        @overload
        def __getitem__(self, index: slice) -> Events: ...

    def __getitem__(self, index: int | slice) -> Event | Events:
        return Events(self._events[index]) if isinstance(index, slice) else self._events[index]

    def __eq__(self, other: object) -> bool:
        return self._events == other._events if isinstance(other, Events) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Events({list(self._events)!r})"
