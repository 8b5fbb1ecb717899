"""Mappings from an event log's fields to ours, read from TOML; derived page visits for logs without them.

[fields]                        a name, a dotted path into JSON, or a list of them: the first that is not empty is used
event_id = "event_type"         the kind of event
page_id = "screen"              without it, or where it is empty, the page that the event's stream is on (optional)
time = "timestamp"
stream = "device_id"            events of different streams are different devices' (optional)
session = "session_id"          a new value ends the page (optional)
id = "uuid"                     two lines with one id are duplicates (optional; without it, equal lines are)
[time]
format = "ms"                   s, ms, us or ns since the epoch, iso, or a pattern such as "%d/%m/%Y %H:%M:%S"; or a
                                list of these, of which the first that fits is taken; a time without a zone is UTC
[lists]
items = "each"                  this field is a list of events, each read as a separate line with the line's other
                                fields; "first": only the first element counts
[kinds]
product_exposure = "exposure"   the publisher's event id = ours; an event id that is not listed is kept
[contents]
keep = "all"                    or a list of fields
json = ["context"]              columns whose text is JSON
names = { item_id = "sku" }     contents by our names, each from a field or the first of a list that is not empty
actions = { buy = "purchase" }  the publisher's event id = the value of `action` in the contents
[pages]
derive = true                   insert page_enter and page_exit at each change of page
gap_s = 1800                    a longer silence ends the page
[order]
sort_window = 1000              lines held and sorted by time, for logs that are not in order; "auto": as many as are
                                needed, which costs a second reading of the file
"""

import collections
import dataclasses
import json
import math
import pathlib
import tomllib
from collections.abc import Container, Iterator, Mapping
from typing import Any, Self

from walle.errors import ConfigError
from walle.pipeline.events.event import PAGE_ENTER, PAGE_EXIT, Event, EventError
from walle.pipeline.events.event_time import EventTime, TimeFormatError

MAX_SORT_WINDOW = 100_000
MAX_STREAMS = (
    10_000  # streams whose page and latest time are kept; the one silent for longest is dropped, its page exited
)

_TABLES = ("fields", "time", "lists", "kinds", "contents", "pages", "order")

type Fields = tuple[tuple[str, ...], ...]


class MappingError(ConfigError):
    """An invalid mapping file. `path` is the file, `where` the key."""

    def __init__(self, path: pathlib.Path, where: str, what: str) -> None:
        super().__init__(f"event mapping {path}: {where}: {what}")
        self.path = path
        self.where = where


@dataclasses.dataclass(frozen=True, slots=True)
class Mapped:
    """One line of a log, mapped. `id` is empty if the log has none."""

    stream: str
    session: str
    id: str
    event: Event


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EventMapping:
    """A mapping; the module's docstring explains each part. The default is the fields of `Event` itself."""

    event_id: Fields = (("event_id",),)
    page_id: Fields = (("page_id",),)
    time: Fields = (("ts_ms",),)
    stream: Fields = (("stream",),)
    session: Fields = ()
    id: Fields = (("id",),)
    time_format: EventTime = EventTime(("ms",))  # noqa: RUF009 - it does not change
    each: tuple[str, ...] = ()  # the field that is a list of events, none if empty
    firsts: frozenset[tuple[str, ...]] = frozenset()  # fields that are lists of which the first element counts
    kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)
    keep: Fields | None = None
    json_fields: tuple[str, ...] = ()
    names: Mapping[str, Fields] = dataclasses.field(default_factory=dict)
    actions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    derive_pages: bool = False
    gap_s: float = math.inf
    sort_window: int | None = 0  # None: as many lines as are needed
    whole: bool = False  # contents are the line's own fields, not its field `contents`

    @classmethod
    def load(cls, path: str | pathlib.Path) -> Self:
        """Return the mapping that a TOML file describes.

        Raises:
            MappingError: the file cannot be read or is not TOML; a key is unknown, missing, or of the wrong type.
        """
        path = pathlib.Path(path)
        try:
            tables = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise MappingError(path, "file", error.strerror or str(error)) from error
        except ValueError as error:
            raise MappingError(path, "file", f"not TOML ({error})") from error
        return cls(whole=True, **_MappingReader(path, tables).read())

    @property
    def columns(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The fields that a log must have, each with its columns; one of them is enough."""
        needed = (("event_id", self.event_id), ("page_id", self.page_id), ("time", self.time), ("stream", self.stream))
        return tuple(
            (name, tuple(dict.fromkeys(column for field in fields for column in (".".join(field), field[0]))))
            for name, fields in needed
            if fields
        )

    def events(self, line: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield what is mapped of one line, given as fields by name: the line, or one for each element of its list.

        Raises:
            EventError: a column whose text is JSON cannot be read, or the field of [lists] is not a list.
        """
        if self.json_fields:
            line = {**line, **{name: _parse_json(name, line[name]) for name in self.json_fields if line.get(name)}}
        if not self.each:
            yield line
            return
        found = _at(line, self.each, self.firsts)
        if not isinstance(found, list):
            what = "is missing" if found is None else f"is {type(found).__name__}"
            raise EventError(".".join(self.each), f"{what}; the mapping's [lists] names it as a list of events")
        for element in found:
            yield _replaced(line, self.each, element)

    def map(self, line: Mapping[str, Any]) -> Mapped:
        """Return one of `events` mapped.

        Raises:
            EventError: a field is missing or wrong; the error has our name for it.
        """
        if not self.whole:
            event = Event.from_dict(line)
            return Mapped(self._text(line, self.stream, "stream"), "", self._text(line, self.id, "id"), event)
        kind = self._text(line, self.event_id, "event_id")
        page_id = self._text(line, self.page_id, "page_id")
        event = Event(self.kinds.get(kind, kind), page_id, self._time_ms(line), self._contents(line, kind))
        stream, session = self._text(line, self.stream, "stream"), self._text(line, self.session, "session")
        return Mapped(stream, session, self._text(line, self.id, "id"), event)

    def _time_ms(self, line: Mapping[str, Any]) -> int:
        text = self._text(line, self.time, "ts_ms")
        if not text:
            raise EventError("ts_ms", "is missing")
        try:
            return self.time_format.read(text)
        except ValueError as error:
            raise EventError("ts_ms", str(error)) from error

    def _contents(self, line: Mapping[str, Any], kind: str) -> dict[str, Any]:
        if self.keep is None:
            contents = dict(line)
        else:
            contents = {".".join(field): self._find(line, field) for field in self.keep}
        for name, fields in self.names.items():
            found = (self._find(line, field) for field in fields)
            contents[name] = next((value for value in found if value not in ("", None)), None)
        if kind in self.actions:
            contents["action"] = self.actions[kind]
        return {name: value for name, value in contents.items() if value not in ("", None)}

    def _find(self, line: Mapping[str, Any], field: tuple[str, ...]) -> Any:
        if len(field) > 1 and (dotted := ".".join(field)) in line:
            return line[dotted]  # a name that contains dots
        return _at(line, field, self.firsts)

    def _text(self, line: Mapping[str, Any], fields: Fields, where: str) -> str:
        """Return the first of `fields` that is not empty, as text; "" if all are."""
        for field in fields:
            value = self._find(line, field)
            if isinstance(value, str) and value:
                return value
            if isinstance(value, int | float) and not isinstance(value, bool):
                return str(value)
            if value not in (None, ""):
                raise EventError(where, f"{'.'.join(field)} must be text or a number, is {type(value).__name__}")
        return ""


def _at(line: Mapping[str, Any], field: tuple[str, ...], firsts: Container[tuple[str, ...]]) -> Any:
    """Return the value at a path, None if the line has none.

    Raises:
        EventError: the path leads through a list of several elements, which is not among `firsts`.
    """
    value: Any = line
    for depth, name in enumerate(field):
        if isinstance(value, list) and value:
            if len(value) > 1 and field[:depth] not in firsts:
                path = ".".join(field[:depth])
                what = f'is a list of {len(value)}; the mapping must say in [lists]: "{path}" = "each" or "first"'
                raise EventError(path, what)
            value = value[0]
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


def _replaced(line: Mapping[str, Any], field: tuple[str, ...], element: Any) -> Mapping[str, Any]:
    """Return the line with another value at a path that leads through objects alone, or through lists of one."""
    name, *more = field
    if not more:
        return {**line, name: element}
    inner = line[name]
    if isinstance(inner, list):
        inner = inner[0]
    return {**line, name: _replaced(inner, tuple(more), element)}


def _parse_json(name: str, text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise EventError(name, f"not JSON ({error})") from error


class _MappingReader:
    """A reader of one mapping file's tables; its errors name the key."""

    def __init__(self, path: pathlib.Path, tables: dict[str, Any]) -> None:
        self._path = path
        self._tables = tables

    def read(self) -> dict[str, Any]:
        for name, table in self._tables.items():
            if name not in _TABLES:
                raise MappingError(self._path, name, f"unknown; a mapping has {', '.join(_TABLES)}")
            self._check(isinstance(table, dict), name, "must be a table")
        found: dict[str, Any] = {}
        for name in ("event_id", "page_id", "time", "stream", "session", "id"):
            found[name] = self._fields("fields", name, required=name in ("event_id", "time"))
        found["time_format"] = self._time_format()
        found["each"], found["firsts"] = self._lists()
        found["kinds"] = self._tables.pop("kinds", {})
        for kind, ours in found["kinds"].items():
            self._check(isinstance(ours, str) and ours, f"kinds.{kind}", "must be an event id")
        keep = self._fields("contents", "keep", required=False)
        found["keep"] = None if keep in ((), (("all",),)) else keep
        found["json_fields"] = tuple(".".join(field) for field in self._fields("contents", "json", required=False))
        found["names"] = self._names()
        found["actions"] = self._take("contents", "actions", dict, {})
        for kind, action in found["actions"].items():
            self._check(isinstance(action, str) and action, f"contents.actions.{kind}", "must be text")
        found["derive_pages"] = self._take("pages", "derive", bool, False)
        found["gap_s"] = self._take("pages", "gap_s", int, 1800)
        self._check(found["gap_s"] > 0, "pages.gap_s", "must be more than 0 seconds")
        found["sort_window"] = self._sort_window()
        for name, table in self._tables.items():
            for key in table:
                raise MappingError(self._path, f"{name}.{key}", "unknown key")
        return found

    def _check(self, holds: object, where: str, what: str) -> None:
        if not holds:
            raise MappingError(self._path, where, what)

    def _take[T](self, table: str, key: str, kind: type[T], default: T) -> T:
        value = self._tables.get(table, {}).pop(key, default)
        self._check(type(value) is kind, f"{table}.{key}", f"must be {kind.__name__}, is {type(value).__name__}")
        return value  # type: ignore[no-any-return]

    def _time_format(self) -> EventTime:
        value = self._tables.get("time", {}).pop("format", "ms")
        formats = [value] if isinstance(value, str) else value
        good = isinstance(formats, list) and formats and all(isinstance(one, str) for one in formats)
        self._check(good, "time.format", "must be a format or a list of formats, such as ms, s or iso")
        try:
            return EventTime(formats)
        except TimeFormatError as error:
            raise MappingError(self._path, "time.format", str(error)) from error

    def _lists(self) -> tuple[tuple[str, ...], frozenset[tuple[str, ...]]]:
        """Return the field whose elements are events, and those of whose elements the first one counts."""
        lists = self._tables.pop("lists", {})
        for field, meaning in lists.items():
            self._check(meaning in ("each", "first"), f"lists.{field}", 'must be "each" or "first"')
        each = [tuple(field.split(".")) for field, meaning in lists.items() if meaning == "each"]
        self._check(len(each) <= 1, "lists", 'only one field can be "each"')
        firsts = frozenset(tuple(field.split(".")) for field, meaning in lists.items() if meaning == "first")
        return (each[0] if each else ()), firsts

    def _sort_window(self) -> int | None:
        value = self._tables.get("order", {}).pop("sort_window", 0)
        if value == "auto":
            return None
        good = type(value) is int and 0 <= value <= MAX_SORT_WINDOW
        self._check(good, "order.sort_window", f'must be 0 to {MAX_SORT_WINDOW}, or "auto"')
        return int(value)

    def _names(self) -> dict[str, Fields]:
        names = self._take("contents", "names", dict, {})
        return {name: self._parse_fields(f"contents.names.{name}", value) for name, value in names.items()}

    def _fields(self, table: str, key: str, *, required: bool) -> Fields:
        fields = self._parse_fields(f"{table}.{key}", self._tables.get(table, {}).pop(key, []))
        self._check(fields or not required, f"{table}.{key}", "is missing; name the field of the log that holds it")
        return fields

    def _parse_fields(self, where: str, value: Any) -> Fields:
        names = [value] if isinstance(value, str) else value
        good = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
        self._check(good, where, "must be the name of a field or a list of names")
        return tuple(tuple(name.split(".")) for name in names)


@dataclasses.dataclass(slots=True)
class _Stream:
    session: str
    last_ms: int
    page_id: str = ""  # the open page


class StreamOrder:
    """The order of events in each stream: its latest time, to refuse older events, and its open page, to exit it.

    With `derive`, an event that opens a page is preceded by a page_enter unless it is one, and a page is exited by an
    event on another page (at its time), by a new session, a silence of more than `gap_s`, or the log's end (at the time
    of the page's last event). So each page_exit has its page_enter, and a stream is on one page at a time.
    """

    def __init__(self, *, derive: bool, gap_s: float, max_streams: int = MAX_STREAMS) -> None:
        self._derive = derive
        self._gap_ms = gap_s * 1000
        self._max_streams = max_streams
        self._streams: collections.OrderedDict[str, _Stream] = collections.OrderedDict()

    def is_late(self, mapped: Mapped) -> bool:
        """Return whether the event is older than an event of its stream that was fed before."""
        stream = self._streams.get(mapped.stream)
        return stream is not None and mapped.event.ts_ms < stream.last_ms

    def feed(self, mapped: Mapped) -> list[tuple[str, Event]]:
        """Return the event with the derived enters and exits around it, each with its stream.

        Raises:
            EventError: an enter or exit has an empty page id, and pages are derived.
        """
        event = mapped.event
        stream = self._streams.get(mapped.stream)
        if self._derive and event.event_id in (PAGE_ENTER, PAGE_EXIT) and not event.page_id:
            raise EventError("page_id", f"is empty in a {event.event_id}")
        events: list[tuple[str, Event]] = []
        if stream is None:
            stream = self._streams[mapped.stream] = _Stream(mapped.session, event.ts_ms)
            events += self._forget_silent()
        self._streams.move_to_end(mapped.stream)
        if self._derive:
            events += [(mapped.stream, one) for one in self._with_pages(stream, mapped)]
        else:
            events.append((mapped.stream, event))
        stream.last_ms = event.ts_ms
        return events

    def _with_pages(self, stream: _Stream, mapped: Mapped) -> Iterator[Event]:
        event = mapped.event
        if mapped.session != stream.session or event.ts_ms - stream.last_ms > self._gap_ms:
            yield from _exit(stream, stream.last_ms)
        stream.session = mapped.session
        if event.page_id and (event.page_id != stream.page_id or event.event_id == PAGE_ENTER):
            yield from _exit(stream, event.ts_ms)
            stream.page_id = event.page_id
            if event.event_id != PAGE_ENTER:
                yield Event(PAGE_ENTER, event.page_id, event.ts_ms, {"derived": True})
        yield Event(event.event_id, stream.page_id, event.ts_ms, event.contents)
        if event.event_id == PAGE_EXIT:
            stream.page_id = ""

    def _forget_silent(self) -> Iterator[tuple[str, Event]]:
        while len(self._streams) > self._max_streams:
            name, stream = self._streams.popitem(last=False)
            yield from ((name, event) for event in _exit(stream, stream.last_ms))

    def finish(self) -> Iterator[tuple[str, Event]]:
        """Yield the exits of the pages that are still open."""
        for name, stream in self._streams.items():
            yield from ((name, event) for event in _exit(stream, stream.last_ms))


def _exit(stream: _Stream, ts_ms: int) -> Iterator[Event]:
    if stream.page_id:
        yield Event(PAGE_EXIT, stream.page_id, ts_ms, {"derived": True})
        stream.page_id = ""
