"""Reader of a cloud's features for people: stored uploads by task, topic, device and time, in bounded pages."""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from walle.base import plain
from walle.base.plain_json import to_json
from walle.engine_ext._core import packed_values
from walle.errors import ConfigError
from walle.pipeline.ingest.store.partitions import PARTITIONS, partition
from walle.pipeline.ingest.store.upload_columns import UploadColumns, upload_columns
from walle.pipeline.ingest.store.upload_store import UploadStore, is_cut
from walle.pipeline.tunnel.received import Received
from walle.protocol import UNKNOWN_VERSION

MAX_PAGE = 10_000  # features
MAX_LATEST = 1_000
MAX_PAGE_BYTES = 4 << 20  # payload bytes of a page, but for its last upload
_WINDOW = 10_000  # positions of one read
_READ = 500  # uploads of one read
_MAX_MISSES = 50  # reads of a page that find nothing
_MAX_TOPICS = 500  # topics of a task that the database selects; of a task with more, they are selected here
_MAX_VALUES = 1 << 19  # limit of a decoded payload, with values in containers: 8 MB of empty lists take 500 MB
_PAGE_FIELDS = ("page", "page_id")

type Allowed = Callable[[str], bool]
"""Whether features of a topic may be read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureFilter:
    """Which features to read: those of a task (`SCENARIO/TASK`), a topic, a device and a version, empty for any.

    The version is that of the task which made them, or UNKNOWN_VERSION. And those received from `since_ms` on and
    before `until_ms`, by the cloud's clock, in milliseconds since the epoch.

    Raises:
        ConfigError: the task is not named in full, or the time ends before it begins.
    """

    task: str = ""
    topic: str = ""
    device: str = ""
    version: str = ""
    since_ms: int | None = None
    until_ms: int | None = None

    def __post_init__(self) -> None:
        if self.task and (self.task.count("/") != 1 or not all(self.task.split("/"))):
            raise ConfigError(f"task {self.task[:200]!r} must be named in full: SCENARIO/TASK, such as shop/visits")
        if self.since_ms is not None and self.until_ms is not None and self.until_ms <= self.since_ms:
            raise ConfigError("the time until which features are read is not after the time since which they are")

    def matches(self, received: Received) -> bool:
        return (
            (not self.device or received.device_id == self.device)
            and (not self.topic or received.topic == self.topic)
            and (not self.version or (received.version or UNKNOWN_VERSION) == self.version)
            and (not self.task or task_of(received.topic) == self.task)
            and (self.since_ms is None or received.received_ms >= self.since_ms)
            and (self.until_ms is None or received.received_ms < self.until_ms)
        )


class FeaturePage(NamedTuple):
    """Uploads with their positions, in the order of receipt; `feature_row` shows one.

    The next page is after position `after`; `more`: there may be one. `head` is the store's highest position, below
    `after` if the store went back in time.
    """

    uploads: list[tuple[int, Received]]
    after: int
    head: int
    more: bool


class ColumnPage(NamedTuple):
    """Uploads in columns; the rest as in `FeaturePage`."""

    columns: UploadColumns
    after: int
    head: int
    more: bool


def task_of(topic: str) -> str:
    """Return the task that a topic belongs to, `scenario/task`: its first two parts; "" if it has fewer."""
    parts = topic.split("/", 2)
    return "/".join(parts[:2]) if len(parts) > 1 else ""


def feature_row(position: int, received: Received) -> dict[str, Any]:
    """Return a feature as JSON: position, time, device, task, version, topic, page, sent_ms, received_ms, payload.

    `time` is that of receipt in ISO 8601, UTC. `page` is the text `page` or `page_id` of a payload that is a table,
    else "". `version` is that of the task which made the feature, "" if unknown. A payload that cannot be decoded is
    None, and `error` says why.
    """
    payload, error = decoded_payload(received.payload)
    row = {
        "position": position,
        "time": iso_time(received.received_ms),
        "device": received.device_id,
        "task": task_of(received.topic),
        "version": received.version,
        "topic": received.topic,
        "page": page_of(payload),
        "sent_ms": received.sent_ms,
        "received_ms": received.received_ms,
        "payload": payload,
    }
    return {**row, "error": error} if error else row


def decoded_payload(data: bytes) -> tuple[Any, str | None]:
    """Return a payload as JSON; None where it cannot be decoded, and the reason."""
    if (values := packed_values(data)) > _MAX_VALUES:
        return None, f"the payload has {values} values, more than {_MAX_VALUES}"
    try:
        return to_json(plain.decode(data)), None
    except (plain.PlainDataError, TypeError, RecursionError) as fault:
        return None, str(fault)


def page_of(payload: Any) -> str:
    """Return the text `page` or `page_id` of a payload that is a table, else ""."""
    if isinstance(payload, dict):
        for key in _PAGE_FIELDS:
            if isinstance(value := payload.get(key), str):
                return value
    return ""


def iso_time(ms: int) -> str:
    """Return milliseconds since the epoch as a time of ISO 8601 in UTC; of a year that has none, the number."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(ms)


class FeatureReader:
    """Pages of the features that a filter selects and `allowed` permits. Each call has bounded time and memory.

    Positions grow in the order of receipt. The times of receipt grow with them but where the cloud's clock was set
    back: there `since_ms` and `until_ms` find the features by their own times among those between the first position
    that the times give and the last.
    """

    def __init__(self, store: UploadStore, wanted: FeatureFilter, allowed: Allowed | None = None) -> None:
        self._store = store
        self._wanted = wanted
        self._allowed: Allowed = allowed or (lambda _: True)
        self._takes_all = allowed is None and wanted == FeatureFilter()

    async def page(self, after: int, limit: int) -> FeaturePage:
        """Return at most `limit` features after a position; fewer where they are large or few, with `more` true.

        Raises:
            IngestError: the store cannot be read.
        """
        head, end = await self._bounds()
        after = after or await self._start(head)
        uploads: list[tuple[int, Received]] = []
        topics, misses, size_bytes = await self._topics(), 0, 0
        while after < end and len(uploads) < limit and size_bytes < MAX_PAGE_BYTES and misses < _MAX_MISSES:
            found, after = await self._read(topics, after, end, min(_READ, limit - len(uploads)))
            misses += not found
            found_bytes = sum(len(received.payload) for _, received in found)
            if size_bytes + found_bytes < MAX_PAGE_BYTES:
                uploads += found
                size_bytes += found_bytes
                continue
            for number, (position, received) in enumerate(found):
                if size_bytes >= MAX_PAGE_BYTES:
                    after = found[number - 1][0]
                    break
                uploads.append((position, received))
                size_bytes += len(received.payload)
        return FeaturePage(uploads, after, head, more=after < end)

    async def columns(self, after: int, limit: int) -> ColumnPage:
        """Return a page in columns; one of all features is read at less cost. The bounds are those of `page`.

        Raises:
            IngestError: as `page`.
        """
        if not self._takes_all:
            page = await self.page(after, limit)
            return ColumnPage(upload_columns(page.uploads), page.after, page.head, page.more)
        head = await self._store.head()
        found = await self._store.columns(after, head, limit, MAX_PAGE_BYTES)
        is_more = len(found.positions) >= limit or sum(map(len, found.payloads)) >= MAX_PAGE_BYTES
        after = found.positions[-1] if is_more else max(after, head)
        return ColumnPage(found, after, head, more=after < head)

    async def latest(self, count: int) -> FeaturePage:
        """Return the latest features, at most `count`, of the last 500,000 uploads at most; `after` is the head.

        Raises:
            IngestError: as `page`.
        """
        head, end = await self._bounds()
        start = await self._start(head)
        topics = await self._topics()
        kept: collections.deque[tuple[int, Received]] = collections.deque()
        first = end
        for _ in range(_MAX_MISSES):
            if first <= start or len(kept) >= count or _size(kept) >= MAX_PAGE_BYTES:
                break
            newer, kept, upto = kept, collections.deque(maxlen=count), first
            after = first = max(start, first - _WINDOW)
            while after < upto:
                found, after = await self._read(topics, after, upto, _READ)
                kept.extend(found)
                while len(kept) > 1 and _size(kept) > MAX_PAGE_BYTES:
                    kept.popleft()
            kept = collections.deque([*kept, *newer][-count:])
        return FeaturePage(list(kept), head, head, more=False)

    async def _bounds(self) -> tuple[int, int]:
        """Return the head, and the last position that the filter's time may select."""
        head = await self._store.head()
        until_ms = self._wanted.until_ms
        return head, head if until_ms is None else await self._before(until_ms, head)

    async def _start(self, head: int) -> int:
        """Return the position after which the filter's time may select."""
        since_ms = self._wanted.since_ms
        return 0 if since_ms is None else await self._before(since_ms, head)

    async def _before(self, ms: int, head: int) -> int:
        """Return the last position whose upload was received before `ms`, by bisection; 0 if there is none."""
        low, high = 0, head  # uploads up to `low` are older, those after `high` are not
        while low < high:
            middle = (low + high) // 2
            found = await self._store.query(after=middle, limit=1)
            if found and found[0][0] <= high and found[0][1].received_ms < ms:
                low = found[0][0]
            else:
                high = middle
        return low

    async def _topics(self) -> Sequence[str] | None:
        """Return the topics to select, None for all of them or for more than _MAX_TOPICS."""
        wanted = self._wanted
        if wanted.topic:
            return [wanted.topic]
        if not wanted.task:
            return None
        below = await self._store.topics(after=f"{wanted.task}/", limit=_MAX_TOPICS + 1)
        found = [wanted.task, *(topic for topic in below if task_of(topic) == wanted.task)]
        return found if len(found) <= _MAX_TOPICS else None

    async def _read(
        self, topics: Sequence[str] | None, after: int, end: int, limit: int
    ) -> tuple[list[tuple[int, Received]], int]:
        """Return selected uploads after a position and up to `end`, and the position up to which were read."""
        if topics is not None and len(topics) == 1 and not self._wanted.device:  # the index of topics finds them
            rows = await self._store.query(topic=topics[0], after=after, limit=limit)
            upto = end
        else:
            parts = [partition(self._wanted.device)] if self._wanted.device else list(range(PARTITIONS))
            upto = min(end, after + _WINDOW)
            rows = await self._store.read(parts, topics, after, upto, limit)
            if not rows:
                following = await self._store.query(after=upto, limit=1)  # positions of deleted uploads are skipped
                upto = min(end, following[0][0] - 1) if following else end
        if is_cut(rows, limit):
            upto = min(end, rows[-1][0])
        if not rows or (self._takes_all and rows[-1][0] <= end):
            return rows, upto
        found = [(at, one) for at, one in rows if at <= end and self._wanted.matches(one) and self._allowed(one.topic)]
        return found, upto


def _size(rows: "collections.deque[tuple[int, Received]]") -> int:
    return sum(len(received.payload) for _, received in rows)
