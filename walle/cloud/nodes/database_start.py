"""Wait of a cloud that starts for its databases: a start after a power cut continues once they answer."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from walle.base.clock import Clock, SystemClock
from walle.cloud.folder.config import CloudConfig
from walle.errors import WalleError

if TYPE_CHECKING:
    from walle.store.postgres_database import PostgresDatabase

_RETRY_S = 1.0


async def wait_for_databases(config: CloudConfig, say: Callable[[str], None], *, clock: Clock | None = None) -> None:
    """Return once the databases of a cloud can be used, with the tables that this version needs.

    While one is away, `say` is called with what is waited for: a server that does not answer, starts, is a standby or
    has no free connection, and a name that is not resolved. A changed reason is reported too.

    Raises:
        DatabaseError, IngestError: what does not pass by itself, such as a wrong password or name of the database, a
            role without the right to make the tables, a newer schema, an older server, or a pooler that mixes sessions.
    """
    clock, said = clock or SystemClock(), ""
    while True:
        try:
            await _check(config)
        except WalleError as error:
            if not getattr(error, "may_pass", False):
                raise
            if str(error) != said:
                said = str(error)
                say(f"waiting for {said}")
        else:
            if said:
                say("the database answers")
            return
        await clock.sleep(_RETRY_S)


async def _check(config: CloudConfig) -> None:
    if config.database:
        async with await _unpooled(config.database):
            pass
    if config.uploads and config.uploads != config.database:
        from walle.pipeline.ingest.stores import open_uploads

        await _unpooled(config.uploads)
        async with open_uploads(config.uploads, create=True):
            pass


async def _unpooled(url: str) -> "PostgresDatabase":
    """Return a database, not entered, once no pooler by transactions is before it."""
    from walle.store.postgres_database import PostgresDatabase

    database = PostgresDatabase(url, connections=1, retry_s=0.0)
    await database.check_pooling()
    return database
