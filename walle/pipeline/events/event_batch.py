"""A batch of live events in JSON, of which some cannot be read: the others are events, and those are set aside.

`Event.list_from_json` reads a batch at once, in C++. Only a batch with a fault is cut into single events here. In JSON
lines an event ends with its last brace, or before the next line that begins with `{` or, indented, with
`{"event_id"`. In a list it ends before the next comma outside of braces, so that an event without its last brace takes
those after it along.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import NamedTuple

from walle.pipeline.events.event import Event, EventError

MAX_TEXT_CHARS = 1_000  # characters kept of the text of an event that is set aside
_TOKEN = re.compile(rb'"(?:[^"\\\n]|\\[^\n])*+"|[{}\[\],"]|\n(?=\{|[ \t]+\{[ \t]*"event_id")')
_SPACE = re.compile(rb"[ \t\r\n]*")
_PLACE = re.compile(r"event 0: byte (\d+) of the JSON: ")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RejectedEvent:
    """An event that could not be read: the `number`-th of its batch, from 0 on, at this byte of it.

    `text` are its first MAX_TEXT_CHARS characters.
    """

    number: int
    byte: int
    size_bytes: int
    reason: str
    text: str

    @property
    def where(self) -> str:
        return f"event {self.number}, byte {self.byte}"


class EventBatch(NamedTuple):
    """The events of a batch, and those that were set aside."""

    events: list[Event]
    rejected: list[RejectedEvent]


def read_batch(json: bytes) -> EventBatch:
    """Return the events of a JSON list of objects, or of JSON lines, and those that cannot be read.

    Raises:
        EventError: it begins neither with [ nor with {, or is more than 256 MiB.
    """
    try:
        return EventBatch(Event.list_from_json(json), [])
    except EventError as error:
        start = _end_of_space(json, 0)
        if json[start : start + 1] not in (b"[", b"{") or error.where == "events":
            raise
    batch = EventBatch([], [])
    pieces = _elements(json, start + 1) if json.startswith(b"[", start) else _lines(json, start)
    for number, (first, end) in enumerate(pieces):
        piece = json[first:end].rstrip()
        try:
            batch.events.append(_event_of(piece))
        except EventError as error:
            place = _PLACE.match(str(error))
            byte = first + (int(place[1]) if place else 0)
            reason = str(error)[place.end() :] if place else str(error).replace(" of event 0 ", " ")
            size_bytes, text = len(piece), _text_of(piece)
            rejected = RejectedEvent(number=number, byte=byte, size_bytes=size_bytes, reason=reason, text=text)
            batch.rejected.append(rejected)
    return batch


def rejected_message(message: bytes, reason: str) -> RejectedEvent:
    """Return a whole message as one event that could not be read."""
    return RejectedEvent(number=0, byte=0, size_bytes=len(message), reason=reason, text=_text_of(message))


def _text_of(piece: bytes) -> str:
    return piece[: 4 * MAX_TEXT_CHARS].decode(errors="replace")[:MAX_TEXT_CHARS]


def _event_of(piece: bytes) -> Event:
    if not piece.startswith(b"{"):
        raise EventError("event", "must be an object")
    events = Event.list_from_json(piece)
    if len(events) != 1:
        raise EventError("event", "has no comma behind it")
    return events[0]


def _end_of_space(json: bytes, at: int) -> int:
    space = _SPACE.match(json, at)
    return at if space is None else space.end()


def _lines(json: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each object, and of what stands between objects."""
    while at < len(json):
        end = _end_of_object(json, at) if json.startswith(b"{", at) else _end_of_line(json, at)
        yield at, end
        at = _end_of_space(json, end)


def _end_of_object(json: bytes, start: int) -> int:
    """Return the end of the object, or of the line before the next one where its last brace is missing."""
    depth = 0
    for token in _TOKEN.finditer(json, start):
        match token[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
                if depth == 0:
                    return token.end()
            case b'"':  # a text without an end
                return _end_of_line(json, token.start())
            case b"\n":
                return token.start()
    return len(json)


def _end_of_line(json: bytes, at: int) -> int:
    end = json.find(b"\n", at)
    return len(json) if end < 0 else end


def _elements(json: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each element of a list that begins before `at`, and of what follows the list."""
    start, depth = _end_of_space(json, at), 0
    for token in _TOKEN.finditer(json, start):
        match token[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]" if depth:
                depth -= 1
            case b"," if not depth:
                yield start, token.start()
                start = _end_of_space(json, token.end())
            case b"]":
                if token.start() > start:
                    yield start, token.start()
                start = _end_of_space(json, token.end())
                break
    if start < len(json):
        yield start, len(json)
