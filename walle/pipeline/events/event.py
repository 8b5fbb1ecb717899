"""Events: one tracked behaviour of a user each (§5.1), with event id, page id, timestamp and contents; the basic kinds.

A task VM imports this module. It imports none of `dataclasses`, `json`, `typing` and `collections`: each takes longer
to load than everything here.
"""

from __future__ import annotations

from _collections_abc import Mapping  # what `collections.abc` has, without `collections`

from walle.engine_ext import _core
from walle.errors import PipelineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Literal, NoReturn, Self, overload

PAGE_ENTER = "page_enter"
PAGE_SCROLL = "page_scroll"
EXPOSURE = "exposure"
CLICK = "click"
PAGE_EXIT = "page_exit"
BASIC_KINDS = (PAGE_ENTER, PAGE_SCROLL, EXPOSURE, CLICK, PAGE_EXIT)

MAX_EVENT_BYTES = 256 * 1024  # an event larger than this, encoded, is refused as enormous
MAX_EVENT_ID_CHARS = 1024
MAX_CONTENTS_DEPTH = 90  # levels; a VM takes 100, which include those around an event and what a task adds to it
MAX_TS_MS = 2**53  # what a float64, and so any JSON reader, still holds exactly

if TYPE_CHECKING:
    _Fields = dict[str, Any]
else:
    _Fields = dict

_CONTAINERS = (dict, list, tuple)
_FIELDS = ("event_id", "page_id", "ts_ms", "contents")


class EventError(PipelineError):
    """An event with a field that is missing or wrong. `where` is the field, `what` the fault."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where
        self.what = what


def _no_field(name: object) -> str:
    """Return the text of an error about a field that events do not have."""
    fields = ", ".join(_FIELDS)
    return f'an event has {fields}, and no {str(name)[:80]}; other fields are in its contents: event["contents"]'


class Event:
    """One behaviour. Immutable; equal by value. A field is an attribute and a key: `event.page_id`, `event["page_id"]`.

    `event_id` names its kind: a basic kind or a tracker's own. `page_id` is empty outside pages. `ts_ms` is in
    milliseconds since the epoch. `contents` holds plain data with str keys, such as the item of an exposure.

    Raises:
        EventError: a field is of the wrong type, `event_id` is empty, an id is longer than MAX_EVENT_ID_CHARS, or the
        time is
            negative.
    """

    __slots__ = ("contents", "event_id", "page_id", "ts_ms")
    event_id: str
    page_id: str
    ts_ms: int
    contents: Mapping[str, Any]

    def __init__(self, event_id: str, page_id: str, ts_ms: int, contents: Mapping[str, Any]) -> None:
        if (
            type(event_id) is not str
            or type(page_id) is not str
            or type(ts_ms) is not int
            or type(contents) is not dict
        ):
            _check_types(event_id, page_id, ts_ms, contents)
        if not event_id:
            raise EventError("event_id", "is empty")
        if len(event_id) > MAX_EVENT_ID_CHARS or len(page_id) > MAX_EVENT_ID_CHARS:
            raise EventError(
                "event_id" if len(event_id) > MAX_EVENT_ID_CHARS else "page_id",
                f"is longer than {MAX_EVENT_ID_CHARS} characters",
            )
        if not 0 <= ts_ms <= MAX_TS_MS:
            raise EventError("ts_ms", f"{ts_ms} is not milliseconds since the epoch")
        put = object.__setattr__
        put(self, "event_id", event_id)
        put(self, "page_id", page_id)
        put(self, "ts_ms", ts_ms)
        put(self, "contents", contents)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"an event cannot be changed (setting {name!r})")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"an event cannot be changed (deleting {name!r})")

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, int, Mapping[str, Any]]]:
        return type(self), (self.event_id, self.page_id, self.ts_ms, self.contents)

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, field: Literal["event_id", "page_id"]) -> str: ...
        @overload
        def __getitem__(self, field: Literal["ts_ms"]) -> int: ...
        @overload
        def __getitem__(self, field: Literal["contents"]) -> Mapping[str, Any]: ...

    def __getitem__(self, field: str) -> Any:
        if field not in _FIELDS:
            raise KeyError(_no_field(field))
        return getattr(self, field)

    def __contains__(self, field: object) -> bool:
        return field in _FIELDS

    def __iter__(self) -> Iterator[str]:
        return iter(_FIELDS)

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields, so that `dict(event)` is its plain data."""
        return _FIELDS

    def get(self, field: str, default: Any = None) -> Any:
        """Return a field, `default` for a name that is none."""
        return getattr(self, field) if field in _FIELDS else default

    if not TYPE_CHECKING:  # a type checker that saw it would take every name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(_no_field(name))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return (
            self.event_id == other.event_id
            and self.page_id == other.page_id
            and self.ts_ms == other.ts_ms
            and self.contents == other.contents
        )

    def __hash__(self) -> int:
        return hash((self.event_id, self.page_id, self.ts_ms))

    def __repr__(self) -> str:
        try:
            contents = repr(self.contents)
        except ValueError:  # an integer of more than 4,300 digits, which Python does not print
            contents = "..."
        return f"Event({self.event_id!r}, {self.page_id!r}, {self.ts_ms}, {contents})"

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data, with the field names of a JSON line."""
        return {
            "event_id": self.event_id,
            "page_id": self.page_id,
            "ts_ms": self.ts_ms,
            "contents": dict(self.contents),
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Return the event that `to_dict` described; fields it does not know are ignored.

        Raises:
            EventError: `value` is not a mapping, lacks a field, or a field is wrong.
        """
        if not isinstance(value, Mapping):
            raise EventError("event", f"must be an object, is {type(value).__name__}")
        for field in _FIELDS:
            if field not in value:
                raise EventError(field, "is missing")
        return cls(value["event_id"], value["page_id"], value["ts_ms"], value["contents"])

    @staticmethod
    def list_from_json(json: bytes) -> list[Event]:
        """Return the events of a JSON list of objects, or of JSON lines, as `Events.from_json` does.

        Their contents become Python objects when they are first read. Until then an event is its encoded bytes, which
        the journal writes and a task VM reads.

        Raises:
            EventError: it is not JSON in UTF-8, or an event is wrong.
        """
        try:
            return [EncodedEvent(*row) for row in _core.read_json_events(json).rows()]
        except ValueError as error:
            raise EventError(*(error.args if len(error.args) == 2 else ("event", str(error)))) from None

    def size_bytes(self) -> int:
        """Return how many bytes the event takes, encoded as plain data; raises as `encode`."""
        size = _core.packed_size((self.event_id, self.page_id, self.ts_ms, self.contents))
        if size is None or size > MAX_EVENT_BYTES:  # an array, something that is not plain data, or too large
            return len(self.encode())
        self._check_depth()
        return size

    def encode(self) -> bytes:
        """Return the event encoded as plain data: a list of its four fields.

        Raises:
            EventError: the contents are not plain data, the event is larger than MAX_EVENT_BYTES, or its contents are
                nested deeper than MAX_CONTENTS_DEPTH.
        """
        from walle.base import plain  # imported late: a task VM never encodes events, and does not load it

        try:
            data = plain.encode((self.event_id, self.page_id, self.ts_ms, self.contents), "event")
        except plain.PlainDataError as error:
            raise EventError("contents", str(error).replace("event[3]", "contents", 1)) from error
        if len(data) > MAX_EVENT_BYTES:
            raise EventError("event", f"{len(data)} bytes, more than {MAX_EVENT_BYTES}")
        self._check_depth()
        return data

    def _check_depth(self) -> None:
        for value in self.contents.values():
            if isinstance(value, _CONTAINERS):
                _check_depth(self.contents)
                return


class TriggerEvent(_Fields):
    """The event of a trigger: plain data, a dict whose keys are attributes too, as those of an `Event`."""

    __slots__ = ()
    event_id: str
    page_id: str  # empty outside pages
    ts_ms: int  # milliseconds since the epoch
    contents: dict[str, Any]  # plain data; arrays, such as a video's frame, are a read-only walle.np.ndarray

    if TYPE_CHECKING:

        @overload  # type: ignore[override]
        def __getitem__(self, field: Literal["event_id", "page_id"]) -> str: ...
        @overload
        def __getitem__(self, field: Literal["ts_ms"]) -> int: ...
        @overload
        def __getitem__(self, field: Literal["contents"]) -> dict[str, Any]: ...
        def __getitem__(self, field: str) -> Any: ...

    else:

        def __missing__(self, field: object) -> NoReturn:
            raise KeyError(_no_field(field))

        def __getattr__(self, name: str) -> Any:
            if name not in self:
                raise AttributeError(_no_field(name))
            return self[name]


def as_trigger(value: Any) -> Any:
    """Return a first phase's argument, of which the event, if it is a trigger, has its fields as attributes too."""
    if isinstance(value, dict) and type(value.get("event")) is dict:
        return {**value, "event": TriggerEvent(value["event"])}
    return value


class EncodedEvent(Event):
    """An event that was read from JSON. `encode` returns `encoded`; the contents are decoded when first read."""

    __slots__ = ("encoded",)
    encoded: bytes

    def __init__(self, event_id: str, page_id: str, ts_ms: int, encoded: bytes) -> None:
        put = object.__setattr__
        put(self, "event_id", event_id)
        put(self, "page_id", page_id)
        put(self, "ts_ms", ts_ms)
        put(self, "encoded", encoded)

    def __getattr__(self, name: str) -> Any:  # called where the slot `contents` is empty
        if name != "contents":
            raise AttributeError(_no_field(name))
        contents = _core.unpack_event(self.encoded)[3]
        object.__setattr__(self, "contents", contents)
        return contents

    def __reduce__(self) -> tuple[type[Event], tuple[str, str, int, Mapping[str, Any]]]:  # type: ignore[override]
        return Event, (self.event_id, self.page_id, self.ts_ms, self.contents)

    def size_bytes(self) -> int:
        return len(self.encoded)

    def encode(self) -> bytes:
        return self.encoded


def _check_depth(contents: Mapping[str, Any]) -> None:
    level: list[Any] = [contents]
    for _ in range(MAX_CONTENTS_DEPTH):
        level = [
            value
            for container in level
            for value in (container.values() if isinstance(container, Mapping) else container)
            if isinstance(value, _CONTAINERS)
        ]
        if not level:
            return
    raise EventError("contents", f"are nested deeper than {MAX_CONTENTS_DEPTH} levels; flatten them")


def _check_types(event_id: object, page_id: object, ts_ms: object, contents: object) -> None:
    for where, value, kind in (("event_id", event_id, str), ("page_id", page_id, str), ("ts_ms", ts_ms, int)):
        if not isinstance(value, kind) or isinstance(value, bool):
            raise EventError(where, f"must be {kind.__name__}, is {type(value).__name__}")
    if not isinstance(contents, Mapping):
        raise EventError("contents", f"must be an object, is {type(contents).__name__}")
