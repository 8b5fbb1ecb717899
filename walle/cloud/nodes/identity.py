"""Identity node: an `IdentityService` on a cloud's folder. It alone has the keys that make identities of devices."""

import asyncio

from walle.access.identity.service import IdentityService
from walle.base.clock import Clock
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.folder.state import STOP_S


class IdentityNode:
    """Owner of the identity service, which every gateway asks."""

    def __init__(self, config: CloudConfig, *, clock: Clock | None = None) -> None:
        self._home = CloudHome(config.folder, database=config.database)
        self._service = IdentityService(self._home.identity_folder, self._home.identity_store(clock), clock=clock)

    async def start(self) -> IdentityService:
        """Return the service.

        Raises:
            AuthorityError: a key is damaged.
            IdentityStoreError: the identities cannot be opened.
            ConfigError, DatabaseError: they cannot be moved from a file of a version before to the database.
        """
        await asyncio.to_thread(self._open)
        return self._service

    def _open(self) -> None:
        self._home.move_left_file(self._home.identities_db)
        self._service.open()

    def hurry(self, limit_s: float = STOP_S) -> None:
        """End what waits for a database in `limit_s`: the node is closed next."""
        self._home.hurry(limit_s)

    async def close(self) -> None:
        """Let the space go that is kept for revocations, and the connections to the database."""
        await asyncio.to_thread(self._service.close)
        await asyncio.to_thread(self._home.close)
