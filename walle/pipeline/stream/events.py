"""A task's events (§5.1): filters, groups, windows of time and aggregations over columns, and KeyBy, Filter and Map.

The columns are in C++ (`walle/engine_ext/src/stream`, ADR 20) and work on the encoded events. Python objects are made
for events that a task iterates over or indexes. Runs in a task VM; imports only events and the native core.

A *field* is `event_id`, `page_id`, `ts_ms`, or keys of the contents joined by dots, such as `item.price`;
`contents.ts_ms` is the key `ts_ms` of the contents. Aggregations of numbers ignore missing fields and values of another
kind, as a trigger's `where` does.
"""

from __future__ import annotations

from walle.engine_ext import _core
from walle.pipeline.events.event import MAX_TS_MS, Event, EventError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, overload

_TUMBLING, _SLIDING, _SESSION = range(3)


def _event_error(error: ValueError) -> EventError:
    """Return the error of a fault that the native core found."""
    if len(error.args) == 2:
        return EventError(*error.args)
    return EventError("events", str(error))


class Events:
    """An immutable view over events, in the order they came. Every function returns a new view.

    Takes events, or the plain data of events (`Event.to_dict`), or both.
    """

    __slots__ = ("_objects", "_source", "_view")
    _objects: tuple[Event, ...] | None  # None: not made yet
    _source: tuple[Event, ...] | None  # the events that the columns were made from; None where they came as bytes
    _view: _core.EventView | None  # None: no columns yet

    def __init__(self, events: Iterable[Event | Mapping[str, Any]] = ()) -> None:
        self._view = None
        self._objects = self._source = tuple(
            [event if isinstance(event, Event) else Event.from_dict(event) for event in events]
        )

    @classmethod
    def from_bytes(cls, encoded: bytes) -> Events:
        """Return the events that `encode` encoded; they are not copied.

        Raises:
            EventError: the bytes are damaged, or an event is wrong.
        """
        try:
            return _of_view(_core.open_events(encoded))
        except ValueError as error:
            raise _event_error(error) from None

    @classmethod
    def from_json(cls, json: bytes) -> Events:
        """Return the events of a JSON list of objects, or of JSON lines, with the fields of `Event`.

        NaN, Infinity and integers of more than 64 bits are refused. A lone surrogate becomes U+FFFD. Of a key that
        occurs twice, the last value counts.

        Raises:
            EventError: it is not JSON in UTF-8, or an event is wrong; it names the event, counted from 0, and the byte.
        """
        try:
            return _of_view(_core.read_json_events(json))
        except ValueError as error:
            raise _event_error(error) from None

    def encode(self) -> bytes:
        """Return the events encoded as plain data: a list of lists of four fields.

        Raises:
            EventError: contents hold an array, an int of more than 64 bits, or an object that is not plain data.
        """
        encoded = self._columns().encode() if self._source is None else _core.encode_events(self._events())
        if encoded is None:
            raise EventError("contents", "have values that bytes of events do not hold: arrays, objects, or large ints")
        return encoded

    # --- selection ----------------------------------------------------------------------------------------------------

    def named(self, event_id: str | None = None, page_id: str | None = None) -> Events:
        """Return the events of this event id and of this page id."""
        return self._select(self._columns().named(event_id, page_id, False))

    def where(self, field: str, comparison: str, value: str | float | bool) -> Events:
        """Return the events whose field compares with a constant, as `where` in task.toml's [trigger] does.

        `comparison` is one of == != < <= > >=. A field that is missing or of another kind fails all of them.

        Raises:
            EventError: an argument is wrong.
        """
        try:
            return self._select(self._columns().where(field, comparison, value))
        except ValueError as error:
            raise _event_error(error) from None

    if TYPE_CHECKING:

        @overload
        def key_by(self, key: str) -> Events: ...
        @overload
        def key_by[K: Hashable](self, key: Callable[[Event], K]) -> dict[K, Events]: ...

    def key_by(self, key: str | Callable[[Event], Any]) -> Events | dict[Any, Events]:
        """Return the events whose event id or page id is `key`; of a function, the events grouped by what it returns.

        Groups stand in the order in which their first event came. `group_by` groups by fields without a function.

        Source: §5.1, which has the first form only.
        """
        if isinstance(key, str):
            return self._select(self._columns().named(key, key, True))
        groups: dict[Any, list[int]] = {}
        for index, event in enumerate(self._events()):
            groups.setdefault(key(event), []).append(index)
        return {value: self._take(indices) for value, indices in groups.items()}

    def time_window(self, start_ms: int, end_ms: int) -> Events:
        """Return the events with start_ms <= ts_ms < end_ms.

        Raises:
            EventError: the window ends before it starts.
        """
        if end_ms < start_ms:
            raise EventError("time_window", f"ends at {end_ms}, before it starts at {start_ms}")
        return self._select(self._columns().between(start_ms, end_ms))

    def filter(self, rule: Callable[[Event], object]) -> Events:
        """Return the events for which `rule` is true. `where` and `named` do not call Python for each event."""
        return self._take([index for index, event in enumerate(self._events()) if rule(event)])

    def map(self, function: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Events:
        """Return the events with `function(contents)` for contents; ids and times stay.

        Raises:
            EventError: `function` returned something that is not a mapping.
        """
        return Events(
            Event(event.event_id, event.page_id, event.ts_ms, function(event.contents)) for event in self._events()
        )

    # --- columns ------------------------------------------------------------------------------------------------------

    def column(self, field: str, default: Any = None) -> list[Any]:
        """Return the field of each event, `default` where it is missing."""
        try:
            return self._columns().column(field, default)
        except ValueError as error:
            raise _event_error(error) from None

    def pick(self, index: int, *fields: str, default: Any = None) -> list[Any]:
        """Return some fields of one event, `default` for those that are missing, without making the event.

        Raises:
            IndexError: the index is outside of the view.
        """
        columns = self._columns()
        try:
            return columns.pick(index + len(columns) if index < 0 else index, fields, default)
        except ValueError as error:
            raise _event_error(error) from None

    def numbers(self, field: str, default: float = 0.0, limit: float = float("inf")) -> list[float]:
        """Return the field of each event as a float; `default` if it is not a number, or above `limit` in size."""
        try:
            return self._columns().numbers(field, default, limit)
        except ValueError as error:
            raise _event_error(error) from None

    def spread(
        self, field: str, default: float | None = None, limit: float = float("inf")
    ) -> tuple[float, float, float, float, float, float] | None:
        """Return (mean, std, q1, median, q3, max) of a field's numbers, read as `numbers` does; None if there are none.

        Events without such a number are left out if `default` is None. The field `gap_ms` is the time from each event
        to the next one, 0 where time went back. Of n numbers in order, a quartile is the one at (n - 1) * part // 4.
        """
        try:
            return self._columns().spread(field, default, limit)
        except ValueError as error:
            raise _event_error(error) from None

    def texts(self, field: str, max_chars: int = 1024) -> list[str]:
        """Return the field of each event as text: at most `max_chars` of a text, an int of up to 2^53 as its digits.

        Other values are "".
        """
        try:
            return self._columns().texts(field, max_chars, MAX_TS_MS)
        except ValueError as error:
            raise _event_error(error) from None

    # --- groups and windows -------------------------------------------------------------------------------------------

    def group_by(self, *fields: str) -> Groups:
        """Return the events grouped by one or more fields, in the order in which the groups' first events came.

        Raises:
            EventError: a field is not a path, or the field of an event is a list or an object.
        """
        return Groups(self._columns().groups(), self._source).group_by(*fields)

    def tumbling(self, size_ms: int, *, offset_ms: int = 0) -> Groups:
        """Return windows of `size_ms` that begin at its multiples, as `Groups.tumbling`."""
        return Groups(self._columns().groups(), self._source).tumbling(size_ms, offset_ms=offset_ms)

    def sliding(self, size_ms: int, every_ms: int, *, offset_ms: int = 0) -> Groups:
        """Return windows of `size_ms` that begin at multiples of `every_ms`, as `Groups.sliding`."""
        return Groups(self._columns().groups(), self._source).sliding(size_ms, every_ms, offset_ms=offset_ms)

    def sessions(self, gap_ms: int) -> Groups:
        """Return windows that end where no event comes for more than `gap_ms`, as `Groups.sessions`."""
        return Groups(self._columns().groups(), self._source).sessions(gap_ms)

    # --- aggregations -------------------------------------------------------------------------------------------------

    def aggregate(self, **aggregations: str | tuple[str, str]) -> dict[str, Any]:
        """Return the result of each aggregation over all events, as `Groups.aggregate`.

        Without events, counts and sums are 0, `distinct` is empty, and the others are None.
        """
        table = Groups(self._columns().groups(), self._source).aggregate(**aggregations)
        return {
            name: table[name][0] if table[name] else _of_nothing(_pair(how)[1]) for name, how in aggregations.items()
        }

    @staticmethod
    def plan(selections: dict[Any, dict[str, Any]]) -> Plan:
        """Return a plan, which computes many results in one call; make it once and keep it for all visits."""
        return Plan(selections, is_selections=True)

    @staticmethod
    def result_plan(template: Any) -> Plan:
        """Return a plan of one result in the form of the template, which `Plan.encode` can write as bytes."""
        return Plan(template)

    def count(self, field: str | None = None) -> int:
        """Return the number of events, or of those that have the field."""
        return len(self) if field is None else self._reduce(field, "count")

    def sum(self, field: str) -> int | float:
        """Return the sum of a field's numbers, exact for integers."""
        return self._reduce(field, "sum")  # type: ignore[no-any-return]

    def mean(self, field: str) -> float | None:
        """Return the mean of a field's numbers; None if there are none."""
        return self._reduce(field, "mean")  # type: ignore[no-any-return]

    def min(self, field: str) -> int | float | None:
        """Return the smallest of a field's numbers; None if there are none."""
        return self._reduce(field, "min")  # type: ignore[no-any-return]

    def max(self, field: str) -> int | float | None:
        """Return the largest of a field's numbers; None if there are none."""
        return self._reduce(field, "max")  # type: ignore[no-any-return]

    def first(self, field: str) -> Any:
        """Return the field of the first event that has it; None if no event has."""
        return self._reduce(field, "first")

    def last(self, field: str) -> Any:
        """Return the field of the last event that has it; None if no event has."""
        return self._reduce(field, "last")

    def distinct(self, field: str) -> list[Any]:
        """Return the different values of a field, in the order in which they first came."""
        return self._reduce(field, "distinct")  # type: ignore[no-any-return]

    def _reduce(self, field: str, function: str) -> Any:
        try:
            found = self._columns().groups().aggregate(((field, function),))[0]
        except ValueError as error:
            raise _event_error(error) from None
        return found[0] if found else _of_nothing(function)

    # --- a sequence of events -----------------------------------------------------------------------------------------

    def _events(self) -> tuple[Event, ...]:
        if self._objects is None:
            assert self._view is not None
            if self._source is not None:
                source = self._source
                self._objects = tuple([source[index] for index in self._view.indices()])
                return self._objects
            try:
                self._objects = tuple([Event(*fields) for fields in self._view.fields()])
            except ValueError as error:
                raise _event_error(error) from None
        return self._objects

    def _columns(self) -> _core.EventView:
        if self._view is None:
            encoded = _core.encode_columns(self._source or ())
            if encoded is None:
                raise EventError("event_id", "or page id of an event is not UTF-8, which columns must be")
            try:
                self._view = _core.open_events(encoded)
            except ValueError as error:
                raise _event_error(error) from None
        return self._view

    def _select(self, view: _core.EventView) -> Events:
        return _of_view(view, self._source)

    def _take(self, indices: list[int]) -> Events:
        if self._view is None:
            events = self._events()
            return Events([events[index] for index in indices])
        taken = self._select(self._view.take(indices))
        taken._objects = None if self._objects is None else tuple([self._objects[index] for index in indices])
        return taken

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events())

    def __len__(self) -> int:
        return len(self._objects) if self._view is None else len(self._view)  # type: ignore[arg-type]

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, index: int) -> Event: ...
        @overload
        def __getitem__(self, index: slice) -> Events: ...

    def __getitem__(self, index: int | slice) -> Event | Events:
        if isinstance(index, slice):
            return self._take(list(range(*index.indices(len(self)))))
        if self._objects is not None or self._source is not None or self._view is None:
            return self._events()[index]
        place = index + len(self._view) if index < 0 else index
        try:
            return Event(*self._view.row(place))
        except ValueError as error:
            raise _event_error(error) from None

    def __eq__(self, other: object) -> bool:
        return self._events() == other._events() if isinstance(other, Events) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Events({list(self._events())!r})"


class Groups:
    """Events in groups, by fields or by windows of time. Iterates over pairs of key and `Events`.

    A key is the group's value of the field; with several fields, or after windows, a tuple of all of them. A window
    adds `start_ms` and `end_ms`; it has the events with start_ms <= ts_ms < end_ms, and at least one.
    """

    __slots__ = ("_groups", "_source")

    def __init__(self, groups: _core.EventGroups, source: tuple[Event, ...] | None = None) -> None:
        self._groups = groups
        self._source = source

    def group_by(self, *fields: str) -> Groups:
        """Return the groups, each split by the fields."""
        groups = self._groups
        try:
            for field in fields:
                groups = groups.by(field)
        except ValueError as error:
            raise _event_error(error) from None
        return Groups(groups, self._source)

    def tumbling(self, size_ms: int, *, offset_ms: int = 0) -> Groups:
        """Return the groups, each split into windows of `size_ms` that begin at its multiples after `offset_ms`.

        Windows stand in the order of their groups, and then of time; times that are out of order are sorted.
        """
        return self._windows(_TUMBLING, size_ms, size_ms, offset_ms)

    def sliding(self, size_ms: int, every_ms: int, *, offset_ms: int = 0) -> Groups:
        """Return the groups, each split into windows of `size_ms`, one beginning at each multiple of `every_ms`.

        An event is in each of the windows that cover it, at most 1,000.
        """
        return self._windows(_SLIDING, size_ms, every_ms, offset_ms)

    def sessions(self, gap_ms: int) -> Groups:
        """Return the groups, each split into sessions: events of which each is within `gap_ms` of the one before it.

        A session ends `gap_ms` after its last event; one at that very time still belongs to it.
        """
        return self._windows(_SESSION, gap_ms, gap_ms, 0)

    def _windows(self, kind: int, size_ms: int, every_ms: int, offset_ms: int) -> Groups:
        try:
            return Groups(self._groups.windows(kind, size_ms, every_ms, offset_ms), self._source)
        except ValueError as error:
            raise _event_error(error) from None

    def aggregate(self, **aggregations: str | tuple[str, str]) -> dict[str, list[Any]]:
        """Return a table: a list for each key and for each aggregation, with a row for each group.

        An aggregation is `name="count"` for the number of events, or `name=(field, function)` with a function of count
        (of the events that have the field), sum, mean, min, max, span (max - min), std (of the population), q1, median
        and q3 (of n numbers in order the one at (n - 1) * part // 4), first, last, and distinct (a list).

            events.group_by("page_id").aggregate(clicks="count", price=("item.price", "sum"))

        Raises:
            EventError: a field or function is wrong, or the name of an aggregation is that of a key.
        """
        try:
            table = self._groups.keys()
            results = self._groups.aggregate(tuple([_pair(how) for how in aggregations.values()]))
        except ValueError as error:
            raise _event_error(error) from None
        for name, result in zip(aggregations, results, strict=True):
            if name in table:
                raise EventError("aggregation", f"{name!r} is the name of a key; choose another")
            table[name] = result
        return table

    def count(self) -> dict[Any, int]:
        """Return the number of events of each group, by key."""
        return dict(zip(self.group_keys(), self._groups.aggregate(((None, "count"),))[0], strict=True))

    def group_keys(self) -> list[Any]:
        """Return the key of each group."""
        columns = list(self._groups.keys().values())
        if not columns:
            return [()] * len(self)
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def __iter__(self) -> Iterator[tuple[Any, Events]]:
        return zip(self.group_keys(), [_of_view(view, self._source) for view in self._groups.views()], strict=True)

    def __len__(self) -> int:
        return len(self._groups)

    def __repr__(self) -> str:
        return f"Groups({len(self)} of {list(self._groups.keys())})"


class Plan:
    """Results that a task needs of each visit: compiled once, computed for the events of a visit in one call.

    A template is a dict or list of parts. A part is a template, a step, a selection of events, or a constant (a number,
    a bool or None). A step is "count", `(field, function)` or `(field, function, options)`; `(event_id, part)` or
    `(event_id, part, options)` computes a part of the events with that id, None for all; `(name,)` is the value that
    `run` or `encode` is given by that name. docs/events.md lists fields, functions and options.

        plan = ctx.events.result_plan({"version": 1, "clicks": ("click", "count"), "share": ("share",)})
        plan.run(ctx.events, share=0.5)  # {"version": 1, "clicks": 2, "share": 0.5}

    Raises:
        EventError: a part, a field, a function or an option is wrong.
    """

    __slots__ = ("_compiled",)

    def __init__(self, template: Any, *, is_selections: bool = False) -> None:
        """With `is_selections`, the template is a dict of event ids, None for all events, and dicts of steps."""
        try:
            self._compiled = _core.compile_plan(template, is_selections)
        except ValueError as error:
            raise _event_error(error) from None

    def run(self, events: Events, /, **values: Any) -> Any:
        """Return the result; selections without events, and steps of a missing field, are left out.

        Raises:
            EventError: `distinct` meets a list or an object, or the whole result is missing.
        """
        try:
            return (events._view or events._columns()).run(self._compiled, values)
        except ValueError as error:
            raise _event_error(error) from None

    def encode(self, events: Events, /, **values: Any) -> _core.Encoded:
        """Return what `run` returns as an `Encoded`, without making objects for its parts.

        Raises:
            EventError: as `run`; or the result is not plain data, has more than 1 MiB, or keys that are None.
        """
        try:
            return (events._view or events._columns()).encode_results(self._compiled, values)
        except ValueError as error:
            raise _event_error(error) from None


def _of_nothing(function: str) -> Any:
    """Return the result of an aggregation without events."""
    return [] if function == "distinct" else 0 if function in ("count", "sum") else None


def _pair(how: str | tuple[str, str]) -> tuple[str | None, str]:
    return (None, how) if isinstance(how, str) else (how[0], how[1])


def encode_events(events: Sequence[Event]) -> bytes | list[dict[str, Any]]:
    """Return events as plain data for a task VM: their bytes, or a list of dicts where contents hold arrays."""
    encoded = _core.encode_events(events)
    return [event.to_dict() for event in events] if encoded is None else encoded


def decode_events(encoded: bytes | Iterable[Mapping[str, Any]]) -> Events:
    """Return the events that `encode_events` encoded."""
    return Events.from_bytes(encoded) if isinstance(encoded, bytes) else Events(encoded)


def _of_view(view: _core.EventView, source: tuple[Event, ...] | None = None) -> Events:
    events = _new(Events)
    events._view, events._source, events._objects = view, source, None
    return events


_new = object.__new__
