"""Store of uploads in a PostgreSQL database, in the schema `walle`.

A batch is one transaction: it locks the rows of its streams, takes positions, and copies the uploads in (COPY). The
database decides between processes: a claim of a device waits for the transactions that have its uploads, and refuses
later ones of the process that had the device before. Claims and positions of consumers are committed without a sync.
A lost connection is replaced at the next call; a batch whose commit was cut is sent again, and what it stored is known.
"""

import collections
import contextlib
import dataclasses
import logging
import secrets
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import cast, override

from walle.base.clock import Clock, SystemClock
from walle.base.extras import install_hint
from walle.pipeline.features.checksums import first_link
from walle.pipeline.features.losses import Loss, LossCause
from walle.pipeline.ingest.store.partitions import partition
from walle.pipeline.ingest.store.quarantine import refused_upload
from walle.pipeline.ingest.store.quota import PART_QUERY, StoredPart, stored_part
from walle.pipeline.ingest.store.receipt import (
    MAX_ABANDONED,
    OTHER_SIZE,
    Accepted,
    Contents,
    LossTotal,
    Place,
    RecordedLoss,
    RefusedUpload,
    SortedBatch,
    StoredStream,
    StreamKey,
    StreamLink,
    check_epochs,
    check_hello,
    known_uploads,
    moved_places,
    related_streams,
    sort_batch,
)
from walle.pipeline.ingest.store.upload_store import GroupLag, IngestError, Start, TopicSize, Trimmed, UploadStore
from walle.pipeline.tunnel.received import Received, ResumePoint
from walle.protocol import Hello, Origin

try:
    import asyncpg

    from walle.pipeline.ingest.postgres import groups as postgres_groups
    from walle.pipeline.ingest.postgres import losses as postgres_losses
    from walle.pipeline.ingest.postgres import quarantine as postgres_quarantine
    from walle.pipeline.ingest.postgres.schema import FORMAT, is_of_contents, make_schema
    from walle.store.postgres_connection import (
        ERRORS,
        Pool,
        ServerError,
        close_pool,
        explained,
        is_away,
        lent,
        may_pass,
        open_pool,
        outage_of,
        without_password,
    )
except ImportError as _error:
    raise IngestError(
        "PostgreSQL",
        f"asyncpg is missing; keep uploads in a file, or install it with: {install_hint('postgres')}",
    ) from _error

_LOG = logging.getLogger(__name__)

_CONNECTIONS = 4
_CALL_S = 30.0  # timeout of a call to a database that does not answer
_READ_S = 10.0  # timeout of a short read, and of a device's connection, which is then told to come back
_CLOSE_S = 1.0
# UnicodeError, OverflowError: of a value of COPY that cannot be encoded.
_ERRORS = (*ERRORS, ServerError, UnicodeError, OverflowError)
_SETTINGS = {"application_name": "walle"}
_COLUMNS = ("position", "stream", "seq", "topic", "payload", "sent_ms", "received_ms", "version")

type _Connection = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"


class PostgresUploadStore(UploadStore):
    """The received uploads in the database that `dsn` names, as libpq does: `postgresql://user@host:5432/name`.

    Without `create` a database that has none is an error; its tables are made otherwise.
    """

    def __init__(self, dsn: str, *, clock: Clock | None = None, create: bool = True) -> None:
        super().__init__()
        self._create = create
        self.clock = clock or SystemClock()
        self._dsn = dsn
        self._place = without_password(dsn)  # address that errors may show
        self._outage = outage_of(self._place)
        self._owner = secrets.token_hex(8)  # name of this process at the devices that resumed here
        self._pool: Pool | None = None

    @override
    async def start(self) -> None:
        try:
            self._pool = await open_pool(self._dsn, connections=_CONNECTIONS, settings=_SETTINGS)
        except (*_ERRORS, ValueError) as error:
            raise self._failure(error) from error
        try:
            async with self._connection() as connection:
                await self._check_encoding(connection)
                if not self._create and await connection.fetchval("SELECT to_regclass('walle.head')") is None:
                    what = "this database has no uploads; name a cloud's database, or pass create=True for a new store"
                    raise IngestError(self._place, what)  # noqa: TRY301 - closed as after other errors
                found = await make_schema(cast("asyncpg.Connection[asyncpg.Record]", connection))
        except BaseException as error:
            await self.close()
            if isinstance(error, ValueError):  # the URL is wrong
                raise self._failure(error) from error
            raise
        if found != FORMAT:
            await self.close()
            raise IngestError(self._place, f"has format {found}, this version of walle reads {FORMAT}")

    async def _check_encoding(self, connection: _Connection) -> None:
        encoding = await connection.fetchval("SHOW server_encoding")
        if encoding != "UTF8":  # one topic that it cannot hold would stop the receipt of all
            what = f"the database has the encoding {encoding}; make one with ENCODING 'UTF8'"
            raise IngestError(self._place, what)

    @override
    async def close(self) -> None:
        if self._pool is not None and not self._outage.is_on:
            with contextlib.suppress(IngestError, TimeoutError):
                async with self._transaction(durable=False, limit_s=_CLOSE_S) as connection:
                    await connection.execute("DELETE FROM walle.owners WHERE owner = $1", self._owner)
        pool, self._pool = self._pool, None
        if pool is not None:
            await close_pool(pool, 0.0 if self._outage.is_on else _CLOSE_S)

    @override
    async def reopen(self) -> None:
        await self.close()
        await self.start()

    # --- receipt ---

    @override
    async def store_batch(
        self, batch: Sequence[Received], foreign_topics: frozenset[tuple[str, str]] = frozenset()
    ) -> Accepted:
        keys = sorted({received[:2] for received in batch})  # sorted, so that no two transactions block each other
        async with self._transaction() as connection:
            foreign = await self._foreign(connection, keys)
            streams = await _lock_streams(connection, [key for key in keys if key not in foreign])
            older = await _stored(connection, moved_places(batch, streams))
            sorted_batch = sort_batch(batch, streams, older, storable=_text, foreign_topics=foreign_topics)
            await self._write(connection, streams, sorted_batch)
        if sorted_batch.fresh:
            self._notify()
        highest = {key: stream.highest for key, stream in streams.items()}
        return Accepted(highest, sorted_batch.fresh, foreign, refused=sorted_batch.refused)

    @override
    async def set_aside(self, received: Received, reason: str) -> Accepted | None:
        key, now_ms = received[:2], int(self.clock.time() * 1000)
        async with self._transaction() as connection:
            if foreign := await self._foreign(connection, [key]):
                return Accepted({}, [], foreign)
            streams = await _lock_streams(connection, [key])
            older = await _stored(connection, moved_places([received], streams))
            found = sort_batch([received], streams, older, storable=_text)
            if found.fresh or found.losses:
                if not await postgres_quarantine.has_room(connection, received.device_id):
                    return None
                await postgres_quarantine.add(connection, refused_upload(received, _text(reason), now_ms))
                loss = Loss(received.epoch, received.seq, received.seq, LossCause.REFUSED)
                await self._record(connection, RecordedLoss(received.device_id, loss, now_ms))
            await self._write(connection, streams, SortedBatch())
        return Accepted({key: streams[key].highest}, [], is_set_aside=bool(found.fresh or found.losses))

    @override
    async def refused(self) -> list[RefusedUpload]:
        async with self._connection() as connection:
            return await postgres_quarantine.read(connection)

    @override
    async def refused_count(self) -> int:
        async with self._connection() as connection:
            return await postgres_quarantine.count(connection)

    @override
    async def forget_refused(self, device_id: str | None = None) -> None:
        async with self._transaction() as connection:
            await postgres_quarantine.forget(connection, device_id)

    async def _foreign(self, connection: _Connection, keys: Sequence[StreamKey]) -> frozenset[StreamKey]:
        """Return the streams of devices that another process has claimed; others are not claimed until the commit."""
        devices = sorted({device_id for device_id, _ in keys})
        query = "SELECT device_id, owner FROM walle.owners WHERE device_id = ANY($1) ORDER BY device_id FOR SHARE"
        rows = await connection.fetch(query, devices)
        if len(rows) < len(devices):  # a row that does not exist would not delay a claim
            await connection.execute(
                "INSERT INTO walle.owners SELECT unnest($1::text[]), '' ON CONFLICT DO NOTHING", devices
            )
            rows = await connection.fetch(query, devices)
        others = {device_id for device_id, owner in rows if owner not in (self._owner, "")}
        return frozenset(key for key in keys if key[0] in others)

    async def _write(
        self, connection: _Connection, streams: Mapping[StreamKey, StoredStream], sorted_batch: SortedBatch
    ) -> None:
        changed = [(stream.number, stream.highest, stream.chain) for stream in streams.values()]
        await connection.execute(
            "UPDATE walle.streams AS s SET highest = n.highest, chain = n.chain"
            " FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS n (stream, highest, chain)"
            " WHERE s.stream = n.stream",
            *(list(column) for column in zip(*changed, strict=True)) if changed else ([], [], []),
        )
        for recorded in (*sorted_batch.losses, *await _made_again(connection, sorted_batch.made_again)):
            await self._record(connection, recorded)
        if not sorted_batch.fresh:
            return
        count = len(sorted_batch.fresh)
        uploads, size_bytes = collections.Counter(sorted_batch.topics), collections.Counter[str]()
        for topic, received in zip(sorted_batch.topics, sorted_batch.fresh, strict=True):
            size_bytes[topic] += len(received.payload)
        topics = sorted(uploads)
        await connection.execute(
            "INSERT INTO walle.topics AS t SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[])"
            " ON CONFLICT (topic)"
            " DO UPDATE SET uploads = t.uploads + excluded.uploads, bytes = t.bytes + excluded.bytes",
            topics,
            [uploads[topic] for topic in topics],
            [size_bytes[topic] for topic in topics],
        )
        head: int = await connection.fetchval(
            "UPDATE walle.head SET position = position + $1 RETURNING position", count
        )
        columns = range(head - count + 1, head + 1), sorted_batch.streams, sorted_batch.topics, sorted_batch.fresh
        records = (
            (position, stream, one.seq, topic, one.payload, one.sent_ms, one.received_ms, one.version)
            for position, stream, topic, one in zip(*columns, strict=True)
        )
        await connection.copy_records_to_table("uploads", schema_name="walle", columns=_COLUMNS, records=records)

    @override
    async def acked(self, device_id: str, epoch: str) -> int:
        query = "SELECT highest FROM walle.streams WHERE device_id = $1 AND epoch = $2"
        async with self._connection() as connection:
            return await connection.fetchval(query, device_id, epoch) or 0

    @override
    async def _streams_of(self, device_id: str) -> list[int]:
        async with self._connection() as connection:
            query = "SELECT stream FROM walle.streams WHERE device_id = $1 ORDER BY stream"
            return [row[0] for row in await connection.fetch(query, device_id)]

    @override
    async def _stream_part(self, stream: int, after: int, limit: int) -> tuple[StoredPart, int | None]:
        query = PART_QUERY.format("$1", "$2", "$3", payload="payload", uploads="walle.uploads")
        async with self._connection() as connection:
            rows = await connection.fetch(query, stream, after, limit)
        return stored_part([(row[0], row[1], int(row[2]), row[3]) for row in rows], limit)

    @override
    async def resume(self, hello: Hello) -> ResumePoint:
        origins = check_hello(hello)
        async with self._transaction(durable=False, limit_s=_READ_S) as connection:
            # Waits for a transaction with this device's uploads; the queries below see what that stored.
            await connection.execute(
                "INSERT INTO walle.owners AS o VALUES ($1, $2)"
                " ON CONFLICT (device_id) DO UPDATE SET owner = excluded.owner WHERE o.owner <> excluded.owner",
                hello.device_id,
                self._owner,
            )
            key = (hello.device_id, hello.epoch)
            stream = await _find(connection, key)
            if stream is None:
                epochs = "SELECT count(*) FROM walle.streams WHERE device_id = $1"
                check_epochs(await connection.fetchval(epochs, hello.device_id))
            if stream is None and not origins and hello.acked == 0:  # stored with its first upload
                return ResumePoint(0, first_link(hello.epoch))
            abandoned = await _abandoned(connection, hello, origins)
            # A stream that another one named as its origin, after the store went back in time, has no links.
            is_linked = not origins or (stream is not None and await _has_links(connection, stream.number))
            if stream is not None and is_linked and stream.highest >= hello.acked and not abandoned:
                return ResumePoint(stream.highest, stream.chain)
        async with self._transaction() as connection:
            stream = (await _lock_streams(connection, [key]))[key]
            if not is_linked:
                await self._link_origins(connection, stream, hello.device_id, origins)
            for loss in abandoned:
                await self._record(connection, RecordedLoss(hello.device_id, loss, int(self.clock.time() * 1000)))
            if stream.highest < hello.acked:
                await self._record_restore(connection, hello.device_id, hello.epoch, stream.highest, hello.acked)
                stream.highest, stream.chain = hello.acked, hello.acked_chain
                await connection.execute(
                    "UPDATE walle.streams SET highest = $1, chain = $2 WHERE stream = $3",
                    stream.highest,
                    stream.chain,
                    stream.number,
                )
            return ResumePoint(stream.highest, stream.chain)

    async def _link_origins(
        self, connection: _Connection, stream: StoredStream, device_id: str, origins: Sequence[Origin]
    ) -> None:
        """Note which stored uploads a new stream may repeat, and record acknowledged ones that this store lacks.

        A device that goes back to the older epoch repeats them under their older numbers.
        """
        for origin in origins:
            key = (device_id, origin.epoch)
            older = await _find(connection, key)
            highest = older.highest if older else 0
            if highest < origin.acked:
                await self._record_restore(connection, device_id, origin.epoch, highest, origin.acked)
            # Uploads of the older epoch may have arrived and not be stored yet.
            older = older or (await _lock_streams(connection, [key]))[key]
            insert = "INSERT INTO walle.origins VALUES ($1, $2, $3, $4)"
            await connection.execute(insert, stream.number, older.number, origin.offset, origin.upto)
            stream.moved = max(stream.moved, origin.upto)
            if origin.upto:
                update = "UPDATE walle.streams SET moved = greatest(moved, $1) WHERE stream = $2"
                await connection.execute(update, origin.offset + origin.upto, older.number)
        await connection.execute("UPDATE walle.streams SET moved = $1 WHERE stream = $2", stream.moved, stream.number)

    async def _record_restore(
        self, connection: _Connection, device_id: str, epoch: str, highest: int, acked: int
    ) -> None:
        loss = Loss(epoch, highest + 1, acked, LossCause.CLOUD_RESTORED)
        await self._record(connection, RecordedLoss(device_id, loss, int(self.clock.time() * 1000)))

    async def _record(self, connection: _Connection, recorded: RecordedLoss) -> None:
        loss = dataclasses.replace(recorded.loss, epoch=_text(recorded.loss.epoch))
        if await postgres_losses.record(connection, recorded._replace(loss=loss)):
            _LOG.error("received uploads in %s: device %r: %s", self._place, recorded.device_id, loss)

    @override
    async def losses(self, device_id: str | None = None) -> list[RecordedLoss]:
        async with self._connection() as connection:
            return await postgres_losses.read(connection, device_id)

    @override
    async def loss_totals(self, device_id: str | None = None) -> dict[LossCause, LossTotal]:
        async with self._connection() as connection:
            return await postgres_losses.totals(connection, device_id)

    @override
    async def count(self) -> int:
        async with self._connection() as connection:
            return int(await connection.fetchval("SELECT coalesce(sum(uploads), 0) FROM walle.topics"))

    @override
    async def query(
        self, *, device_id: str | None = None, topic: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[tuple[int, Received]]:
        wanted: dict[str, object] = {"position >": after}
        if device_id is not None:
            wanted["device_id ="] = _text(device_id)
        if topic is not None:
            wanted["topic ="] = _text(topic)
        where = " AND ".join(f"{column} ${number}" for number, column in enumerate(wanted, start=2))
        async with self._connection(_CALL_S) as connection:
            return await postgres_groups.uploads(connection, where, limit, *wanted.values())

    # --- consumer groups and retention ---

    @override
    async def join_group(self, group: str, start: Start) -> None:
        async with self._transaction(durable=False) as connection:
            await postgres_groups.join(connection, group, start)

    @override
    async def balance(
        self, group: str, member: str, *, busy: Collection[int], now_ms: int, lease_ms: int
    ) -> dict[int, int]:
        async with self._transaction(durable=False) as connection:
            return await postgres_groups.balance(connection, group, member, busy, now_ms, lease_ms)

    @override
    async def leave_group(self, group: str, member: str) -> None:
        async with self._transaction(durable=False) as connection:
            await postgres_groups.leave(connection, group, member)

    @override
    async def head(self) -> int:
        async with self._connection() as connection:
            return await postgres_groups.head(connection)

    @override
    async def read(
        self, partitions: Collection[int], topics: Collection[str] | None, after: int, upto: int, limit: int
    ) -> list[tuple[int, Received]]:
        async with self._connection(_CALL_S) as connection:
            return await postgres_groups.read(connection, partitions, topics, after, upto, limit)

    @override
    async def commit(self, group: str, member: str, positions: Mapping[int, int], generation: int) -> set[int]:
        async with self._transaction(durable=False) as connection:
            return await postgres_groups.commit(connection, group, member, positions)

    @override
    async def group_lags(self) -> dict[str, GroupLag]:
        async with self._connection() as connection:
            return await postgres_groups.lags(connection)

    @override
    async def forget_group(self, group: str) -> None:
        async with self._transaction() as connection:
            await postgres_groups.forget(connection, group)

    @override
    async def topics(self, *, after: str | None = None, limit: int | None = None) -> dict[str, TopicSize]:
        query = (
            'SELECT topic, uploads, bytes FROM walle.topics WHERE $1::text IS NULL OR topic COLLATE "C" > $1'
            ' ORDER BY topic COLLATE "C" LIMIT $2'
        )
        async with self._connection() as connection:
            rows = await connection.fetch(query, after, limit)
        return {topic: TopicSize(uploads, size_bytes) for topic, uploads, size_bytes in rows}

    @override
    async def largest_topics(self, limit: int) -> tuple[dict[str, TopicSize], TopicSize]:
        largest = 'SELECT topic, uploads, bytes FROM walle.topics ORDER BY bytes DESC, topic COLLATE "C" LIMIT $1'
        total = "SELECT coalesce(sum(uploads), 0)::bigint, coalesce(sum(bytes), 0)::bigint FROM walle.topics"
        async with self._connection() as connection:
            rows, sums = await connection.fetch(largest, limit), await connection.fetchrow(total)
        assert sums is not None
        return {topic: TopicSize(uploads, size_bytes) for topic, uploads, size_bytes in rows}, TopicSize(*sums)

    @override
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
        async with self._transaction(durable=False) as connection:
            return await postgres_groups.trim(
                connection, topic, before_ms, now_ms, over_bytes, limit, keep=keep_unconsumed
            )

    # --- connections ---

    @contextlib.asynccontextmanager
    async def _connection(self, limit_s: float = _READ_S) -> AsyncIterator[_Connection]:
        """Give a connection for `limit_s`. Errors within the block become IngestError."""
        if self._pool is None:
            raise IngestError(self._place, "is not open")
        try:
            async with lent(self._pool, limit_s) as connection:
                yield connection
        except _ERRORS as error:  # a ValueError passes: its cause is a Hello that no device sends
            if is_away(error):
                self._outage.failed(explained(error, self._dsn))
            raise self._failure(error) from error
        self._outage.answered()

    @contextlib.asynccontextmanager
    async def _transaction(self, *, durable: bool = True, limit_s: float = _CALL_S) -> AsyncIterator[_Connection]:
        """Give a connection with a transaction. A commit that is not `durable` may be undone by a power cut."""
        async with self._connection(limit_s) as connection, connection.transaction():
            # A lost row lock or an idle holder must not stop the others for longer than a call may take.
            await connection.execute(
                f"SET LOCAL synchronous_commit = {'on' if durable else 'off'};"
                f" SET LOCAL idle_in_transaction_session_timeout = '{_CALL_S:.0f}s'"
            )
            yield connection

    def _failure(self, error: Exception) -> IngestError:
        what = {"may_pass": may_pass(error), "of_contents": is_of_contents(error)}
        return IngestError(self._place, explained(error, self._dsn), **what)


async def _find(connection: _Connection, key: StreamKey) -> StoredStream | None:
    query = "SELECT stream, highest, chain, moved FROM walle.streams WHERE device_id = $1 AND epoch = $2"
    row = await connection.fetchrow(query, *key)
    return StoredStream(*row) if row else None


async def _lock_streams(connection: _Connection, keys: Sequence[StreamKey]) -> dict[StreamKey, StoredStream]:
    """Return the rows of streams, made if they do not exist, and keep other transactions from changing them."""
    if not keys:
        return {}
    devices, epochs = [key[0] for key in keys], [key[1] for key in keys]
    query = (
        "SELECT s.device_id, s.epoch, s.stream, s.highest, s.chain, s.moved FROM walle.streams AS s"
        " JOIN unnest($1::text[], $2::text[]) AS k (device_id, epoch) USING (device_id, epoch)"
        " ORDER BY s.stream FOR UPDATE OF s"
    )
    found = await connection.fetch(query, devices, epochs)
    if len(found) < len(keys):
        chains, parts = [first_link(epoch) for epoch in epochs], [partition(device_id) for device_id in devices]
        await connection.execute(
            "INSERT INTO walle.streams (device_id, epoch, highest, chain, part)"
            " SELECT device_id, epoch, 0, chain, part"
            " FROM unnest($1::text[], $2::text[], $3::bigint[], $4::int[]) AS n (device_id, epoch, chain, part)"
            " ON CONFLICT DO NOTHING",
            devices,
            epochs,
            chains,
            parts,
        )
        found = await connection.fetch(query, devices, epochs)
    streams = {(row[0], row[1]): StoredStream(*row[2:]) for row in found}
    moved = [stream.number for stream in streams.values() if stream.moved]
    if moved:
        rows = await connection.fetch(
            "SELECT stream, origin, seq_offset, upto FROM walle.origins"
            " WHERE stream = ANY($1::bigint[]) OR origin = ANY($1::bigint[])"
            " OR origin IN (SELECT origin FROM walle.origins WHERE stream = ANY($1::bigint[]))",
            moved,
        )
        links = [StreamLink(*row) for row in rows]
        for stream in streams.values():
            stream.related = related_streams(stream.number, links)
    return streams


async def _has_links(connection: _Connection, number: int) -> bool:
    return await connection.fetchval("SELECT 1 FROM walle.origins WHERE stream = $1 LIMIT 1", number) is not None


async def _abandoned(connection: _Connection, hello: Hello, origins: Sequence[Origin]) -> list[Loss]:
    """Return the losses of uploads that the device does not have any more, as its Hello shows, if not recorded yet.

    These are uploads of the Hello's older epochs beyond those that the device knows of, and epochs that continue one of
    the Hello's and are not among them: the device went back to before they began. What such an epoch took over from an
    older one, and the device may still have, is compared when it comes: `sort_batch`.
    """
    epochs, highest = zip(*known_uploads(hello, origins), strict=True)
    rows = await connection.fetch(
        "WITH known AS (SELECT * FROM unnest($2::text[], $3::bigint[]) AS k (epoch, upto))"
        " SELECT epoch, first_seq FROM ("
        "SELECT later.epoch, max(greatest(least(link.upto, known.upto - link.seq_offset), 0)) + 1 AS first_seq"
        " FROM known JOIN walle.streams AS older ON older.device_id = $1 AND older.epoch = known.epoch"
        " JOIN walle.origins AS link ON link.origin = older.stream"
        " JOIN walle.streams AS later ON later.stream = link.stream"
        " WHERE later.epoch <> ALL($2::text[]) GROUP BY later.epoch"
        " UNION ALL SELECT s.epoch, known.upto + 1 FROM known JOIN walle.streams AS s USING (epoch)"
        " WHERE s.device_id = $1 AND s.highest > known.upto) AS gone"
        " WHERE NOT EXISTS (SELECT FROM walle.losses AS l WHERE l.device_id = $1 AND l.epoch = gone.epoch"
        " AND l.first_seq <= gone.first_seq AND l.last_seq IS NULL) LIMIT $4",
        hello.device_id,
        list(epochs),
        list(highest),
        MAX_ABANDONED,
    )
    return [Loss(row[0], row[1], None, LossCause.DEVICE_RESTORED) for row in rows]


async def _made_again(connection: _Connection, found: Mapping[int, tuple[int, int]]) -> list[RecordedLoss]:
    """Return the losses of `SortedBatch.made_again`, if not recorded yet."""
    if not found:
        return []
    rows = await connection.fetch(
        "SELECT s.device_id, s.epoch, w.first_seq, w.received_ms FROM walle.streams AS s"
        " JOIN unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS w (stream, first_seq, received_ms) USING (stream)"
        " WHERE NOT EXISTS (SELECT FROM walle.losses AS l WHERE l.device_id = s.device_id AND l.epoch = s.epoch"
        " AND l.first_seq <= w.first_seq AND l.last_seq IS NULL)",
        list(found),
        [first_seq for first_seq, _ in found.values()],
        [received_ms for _, received_ms in found.values()],
    )
    return [RecordedLoss(row[0], Loss(row[1], row[2], None, LossCause.DEVICE_RESTORED), row[3]) for row in rows]


async def _stored(connection: _Connection, places: Iterable[tuple[Place, int]]) -> dict[Place, Contents]:
    wanted = [(*place, size_bytes) for place, size_bytes in places]
    if not wanted:
        return {}
    rows = await connection.fetch(
        "SELECT stream, seq, topic, CASE WHEN octet_length(payload) = size THEN sha256(payload) END, sent_ms"
        " FROM walle.uploads"
        " JOIN unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS w (stream, seq, size) USING (stream, seq)"
        " ORDER BY octet_length(payload) = size",
        *(list(column) for column in zip(*wanted, strict=True)),
    )
    return {(row[0], row[1]): (row[2], row[3] or OTHER_SIZE, row[4]) for row in rows}  # those that were read win


def _text(text: str) -> str:
    """Return text that PostgreSQL can hold: without NUL characters."""
    return text.replace("\0", "\ufffd")
