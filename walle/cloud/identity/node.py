"""Identity node: an `IdentityService` on a cloud's folder. It alone has the keys that make identities of devices."""

import asyncio

from walle.clock import Clock
from walle.cloud.config import CloudConfig
from walle.cloud.home import CloudHome
from walle.cloud.identity.service import IdentityService


class IdentityNode:
    """Owner of the identity service, which every gateway asks."""

    def __init__(self, config: CloudConfig, *, clock: Clock | None = None) -> None:
        home = CloudHome(config.folder)
        self._service = IdentityService(home.identity_folder, home.identities_db, clock=clock)

    async def start(self) -> IdentityService:
        """Return the service.

        Raises:
            AuthorityError: a key is damaged.
            IdentityStoreError: the file of identities cannot be opened.
        """
        await asyncio.to_thread(self._service.open)
        return self._service

    async def close(self) -> None:
        """Let the space go that is kept for revocations."""
        await asyncio.to_thread(self._service.close)
