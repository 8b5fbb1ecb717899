"""The store of uploads at a location: a SQLite file or a PostgreSQL database."""

from pathlib import Path

from walle.base.clock import Clock
from walle.pipeline.ingest.store.quota import DeviceQuota
from walle.pipeline.ingest.store.upload_store import IngestError, UploadStore


def open_uploads(
    location: str | Path,
    *,
    create: bool = False,
    clock: Clock | None = None,
    device_quota: DeviceQuota | None = None,
) -> UploadStore:
    """Return the store at a path (SQLite) or a `postgresql://` URL (PostgreSQL). It is not open yet.

    Opening makes a store that does not exist with `create`, as a cloud does, and raises IngestError without it. With
    `device_quota`, this object stores no more than that of a device.

    Raises:
        IngestError: PostgreSQL is asked for, and asyncpg is not installed; or the URL is of another database.
    """
    store = _make_store(location, clock, create=create)
    if device_quota is not None:
        store.limit_devices(device_quota)
    return store


def _make_store(location: str | Path, clock: Clock | None, *, create: bool) -> UploadStore:
    if isinstance(location, str) and location.startswith(("postgresql://", "postgres://")):
        from walle.pipeline.ingest.postgres.store import PostgresUploadStore

        return PostgresUploadStore(location, clock=clock, create=create)
    if isinstance(location, str) and "://" in location:
        scheme = location.partition("://")[0]
        raise IngestError(
            f"{scheme}://", "this kind of URL is unknown; write postgresql://USER@HOST/DATABASE or a path"
        )
    from walle.pipeline.ingest.sqlite.store import SqliteUploadStore

    return SqliteUploadStore(Path(location), clock=clock, create=create)
