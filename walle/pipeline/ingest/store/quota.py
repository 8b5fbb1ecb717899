"""Quota of a device in a store of uploads: the bytes and the topics that one device may have stored.

It protects the disk and the tables of topics from a forged device with a valid credential. The store's tables have no
sums by device, and honest devices are to pay nothing for them: what a device stores is counted in memory, and its
stored uploads are read and summed in the background whenever it has stored a sixteenth of the quota since the last
time. So a device may exceed the quota by an eighth and one batch, for each process that it connects to and for each
restart. Where a process has more devices than it counts, so may one that stores no more than half of them do.
"""

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import NamedTuple, Self

from walle.base.clock import Clock
from walle.errors import ConfigError, PipelineError
from walle.pipeline.features.put import MAX_TOPIC_CHARS
from walle.pipeline.ingest.store.byte_size import parse_size
from walle.pipeline.tunnel.received import Received

_LOG = logging.getLogger(__name__)

OVERHEAD_BYTES = 100  # size of an upload without payload and topic: its row and its share of the indexes
_PARTS = 16  # parts of the quota: after one of them a device is measured, after two it waits for that
_MAX_DEVICES = 20_000  # devices counted at once; above, those that have stored least are forgotten
_MAX_TOPICS = 20_000  # topics known to exist; above, those that were found first are forgotten
_MEASURED_AT_ONCE = 1  # devices: their reads must not delay those of consumers
_UNMEASURED = "the device has stored much at once, and is being measured"
_LOOK_AGAIN_S = 600.0  # interval between two checks of a device over its quota: retention may have deleted uploads


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceQuota:
    """Bounds on the stored uploads of one device. Bytes are of payloads and topics, and OVERHEAD_BYTES for each upload.

    Raises:
        ConfigError: a bound is too small for an honest device.
    """

    size_bytes: int = 10 * 10**9
    topics: int = 1000

    def __post_init__(self) -> None:
        if self.size_bytes < 10**6 or self.topics < 1:
            what = f"{self.size_bytes} bytes and {self.topics} topics"
            raise ConfigError(f"the quota of a device, {what}, is too small; give it 1MB and 1 topic at least")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse SIZE or SIZE,TOPICS, such as 10GB,1000; an empty text is the default.

        Raises:
            ConfigError: the text is none of these.
        """
        size, _, topics = text.partition(",")
        try:
            size_bytes = parse_size(size) if text else cls.size_bytes
            count = int(topics) if topics else cls.topics
        except ValueError as error:
            what = f"{text!r} is not the quota of a device; write a size, and the number of topics: 10GB,1000"
            raise ConfigError(what) from error
        return cls(size_bytes=size_bytes, topics=count)


class StoredPart(NamedTuple):
    """A part of a device's stored uploads: their topics and size."""

    topics: Collection[str]
    size_bytes: int


type Measure = Callable[[str], AsyncIterator[StoredPart]]


@dataclasses.dataclass(slots=True)
class _Account:
    """Of a device, since its stored uploads were measured."""

    size_bytes: int = 0
    topics: int = 0  # new topics, which were not known to exist


@dataclasses.dataclass(slots=True)
class _Refusal:
    reason: str
    measured_s: float


class QuotaKeeper:
    """The devices that may store nothing now. `measure` yields a device's stored uploads, in parts of short reads."""

    def __init__(self, quota: DeviceQuota, measure: Measure, clock: Clock) -> None:
        self.quota = quota
        self._measure = measure
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._known: dict[str, None] = {}  # topics
        self._refusals: dict[str, _Refusal] = {}
        self._measuring: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Semaphore(_MEASURED_AT_ONCE)

    def refused(self, batch: Sequence[Received]) -> dict[str, str]:
        """Return the devices of a batch that may store nothing now, each with the reason."""
        if not self._refusals:
            return {}
        now_s = self._clock.monotonic()
        reasons: dict[str, str] = {}
        for device_id in {received.device_id for received in batch} & self._refusals.keys():
            refusal = self._refusals[device_id]
            reasons[device_id] = refusal.reason
            if now_s - refusal.measured_s >= _LOOK_AGAIN_S:
                self._start(device_id)
        return reasons

    def note(self, fresh: Sequence[Received]) -> None:
        """Count uploads that were stored."""
        accounts, known = self._accounts, self._known
        part_bytes, part_topics = self.quota.size_bytes // _PARTS, max(1, self.quota.topics // _PARTS)
        for received in fresh:
            account = accounts.get(received.device_id)
            if account is None:
                account = accounts[received.device_id] = _Account()
            topic = received.topic[:MAX_TOPIC_CHARS]
            account.size_bytes += len(received.payload) + len(topic) + OVERHEAD_BYTES
            if topic not in known:
                known[topic] = None
                account.topics += 1
            if account.size_bytes >= part_bytes or account.topics >= part_topics:
                self._start(received.device_id)
                if account.size_bytes >= 2 * part_bytes or account.topics >= 2 * part_topics:
                    self._refusals.setdefault(received.device_id, _Refusal(_UNMEASURED, self._clock.monotonic()))
        self._forget()

    def _forget(self) -> None:
        """Forget half of a table that has grown too large. The devices that fill the disk stay."""
        accounts, known = self._accounts, self._known
        if len(accounts) > _MAX_DEVICES:
            by_share = sorted(accounts, key=lambda device_id: self._share(accounts[device_id]))
            for device_id in by_share[: len(by_share) // 2]:
                del accounts[device_id]
        if len(known) > _MAX_TOPICS:
            for topic in list(itertools.islice(known, len(known) // 2)):
                del known[topic]

    def _share(self, account: _Account) -> float:
        """Return the part of the quota that a device has stored since it was measured."""
        return max(account.size_bytes / self.quota.size_bytes, account.topics / self.quota.topics)

    async def aclose(self) -> None:
        """Stop measuring."""
        tasks = list(self._measuring.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, device_id: str) -> None:
        if device_id not in self._measuring:
            self._measuring[device_id] = asyncio.create_task(self._look(device_id), name="measure of a device")

    async def _look(self, device_id: str) -> None:
        """Measure what a device has stored, and refuse it or not."""
        try:
            async with self._turn:
                measured = dataclasses.replace(self._accounts.get(device_id, _Account()))
                try:
                    reason = await self._reason(device_id)
                except PipelineError as error:
                    _LOG.warning("device %r is not measured: %s", device_id, error)
                    if (refusal := self._refusals.get(device_id)) is not None and refusal.reason == _UNMEASURED:
                        del self._refusals[device_id]  # the device's next uploads start another try
                    return
            if (account := self._accounts.pop(device_id, None)) is not None:
                size_bytes, topics = account.size_bytes - measured.size_bytes, account.topics - measured.topics
                self._accounts[device_id] = _Account(max(0, size_bytes), max(0, topics))
            before = self._refusals.pop(device_id, None)
            if reason:
                self._refusals[device_id] = _Refusal(reason, self._clock.monotonic())
                if before is None or before.reason != reason:
                    _LOG.error("device %r: %s", device_id, reason)
        finally:
            del self._measuring[device_id]

    async def _reason(self, device_id: str) -> str:
        """Return why a device may store no more, empty if it may."""
        size_bytes, topics = 0, set[str]()
        async for part in self._measure(device_id):
            size_bytes += part.size_bytes
            topics.update(part.topics)
            if size_bytes >= self.quota.size_bytes:
                kept = f"{self.quota.size_bytes} bytes"
            elif len(topics) > self.quota.topics:
                kept = f"{self.quota.topics} topics"
            else:
                continue
            return f"the cloud stores no more than {kept} of a device; an operator can delete some, or raise the quota"
        return ""


def stored_part(rows: Sequence[tuple[str, int, int, int]], limit: int) -> tuple[StoredPart, int | None]:
    """Return a part of a stream of rows (topic, uploads, bytes, last number), and its last number.

    The number is None if there are fewer uploads than `limit`, so that no more follow.
    """
    uploads = sum(row[1] for row in rows)
    size_bytes = sum(row[2] + row[1] * (len(row[0]) + OVERHEAD_BYTES) for row in rows)
    last = max(row[3] for row in rows) if uploads >= limit else None
    return StoredPart([row[0] for row in rows], size_bytes), last


PART_QUERY = (
    "SELECT topic, count(*), sum(size), max(seq) FROM (SELECT topic, seq, length({payload}) AS size"
    " FROM {uploads} WHERE stream = {0} AND seq > {1} ORDER BY seq LIMIT {2}) AS part GROUP BY topic"
)
