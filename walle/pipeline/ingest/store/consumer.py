"""Members of a consumer group, which read stored uploads in order and commit how far they are.

    async with uploads.consume("ranker", topics=["shop/ipv"]) as consumer:
        async for batch in consumer:
            ...                     # use batch.uploads
            await batch.commit()

The devices are shared among the members by hash, so that one member gets all uploads of a device, in order. An upload
comes at least once: again where it was not committed before the member ended, or before another took its devices over.
"""

import asyncio
import dataclasses
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import Self

from walle.base.waiting import first_of
from walle.errors import ConfigError
from walle.pipeline.ingest.store.partitions import MAX_LEASE_S, partition
from walle.pipeline.ingest.store.upload_store import IngestError, Start, UploadStore, is_cut
from walle.pipeline.tunnel.received import Received

_LOG = logging.getLogger(__name__)

_SCAN = 20_000  # positions that one query looks at
_BALANCE_S = 1.0  # interval between two checks of the other members
_RETRY_S = 0.5  # pause before the next attempt while the store cannot be used


@dataclasses.dataclass(frozen=True)
class UploadBatch:
    """Uploads in the order they were stored, and their positions.

    Committing moves the partitions `parts` to `position`.
    """

    uploads: list[Received]
    positions: list[int]
    position: int
    parts: frozenset[int]
    generation: int  # generation of the store
    _consumer: "Consumer" = dataclasses.field(repr=False)

    def __len__(self) -> int:
        return len(self.uploads)

    async def commit(self) -> bool:
        """Record that the group has used this batch and all earlier ones of this member.

        Return False if another member has taken some of the devices over meanwhile: it gets those uploads again. So it
        does if the store was replaced meanwhile, by a backup.

        Raises:
            IngestError: the store cannot be used, and a retry would fail too.
        """
        return await self._consumer.commit(self)


class Consumer:
    """One member of a group: an async iterator of batches, for use in one task."""

    def __init__(
        self,
        store: UploadStore,
        group: str,
        topics: Collection[str] | None,
        *,
        start: Start,
        batch_limit: int,
        lease_s: float,
        poll_s: float,
    ) -> None:
        if isinstance(topics, str):
            raise ConfigError(f"consumer group {group!r}: topics is the text {topics!r}; want a list, [{topics!r}]")
        if start not in ("earliest", "latest"):
            raise ConfigError(f"consumer group {group!r}: start {start!r} is unknown; want 'earliest' or 'latest'")
        if batch_limit < 1 or lease_s <= 0:
            what = f"batch_limit {batch_limit} and lease_s {lease_s} must be above 0"
            raise ConfigError(f"consumer group {group!r}: {what}")
        if lease_s > MAX_LEASE_S:
            what = (
                f"lease_s {lease_s} is above {MAX_LEASE_S:.0f}; a member that works for longer must commit in between"
            )
            raise ConfigError(f"consumer group {group!r}: {what}")
        if "\0" in group or any("\0" in topic for topic in topics or ()):
            raise ConfigError(
                f"consumer group {group!r}: a name contains a NUL character; stored topics have U+FFFD there"
            )
        self.group = group
        self.member = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._store = store
        self._topics = None if topics is None else tuple(topics)
        self._start: Start = start
        self._batch_limit = batch_limit
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._balanced_s = float("-inf")  # time of the latest look at the other members
        self._read_to: dict[int, int] = {}  # by partition of this member: position of the latest read
        self._committed: dict[int, int] = {}
        self._busy: dict[int, int] = {}  # partitions with uploads not committed: position of the last of them
        self._dropped: set[int] = set()  # partitions that were lost since `take_dropped`
        self._head = 0  # last position that the latest `_read` saw
        self._generation = store.generation
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> UploadBatch:
        """Return the next batch as soon as there is one. A store that cannot be used for now is waited for.

        Raises:
            IngestError: the store cannot be used, and a retry would fail too.
            StopAsyncIteration: after `close`.
        """
        while not self._is_closed:
            if (batch := await self._look()) is not None:
                return batch
        raise StopAsyncIteration

    async def poll(self, limit_s: float) -> UploadBatch | None:
        """Return the next batch, None where there is none within about `limit_s`, or after `close`.

        Raises:
            IngestError: as `__anext__`.
        """
        end_s = self._store.clock.monotonic() + limit_s
        while not self._is_closed:
            if (batch := await self._look()) is not None:
                return batch
            if self._store.clock.monotonic() >= end_s:
                break
        return None

    async def renew(self) -> None:
        """Keep this member's devices while its reader works longer than a part of `lease_s` without a commit.

        Raises:
            IngestError: the store cannot be used, and a retry would fail too.
        """
        if not self._is_closed and self._is_balance_due:
            await self._retried(self._balance)

    def take_dropped(self) -> frozenset[int]:
        """Return the partitions that this member has lost since the last call, with those that it has again.

        Another member may have used their uploads. Where this one has them again, it reads on from the committed
        position: of batches that it got before, uploads come again, or the other member has used them.
        """
        dropped, self._dropped = frozenset(self._dropped), set()
        return dropped

    async def _look(self) -> UploadBatch | None:
        """Read once; return None, after a wait where all was read, if there is no batch."""
        changed = self._store.changed
        await self.renew()
        batch = await self._retried(self._read)
        if batch is None and not self._has_more:
            await self._wait(changed)
        return batch

    async def close(self) -> None:
        """Release this member's devices to the others. What was not committed comes again."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._commit_idle()
            await self._store.leave_group(self.group, self.member)
        except IngestError as error:
            _LOG.warning("consumer group %r: this member leaves the group when its lease ends: %s", self.group, error)

    async def commit(self, batch: UploadBatch) -> bool:
        positions = dict.fromkeys(batch.parts, batch.position)
        kept = await self._retried(lambda: self._store.commit(self.group, self.member, positions, batch.generation))
        used = {partition(received.device_id) for received in batch.uploads}
        self._note_commit(dict.fromkeys(kept, batch.position))
        for part in batch.parts - kept:
            self._drop(part)
        await self.renew()  # a reader may commit for long before it asks for a batch
        return used <= kept

    # --- partitions ---

    @property
    def _is_balance_due(self) -> bool:
        return self._store.clock.monotonic() - self._balanced_s >= min(_BALANCE_S, self._lease_s / 3)

    async def _balance(self) -> None:
        now_s = self._store.clock.monotonic()
        await self._commit_idle()
        now_ms, lease_ms = int(self._store.clock.time() * 1000), int(self._lease_s * 1000)
        found = await self._store.balance(
            self.group, self.member, busy=self._busy.keys(), now_ms=now_ms, lease_ms=lease_ms
        )
        if not found:  # the group is new, or was forgotten
            await self._store.join_group(self.group, self._start)
            found = await self._store.balance(
                self.group, self.member, busy=self._busy.keys(), now_ms=now_ms, lease_ms=lease_ms
            )
        for part in self._read_to.keys() - found.keys():
            self._drop(part)
        for part, position in found.items():
            if part not in self._read_to or position != self._committed[part]:  # another member had it meanwhile
                self._drop(part)
                self._read_to[part] = self._committed[part] = position
        self._balanced_s = now_s

    async def _commit_idle(self) -> None:
        """Commit the positions of partitions without uploads of this group's topics."""
        idle = {
            part: position
            for part, position in self._read_to.items()
            if part not in self._busy and position > self._committed[part]
        }
        if idle:
            kept = await self._store.commit(self.group, self.member, idle, self._generation)
            self._note_commit({part: idle[part] for part in kept})
            for part in idle.keys() - kept:
                self._drop(part)

    def _note_commit(self, positions: dict[int, int]) -> None:
        for part, position in positions.items():
            if part in self._committed:
                self._committed[part] = max(position, self._committed[part])
            if self._busy.get(part, position + 1) <= position:
                del self._busy[part]

    def _drop(self, part: int) -> None:
        if part in self._read_to:
            self._dropped.add(part)
        self._read_to.pop(part, None)
        self._committed.pop(part, None)
        self._busy.pop(part, None)

    # --- reading ---

    @property
    def _has_more(self) -> bool:
        """True if a part of the stored uploads was not looked at in the latest `_read`."""
        return bool(self._read_to) and min(self._read_to.values()) < self._head

    async def _read(self) -> UploadBatch | None:
        """Read on from the least position, so that partitions with different positions meet."""
        self._head = await self._store.head()
        if not self._read_to:
            return None
        after = min(self._read_to.values())
        is_replaced = self._store.generation != self._generation
        if is_replaced or max(self._read_to.values()) > self._head:  # the store went back in time
            self._start_again()
            return None
        parts = frozenset(part for part, position in self._read_to.items() if position == after)
        higher = [position for position in self._read_to.values() if position > after]
        upto = min(self._head, after + _SCAN, *higher)
        if after >= upto:
            return None
        found = await self._store.read(parts, self._topics, after, upto, self._batch_limit)
        if self._store.generation != self._generation:
            self._start_again()
            return None
        if is_cut(found, self._batch_limit):
            upto = found[-1][0]
        for part in parts:
            self._read_to[part] = upto
        if not found:
            return None
        positions, uploads = [position for position, _ in found], [received for _, received in found]
        for part in {partition(received.device_id) for received in uploads}:
            self._busy[part] = upto
        return UploadBatch(uploads, positions, upto, parts, self._generation, self)

    def _start_again(self) -> None:
        """Continue at the group's committed positions in the store as it is now."""
        for part in list(self._read_to):
            self._drop(part)
        self._generation = self._store.generation
        self._balanced_s = float("-inf")

    async def _wait(self, changed: asyncio.Event) -> None:
        """Return when this process has stored an upload, or after `poll_s`."""
        await first_of(changed.wait(), self._store.clock.sleep(self._poll_s))

    async def _retried[T](self, call: Callable[[], Awaitable[T]]) -> T:
        has_failed = False
        while True:
            try:
                return await call()
            except IngestError as error:
                if not error.may_pass:
                    raise
                if not has_failed:
                    _LOG.error("consumer group %r: %s; trying again every %s s", self.group, error, _RETRY_S)
                has_failed = True
                await self._store.clock.sleep(_RETRY_S)
