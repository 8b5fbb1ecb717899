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

    A transaction takes the streams that it changes out, so that none of a failed one stays.
    """

    def __init__(self, connection: SqliteConnection, owner: str) -> None:
        self.streams: dict[StreamKey, StoredStream] = {}
        self.owned: set[str] = set()
        self.data_version = 0  # version of the file, as `schema.data_version` returns it
        self._connection = connection
        self._owner = owner

    def keep(self, streams: Mapping[StreamKey, StoredStream]) -> None:
        """Keep streams that a transaction has committed."""
        if max(len(self.streams), len(self.owned)) > _MOST:
            self.forget()
        self.streams.update(streams)

    def forget(self) -> None:
        """Forget all: the file was opened, or changed."""
        self.streams.clear()
        self.owned.clear()

    def forget_if_changed(self, database: sqlite3.Connection) -> bool:
        """Forget what is in memory if another connection has changed the file; return whether one has."""
        version = data_version(database)
        if version == self.data_version:
            return False
        self._connection.check_not_migrated(database)
        self.data_version = version
        self.forget()
        return True

    def is_owned(self, database: sqlite3.Connection, device_id: str) -> bool:
        """Return whether no other process has claimed a device."""
        if device_id not in self.owned:
            row = database.execute("SELECT owner FROM owners WHERE device_id = ?", (device_id,)).fetchone()
            if row is not None and row[0] != self._owner:
                return False
            self.owned.add(device_id)
        return True

    def take(self, database: sqlite3.Connection, keys: Iterable[StreamKey]) -> dict[StreamKey, StoredStream]:
        """Remove rows from those in memory and return them; read the others, or add new ones."""
        streams = {key: self.streams.pop(key, None) for key in keys}
        if any(stream is None or stream.moved for stream in streams.values()):  # these are looked up in the index
            sqlite_index.catch_up(database)
        return {
            key: stream or sqlite_streams.find(database, key) or sqlite_streams.add(database, key)
            for key, stream in streams.items()
        }
