"""The rollback node: the monitor whose verdicts take failing versions back (§6, "exception handling module")."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from walle.clock import SystemClock
from walle.cloud.config import CloudConfig
from walle.cloud.home import CloudHome
from walle.deploy.cloud.journal import Journal
from walle.deploy.cloud.monitor_service import MonitorService


@contextlib.asynccontextmanager
async def rollback_node(config: CloudConfig) -> AsyncIterator[MonitorService]:
    """Give the monitor of the cloud in `config.folder`. The caller sets `on_verdict` once the releases can be told."""
    async with Journal(CloudHome(config.folder).monitor_db) as journal:
        service = MonitorService(journal, SystemClock())
        await service.load()
        saving = asyncio.create_task(service.run())
        try:
            yield service
        finally:
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)
            await service.flush()
