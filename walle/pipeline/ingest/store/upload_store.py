"""Interface of the stores of uploads: durable, de-duplicated receipt, consumer groups, and retention.

`SqliteUploadStore` keeps uploads in one file, `PostgresUploadStore` in a PostgreSQL database. Both pass the same tests.
Any number of processes may use one store at once. A device's uploads are accepted from the process that it connected to
last: `resume` claims the device for its store object, and `accept` of any other one stores nothing of that device.
"""

import abc
import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from walle.base.clock import Clock
from walle.errors import PipelineError
from walle.pipeline.features.losses import LossCause
from walle.pipeline.ingest.store.partitions import PARTITIONS
from walle.pipeline.ingest.store.quota import DeviceQuota, QuotaKeeper, StoredPart
from walle.pipeline.ingest.store.receipt import MAX_READ_BYTES, Accepted, LossTotal, RecordedLoss, RefusedUpload
from walle.pipeline.ingest.store.upload_columns import UploadColumns, upload_columns, within_bytes
from walle.pipeline.tunnel.received import Received, ResumePoint
from walle.protocol import Hello

if TYPE_CHECKING:
    from walle.pipeline.ingest.store.consumer import Consumer

_PART_UPLOADS = 10_000  # limit of one read of a device's uploads

type Start = Literal["earliest", "latest"]


class IngestError(PipelineError):
    """The store of received uploads cannot be read or written.

    `may_pass`: the disk is full, or the database is busy or restarts; a retry may succeed.
    `of_contents`: the database refuses what it was given; others of the same batch can be stored.
    """

    def __init__(self, path: Path | str, what: str, *, may_pass: bool = False, of_contents: bool = False) -> None:
        super().__init__(f"received uploads in {path}: {what}")
        self.path = path
        self.what = what
        self.may_pass = may_pass
        self.of_contents = of_contents


class TopicSize(NamedTuple):
    """The stored uploads of a topic, and the bytes of their payloads."""

    uploads: int
    size_bytes: int


class Trimmed(NamedTuple):
    """Uploads that were deleted, the bytes of their payloads, and how many of them a group had not committed."""

    uploads: int
    size_bytes: int
    unconsumed: int


class GroupLag(NamedTuple):
    """The uploads after a group's least committed position, and the age of the oldest of them by time of receipt."""

    uploads: int
    oldest_ms: int | None


class UploadStore(abc.ABC):
    """The received uploads of a cloud. Used within `async with`, or between `start` and `close`.

    Each upload has a position: 1, 2, ... in the order of the commits. A reader that has seen position n sees no smaller
    one appear later. A cancelled call may still take effect; a batch is stored whole or not at all.

    Every method raises IngestError where the store cannot be used.
    """

    clock: Clock

    def __init__(self) -> None:
        self.generation = 0  # goes up when another file, such as a restored backup, has taken the store's place
        self._changed = asyncio.Event()
        self._quota: QuotaKeeper | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._quota is not None:
            await self._quota.aclose()
        await self.close()

    @abc.abstractmethod
    async def start(self) -> None:
        """Open the store. One that does not exist is made, or is an IngestError (see `open_uploads`)."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Wait for running calls, release this object's devices, and close. May be called twice; `start` may follow."""

    @abc.abstractmethod
    async def reopen(self) -> None:
        """Close the store and open what is at its place now."""

    # --- receipt ---

    def limit_devices(self, quota: DeviceQuota) -> None:
        """Store no more of a device than its quota, in this object; see `walle.pipeline.ingest.store.quota`."""
        self._quota = QuotaKeeper(quota, self.stored_parts, self.clock)

    async def accept(
        self, batch: Sequence[Received], foreign_topics: frozenset[tuple[str, str]] = frozenset()
    ) -> Accepted:
        """Store the new uploads of `batch` as `store_batch`, but not those of devices over their quota."""
        if self._quota is None:
            return await self.store_batch(batch, foreign_topics)
        if not (refused := self._quota.refused(batch)):
            accepted = await self.store_batch(batch, foreign_topics)
        else:
            within = [received for received in batch if received.device_id not in refused]
            accepted = await self.store_batch(within, foreign_topics) if within else Accepted({}, [])
            keys = dict.fromkeys(received[:2] for received in batch if received.device_id in refused)
            accepted = accepted._replace(over_quota=tuple((key, refused[key[0]]) for key in keys))
        self._quota.note(accepted.fresh)
        return accepted

    async def stored_parts(self, device_id: str) -> AsyncIterator[StoredPart]:
        """Yield the topics and sizes of a device's stored uploads, in parts of short reads."""
        for stream in await self._streams_of(device_id):
            after: int | None = 0
            while after is not None:
                part, after = await self._stream_part(stream, after, _PART_UPLOADS)
                yield part

    @abc.abstractmethod
    async def _streams_of(self, device_id: str) -> list[int]:
        """Return the streams of a device, one for each epoch."""

    @abc.abstractmethod
    async def _stream_part(self, stream: int, after: int, limit: int) -> tuple[StoredPart, int | None]:
        """Return topics and size of at most `limit` uploads after number `after`, and the last number.

        The number is None if there are no more.
        """

    @abc.abstractmethod
    async def store_batch(
        self, batch: Sequence[Received], foreign_topics: frozenset[tuple[str, str]] = frozenset()
    ) -> Accepted:
        """Store the new uploads of `batch` in one transaction and return the numbers to acknowledge.

        In each (device, epoch), numbers go up by one from the highest stored. Lower ones are duplicates and are
        dropped; those after a missing one are not stored. `highest` has every (device, epoch) of the batch but the
        `foreign` ones. Reports of lost uploads are recorded, and are not among the new uploads. So are uploads of
        `foreign_topics`, by device and topic: the device's numbers continue after them.
        """

    @abc.abstractmethod
    async def set_aside(self, received: Received, reason: str) -> Accepted | None:
        """Keep an upload whose contents `accept` refuses in the quarantine; return what `accept` would.

        The device's numbers continue after it, and it is recorded as a loss. None if the quarantine has no room for it:
        nothing is stored then.
        """

    @abc.abstractmethod
    async def refused(self) -> list[RefusedUpload]:
        """Return uploads in the quarantine, oldest first: all of each device that it returns, MAX_READ_BYTES at most.

        There are MAX_REFUSED altogether at most. For more, remove what was returned: `forget_refused(device_id)` of its
        devices.
        """

    @abc.abstractmethod
    async def refused_count(self) -> int:
        """Return how many uploads are in the quarantine."""

    @abc.abstractmethod
    async def forget_refused(self, device_id: str | None = None) -> None:
        """Delete the uploads in the quarantine, of one device or of all."""

    @abc.abstractmethod
    async def acked(self, device_id: str, epoch: str) -> int:
        """Return the highest durable number, 0 if there is none."""

    @abc.abstractmethod
    async def resume(self, hello: Hello) -> ResumePoint:
        """Claim a device, and return where its uploads continue: its highest durable number and the chain value there.

        If this store went back in time, so that the device's uploads up to `hello.acked` are not all here, they are
        recorded as lost, and the numbers continue after them. If the device went back to before an epoch that the store
        knows, that epoch's uploads are recorded as lost: the device makes them again, or does not have them.

        Raises:
            ProtocolError: the Hello holds values that no device sends, or the device has had MAX_EPOCHS epochs.
        """

    @abc.abstractmethod
    async def losses(self, device_id: str | None = None) -> list[RecordedLoss]:
        """Return the recorded losses, of one device or of all, oldest first.

        There are at most MAX_LOSSES of a device; further ones are in `loss_totals` only.
        """

    @abc.abstractmethod
    async def loss_totals(self, device_id: str | None = None) -> dict[LossCause, LossTotal]:
        """Return the total of each cause, of one device or of all."""

    @abc.abstractmethod
    async def count(self) -> int:
        """Return how many uploads are stored."""

    @abc.abstractmethod
    async def query(
        self, *, device_id: str | None = None, topic: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[tuple[int, Received]]:
        """Return at most `limit` uploads after position `after`, with their positions, in the order they were stored.

        There are fewer once their payloads have MAX_READ_BYTES. To continue, pass the last position as `after`.
        """

    # --- consumer groups ---

    def consume(
        self,
        group: str,
        *,
        topics: Collection[str] | None = None,
        start: Start = "earliest",
        batch_limit: int = 1000,
        lease_s: float = 30.0,
        poll_s: float = 0.1,
    ) -> "Consumer":
        """Return a new member of a consumer group: an async iterator of batches, each to be committed by its reader.

        Args:
            group: its members share the devices, and its position outlives them.
            topics: those to read; all if None.
            start: the position of a group that does not exist yet: the first upload, or the next.
            batch_limit: uploads of a batch at most.
            lease_s: a member that asks for no batch and commits none for as long loses its devices to the others.
            poll_s: the delay until uploads that another process stored are found.

        Raises:
            ConfigError: an argument has a value that means nothing.
        """
        from walle.pipeline.ingest.store.consumer import Consumer

        return Consumer(self, group, topics, start=start, batch_limit=batch_limit, lease_s=lease_s, poll_s=poll_s)

    @property
    def changed(self) -> asyncio.Event:
        """An event that is set when this object stores the next upload. Each such event is a new object."""
        return self._changed

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @abc.abstractmethod
    async def join_group(self, group: str, start: Start) -> None:
        """Make a consumer group if it does not exist."""

    @abc.abstractmethod
    async def balance(
        self, group: str, member: str, *, busy: Collection[int], now_ms: int, lease_ms: int
    ) -> dict[int, int]:
        """Renew a member's leases and move them towards its fair share; return its partitions' committed positions."""

    @abc.abstractmethod
    async def leave_group(self, group: str, member: str) -> None:
        """Release all partitions of a member."""

    @abc.abstractmethod
    async def head(self) -> int:
        """Return the highest position, 0 if nothing was ever stored."""

    @abc.abstractmethod
    async def read(
        self, partitions: Collection[int], topics: Collection[str] | None, after: int, upto: int, limit: int
    ) -> list[tuple[int, Received]]:
        """Return at most `limit` uploads of the partitions' devices, at positions above `after` and up to `upto`.

        There are fewer once their payloads have MAX_READ_BYTES; `is_cut` tells.
        """

    async def columns(self, after: int, upto: int, limit: int, max_bytes: int) -> UploadColumns:
        """Return in columns what `read` does of all partitions and topics; fewer once payloads have `max_bytes`."""
        rows = await self.read(range(PARTITIONS), None, after, upto, limit)
        return upload_columns(within_bytes(rows, max_bytes))

    @abc.abstractmethod
    async def commit(self, group: str, member: str, positions: Mapping[int, int], generation: int) -> set[int]:
        """Record positions by partition; return the partitions that are the member's. Others' are not recorded.

        None is recorded that was read in another `generation` of the store, or is above the highest position.
        """

    @abc.abstractmethod
    async def group_lags(self) -> dict[str, GroupLag]:
        """Return the lag of each consumer group."""

    @abc.abstractmethod
    async def forget_group(self, group: str) -> None:
        """Remove a consumer group and its positions. Members that still read make it again at its start."""

    # --- retention ---

    @abc.abstractmethod
    async def topics(self, *, after: str | None = None, limit: int | None = None) -> dict[str, TopicSize]:
        """Return the size of each topic, or of the first `limit` after `after` by the order of their bytes in UTF-8."""

    @property
    def log_bytes(self) -> int:
        """The bytes of the store's write-ahead log beside its file; 0 for a store without one."""
        return 0

    @abc.abstractmethod
    async def largest_topics(self, limit: int) -> tuple[dict[str, TopicSize], TopicSize]:
        """Return the topics with most bytes and their sizes, and the size of all topics together."""

    @abc.abstractmethod
    async def trim(
        self,
        topic: str,
        *,
        before_ms: int | None,
        now_ms: int,
        over_bytes: int,
        keep_unconsumed: bool,
        limit: int,
    ) -> Trimmed:
        """Delete old uploads of a topic in one short transaction; return how many.

        Args:
            topic: the topic.
            before_ms: delete those received earlier; none for their age if None.
            now_ms: those received later, by a clock that was ahead, are as old as the next one that was not.
            over_bytes: delete the oldest until that many bytes are deleted.
            keep_unconsumed: delete none after the least committed position of any group.
            limit: uploads that are looked at.
        """


def is_cut(rows: Sequence[tuple[int, Received]], limit: int) -> bool:
    """Return whether a read stopped at `limit` or at MAX_READ_BYTES, so that there may be more."""
    return len(rows) >= limit or sum(len(received.payload) for _, received in rows) >= MAX_READ_BYTES
