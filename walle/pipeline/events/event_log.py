"""Event logs: the events of a file of JSON lines or CSV, plain or gzip.

A line that is broken, out of order within its stream, duplicated or enormous is counted, reported by its number, and
skipped. Memory is bounded for every file.
"""

import bisect
import collections
import csv
import dataclasses
import gzip
import heapq
import io
import json
import pathlib
import re
import zlib
from collections.abc import Container, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from walle.errors import ConfigError
from walle.pipeline.events.event import MAX_EVENT_BYTES, Event, EventError
from walle.pipeline.events.event_faults import DuplicateWindow, Fault, digest_of
from walle.pipeline.events.event_mapping import MAX_SORT_WINDOW, MAX_STREAMS, EventMapping, Mapped, StreamOrder

MAX_REPORTS = 100
_DUPLICATE_WINDOW = 65_536  # ids remembered
_MAX_RECORD_LINES = 100  # lines that one quoted CSV record may span
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a surrogate pair, or both halves, which are one character


class EventLogError(ConfigError):
    """A log that cannot be read at all. `path` is the file."""

    def __init__(self, path: pathlib.Path, what: str) -> None:
        super().__init__(f"event log {path}: {what}")
        self.path = path


@dataclasses.dataclass(frozen=True, slots=True)
class LineReport:
    """One skipped line, counted from 1."""

    fault: Fault
    line: int
    reason: str


class LoggedEvent(NamedTuple):
    """One event of the log. `position` counts events; `line` is its line, 0 for the page exits at the log's end."""

    position: int
    line: int
    stream: str
    event: Event


class NeededWindow:
    """The smallest `sort_window` that puts the events of each stream of a log in order, as far as it was read.

    A window of n holds the n latest events so far, by time. An event comes in order if the earliest one of its stream
    that is later is still held. Of MAX_SORT_WINDOW events and as many more, times are remembered.
    """

    def __init__(self) -> None:
        self.size = 0
        self._times: list[int] = []  # the latest ones, ascending
        self._by_stream: dict[str, list[int]] = {}

    def add(self, stream: str, ts_ms: int) -> None:
        """Note the next event."""
        own = self._by_stream.setdefault(stream, [])
        if (later := bisect.bisect_right(own, ts_ms)) < len(own):
            held = len(self._times) - bisect.bisect_left(self._times, own[later])
            self.size = max(self.size, held)
        bisect.insort(own, ts_ms)
        bisect.insort(self._times, ts_ms)
        if len(self._times) > 2 * MAX_SORT_WINDOW + 2:
            self._forget()

    def _forget(self) -> None:
        """Forget the earliest times; of a stream, the latest of these stays, which no window can hold."""
        del self._times[: -MAX_SORT_WINDOW - 1]
        for stream, own in list(self._by_stream.items()):
            del own[: max(0, bisect.bisect_left(own, self._times[0]) - 1)]
            if len(self._by_stream) > MAX_STREAMS and own[-1] < self._times[0]:
                del self._by_stream[stream]

    def advice(self) -> str:
        if self.size > MAX_SORT_WINDOW:
            return f"they are more than {MAX_SORT_WINDOW:,} events out of their order: sort the file by time"
        return f'the mapping\'s [order] sort_window = {self.size} or "auto" would keep those that are out of order'


class _BrokenRecord(Exception):  # noqa: N818 (never leaves this module)
    pass


class EventLog:
    """A log file. Each iteration reads it again and yields the same positions, so that a crashed player can resume.

    Args:
        path: a file whose name ends in .jsonl, .json, .ndjson or .csv, or one of those with .gz.
        mapping: the mapping of its fields, or the TOML file of one; None for the fields of `Event`, with `stream` and
            `id` if a line has them.
        streams: yield only events of these streams, None for all. Positions are the same in both cases.

    Raises:
        EventLogError: the file does not exist, has another ending, is CSV without a mapping, or, when it is read, lacks
            a column that the mapping names.
        MappingError: the mapping cannot be used.
    """

    def __init__(
        self,
        path: str | pathlib.Path,
        mapping: EventMapping | str | pathlib.Path | None = None,
        *,
        streams: Container[str] | None = None,
    ) -> None:
        self.path = pathlib.Path(path)
        suffixes = self.path.suffixes
        self._gzip = suffixes[-1:] == [".gz"]
        kind = suffixes[-2:-1] if self._gzip else suffixes[-1:]
        if kind not in ([".jsonl"], [".json"], [".ndjson"], [".csv"]):
            raise EventLogError(self.path, "must end in .jsonl or .csv, with or without .gz")
        self._csv = kind == [".csv"]
        if self._csv and mapping is None:
            raise EventLogError(self.path, "CSV needs a mapping file that names its columns")
        if not self.path.is_file():
            raise EventLogError(self.path, "does not exist or is not a file")
        if mapping is None:
            mapping = EventMapping()
        self._mapping = mapping if isinstance(mapping, EventMapping) else EventMapping.load(mapping)
        self._streams = streams
        self._found_window: int | None = None
        self._clear()

    def _clear(self) -> None:
        self.lines = 0
        self.events = 0
        self.skipped: dict[Fault, int] = dict.fromkeys(Fault, 0)
        self.reports: list[LineReport] = []
        self._seen = DuplicateWindow(_DUPLICATE_WINDOW)
        self._needed = NeededWindow()

    def __iter__(self) -> Iterator[tuple[int, Event]]:
        """Yield (position, event). The counts and reports of this object are those of the latest iteration."""
        return ((record.position, record.event) for record in self.records())

    def skipped_text(self) -> str:
        """Return what the latest iteration skipped, and the first reason; "" for nothing."""
        counts = [f"{count:,} {fault}" for fault, count in self.skipped.items() if count]
        if not counts:
            return ""
        text = f"{self.path.name}: {sum(self.skipped.values()):,} skipped ({', '.join(counts)})"
        if self.reports:
            text += f"; line {self.reports[0].line}: {self.reports[0].reason}"
        if self.skipped[Fault.OUT_OF_ORDER]:
            text += f"; {self._needed.advice()}"
        return text

    def stream_ids(self, limit: int = 10_000) -> list[str]:
        """Return the streams in the order they begin, at most `limit`; reads the whole log."""
        log = EventLog(self.path, self._mapping)
        found: dict[str, None] = {}
        for record in log.records():
            if len(found) == limit:
                break
            found.setdefault(record.stream)
        return list(found)

    def records(self, start: int = 0) -> Iterator[LoggedEvent]:
        """Yield the events from position `start` on.

        Raises:
            EventLogError: the file cannot be read, or lacks a column that the mapping names.
        """
        self._clear()
        order = StreamOrder(derive=self._mapping.derive_pages, gap_s=self._mapping.gap_s)
        position = 0
        for line, mapped in self._sorted(self._mapped()):
            for stream, event in self._in_order(order, line, mapped):
                if position >= start and (self._streams is None or stream in self._streams):
                    self.events += 1
                    yield LoggedEvent(position, line, stream, event)
                position += 1
        for stream, event in order.finish():
            if position >= start and (self._streams is None or stream in self._streams):
                self.events += 1
                yield LoggedEvent(position, 0, stream, event)
            position += 1

    # --- from lines to events -----------------------------------------------------------------------------------------

    def _skip(self, fault: Fault, line: int, reason: str) -> None:
        self.skipped[fault] += 1
        if len(self.reports) < MAX_REPORTS:
            self.reports.append(LineReport(fault, line, reason))

    def _mapped(self) -> Iterator[tuple[int, Mapped]]:
        try:
            with self._open() as file:
                for line, fields, digest in self._csv_lines(file) if self._csv else self._json_lines(file):
                    try:
                        for number, event_fields in enumerate(self._mapping.events(fields)):
                            yield from self._mapped_event(line, event_fields, digest, number)
                    except EventError as error:
                        self._skip(Fault.BROKEN, line, str(error))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self._skip(Fault.BROKEN, self.lines + 1, f"the compressed file ends or breaks here ({error})")
        except OSError as error:
            raise EventLogError(self.path, f"cannot be read ({error.strerror or error})") from error

    def _mapped_event(
        self, line: int, fields: Mapping[str, Any], digest: bytes, number: int
    ) -> Iterator[tuple[int, Mapped]]:
        """Yield the line's event of this number, counted from 0, unless it is skipped."""
        try:
            mapped = self._mapping.map(fields)
            mapped.event.size_bytes()
        except EventError as error:
            self._skip(Fault.ENORMOUS if error.where == "event" else Fault.BROKEN, line, str(error))
            return
        if number:  # a line with several events: equal ones need different digests
            digest = digest_of(digest + number.to_bytes(8))
        if self._is_duplicate(mapped, digest):
            self._skip(Fault.DUPLICATE, line, f"id {mapped.id}" if mapped.id else "equal to a line before it")
            return
        yield line, mapped

    def _is_duplicate(self, mapped: Mapped, digest: bytes) -> bool:
        key = digest_of(f"{mapped.stream}\0{mapped.id}".encode()) if mapped.id else digest
        if key in self._seen:
            return True
        self._seen.add(key)
        return False

    def _sorted(self, source: Iterator[tuple[int, Mapped]]) -> Iterator[tuple[int, Mapped]]:
        most = self._window()
        window: list[tuple[int, int, int, Mapped]] = []
        for number, (line, mapped) in enumerate(source):
            self._needed.add(mapped.stream, mapped.event.ts_ms)
            heapq.heappush(window, (mapped.event.ts_ms, number, line, mapped))
            if len(window) > most:
                _, _, first, earliest = heapq.heappop(window)
                yield first, earliest
        while window:
            _, _, first, earliest = heapq.heappop(window)
            yield first, earliest

    def _window(self) -> int:
        """Return the number of events to sort among."""
        if self._mapping.sort_window is not None:
            return self._mapping.sort_window
        if self._found_window is None:
            log = EventLog(self.path, dataclasses.replace(self._mapping, sort_window=0))
            collections.deque(log.records(), maxlen=0)
            self._found_window = min(log._needed.size, MAX_SORT_WINDOW)
        return self._found_window

    def _in_order(self, order: StreamOrder, line: int, mapped: Mapped) -> list[tuple[str, Event]]:
        if order.is_late(mapped):
            self._skip(Fault.OUT_OF_ORDER, line, f"{mapped.event.ts_ms} is before an event of its stream above it")
            return []
        try:
            return order.feed(mapped)
        except EventError as error:
            self._skip(Fault.BROKEN, line, str(error))
            return []

    # --- from bytes to lines ------------------------------------------------------------------------------------------

    def _open(self) -> BinaryIO:
        if self._gzip:
            return io.BufferedReader(gzip.open(self.path, "rb"))
        return self.path.open("rb")

    def _read_lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        """Yield each line that is neither empty nor enormous, with its number."""
        while line := file.readline(MAX_EVENT_BYTES + 2):
            self.lines += 1
            number = self.lines
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if len(line) <= MAX_EVENT_BYTES + 1:
                if line.strip():
                    yield number, line
                continue
            size_bytes = len(line)
            while not line.endswith(b"\n") and (line := file.readline(MAX_EVENT_BYTES)):
                size_bytes += len(line)
            self._skip(Fault.ENORMOUS, number, f"{size_bytes} bytes, more than {MAX_EVENT_BYTES}")

    def _json_lines(self, file: BinaryIO) -> Iterator[tuple[int, dict[str, Any], bytes]]:
        for number, line in self._read_lines(file):
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError) as error:
                self._skip(Fault.BROKEN, number, f"not JSON ({error})")
                continue
            if not isinstance(fields, dict):
                self._skip(Fault.BROKEN, number, f"must be an object, is {type(fields).__name__}")
                continue
            if _SURROGATE.search(line):
                fields = _whole(fields)
            yield number, fields, digest_of(line)

    def _csv_lines(self, file: BinaryIO) -> Iterator[tuple[int, dict[str, Any], bytes]]:
        """Yield each record's columns by name. A quote that never closes loses its own line, and no later one."""
        lines = self._read_lines(file)
        returned: collections.deque[tuple[int, bytes]] = collections.deque()
        header: list[str] = []
        while first := returned.popleft() if returned else next(lines, None):
            number, text = first
            more: list[tuple[int, bytes]] = []
            while text.count(b'"') % 2 and len(more) < _MAX_RECORD_LINES and len(text) <= MAX_EVENT_BYTES:
                if (following := returned.popleft() if returned else next(lines, None)) is None:
                    break
                more.append(following)
                text += following[1]
            try:
                row = _parse_csv(text, len(header))
            except _BrokenRecord as error:
                self._skip(Fault.BROKEN, number, str(error))
                returned.extendleft(reversed(more))
                continue
            if header:
                yield number, dict(zip(header, row, strict=True)), digest_of(text)
            else:
                header = row
                self._check_columns(header)

    def _check_columns(self, header: list[str]) -> None:
        for name, columns in self._mapping.columns:
            if not set(columns) & set(header):
                raise EventLogError(
                    self.path, f"has no column {' or '.join(columns)}, which the mapping names for {name}"
                )


def _parse_csv(text: bytes, columns: int) -> list[str]:
    """Return the columns of one record; with `columns` 0, any number of them."""
    try:
        rows = list(csv.reader(io.StringIO(text.decode(), newline=""), strict=True))
    except UnicodeDecodeError as error:
        raise _BrokenRecord(f"not UTF-8 ({error.reason} at byte {error.start})") from error
    except csv.Error as error:
        raise _BrokenRecord(f"not CSV ({error})") from error
    if len(rows) != 1:
        raise _BrokenRecord(f"{len(rows)} records in one line")
    if columns and len(rows[0]) != columns:
        raise _BrokenRecord(f"{len(rows[0])} columns, the header has {columns}")
    return rows[0]


def _whole(value: Any) -> Any:
    """Return a value of JSON with U+FFFD in the place of each lone surrogate, as the reader of live events does."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value
