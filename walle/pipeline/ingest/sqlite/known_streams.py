"""Streams of devices in memory as they are committed, while no other connection changes the file."""

import sqlite3
from collections.abc import Iterable, Mapping

from walle.pipeline.ingest.sqlite import index as sqlite_index
from walle.pipeline.ingest.sqlite import streams as sqlite_streams
from walle.pipeline.ingest.sqlite.connection import SqliteConnection
from walle.pipeline.ingest.sqlite.schema import data_version
from walle.pipeline.ingest.store.receipt import StoredStream, StreamKey

_MOST = 50_000  # streams kept in memory


class KnownStreams:
    """The streams, and the devices that are `owned`: those that no other process than `owner` has claimed.

    A transaction removes the streams that it changes, so that a failed one leaves none.
    """

    def __init__(self, connection: SqliteConnection, owner: str) -> None:
        self._streams: dict[StreamKey, StoredStream] = {}
        self._owned: set[str] = set()
        self._data_version = 0
        self._connection = connection
        self._owner = owner

    @property
    def data_version(self) -> int:
        """The version of the file that they are of, as `schema.data_version` returns it."""
        return self._data_version

    def keep(self, streams: Mapping[StreamKey, StoredStream]) -> None:
        """Keep streams that a transaction has committed."""
        if max(len(self._streams), len(self._owned)) > _MOST:
            self.forget()
        self._streams.update(streams)

    def find(self, key: StreamKey) -> StoredStream | None:
        """Return a stream in memory whose uploads repeat no older ones, of a device that is known to be owned."""
        stream = self._streams.get(key)
        return None if stream is None or stream.moved or key[0] not in self._owned else stream

    def remove(self, key: StreamKey) -> None:
        """Remove a stream that a transaction changes."""
        self._streams.pop(key, None)

    def remove_all(self) -> None:
        """Remove every stream: a transaction changes how they are related. Devices stay owned."""
        self._streams.clear()

    def forget(self) -> None:
        """Forget all: the file was opened, or changed."""
        self._streams.clear()
        self._owned.clear()

    def forget_if_changed(self, database: sqlite3.Connection) -> bool:
        """Forget what is in memory if another connection has changed the file; return whether one has."""
        version = data_version(database)
        if version == self._data_version:
            return False
        self._connection.check_not_migrated(database)
        self._data_version = version
        self.forget()
        return True

    def is_owned(self, database: sqlite3.Connection, device_id: str) -> bool:
        """Return whether no other process has claimed a device."""
        if device_id not in self._owned:
            row = database.execute("SELECT owner FROM owners WHERE device_id = ?", (device_id,)).fetchone()
            if row is not None and row[0] != self._owner:
                return False
            self._owned.add(device_id)
        return True

    def take(self, database: sqlite3.Connection, keys: Iterable[StreamKey]) -> dict[StreamKey, StoredStream]:
        """Remove streams from memory and return them; read the others, or add new ones."""
        streams = {key: self._streams.pop(key, None) for key in keys}
        if any(stream is None or stream.moved for stream in streams.values()):  # these are looked up in the index
            sqlite_index.catch_up(database)
        return {
            key: stream or sqlite_streams.find(database, key) or sqlite_streams.add(database, key)
            for key, stream in streams.items()
        }
