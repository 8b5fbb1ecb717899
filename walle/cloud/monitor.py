"""Monitor node: its verdicts on outcomes roll failing versions back (§6, "exception handling module")."""

import asyncio
import contextlib

from walle.clock import SystemClock
from walle.cloud.config import CloudConfig
from walle.cloud.home import CloudHome
from walle.deploy.cloud.journal import Journal
from walle.deploy.cloud.monitor_service import MonitorService


class MonitorNode:
    """Owner of the monitor service, its journal and the task that saves its evidence, between `start` and `close`."""

    def __init__(self, config: CloudConfig) -> None:
        self._home = CloudHome(config.folder)
        self._undo = contextlib.AsyncExitStack()

    async def start(self) -> MonitorService:
        """Return the service with the evidence of its journal. The caller sets `on_verdict`.

        Raises:
            JournalError: the journal cannot be opened.
        """
        async with contextlib.AsyncExitStack() as undo:
            journal = await undo.enter_async_context(Journal(self._home.monitor_db))
            service = MonitorService(journal, SystemClock())
            await service.load()
            undo.push_async_callback(service.flush)
            undo.push_async_callback(_cancel, asyncio.create_task(service.run()))
            self._undo = undo.pop_all()
        return service

    async def close(self) -> None:
        """Save the evidence and close the journal."""
        await self._undo.aclose()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
