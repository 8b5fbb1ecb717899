"""Monitor node: its verdicts on outcomes roll failing versions back (§6, "exception handling module")."""

import contextlib
import functools

from walle.clock import SystemClock
from walle.cloud.background import in_background
from walle.cloud.config import CloudConfig
from walle.cloud.home import CloudHome
from walle.deploy.cloud.device_registry import DeviceRegistry
from walle.deploy.cloud.lease import MONITOR, LeaseKeeper
from walle.deploy.cloud.monitor_service import MonitorService
from walle.deploy.cloud.sqlite_journal import SqliteJournal
from walle.deploy.cloud.sqlite_leases import SqliteLeases

_GROUP_S = 0.01  # that a report waits for others with which it is journalled


class MonitorNode:
    """Owner of the monitor service, its journal and the device registry, between `start` and `close`."""

    def __init__(self, config: CloudConfig) -> None:
        self._home = CloudHome(config.folder)
        self._undo = contextlib.AsyncExitStack()

    async def start(self) -> MonitorService:
        """Return the service with the evidence of its journal. The caller sets `on_verdict`.

        Raises:
            JournalError: the journal or the device registry cannot be opened.
        """
        clock = SystemClock()
        async with contextlib.AsyncExitStack() as undo:
            leases = SqliteLeases(self._home.monitor_db)
            keeper = await undo.enter_async_context(LeaseKeeper(leases, MONITOR, clock))
            journal = await undo.enter_async_context(SqliteJournal(self._home.monitor_db, grant=keeper.grant))
            uploaded = self._home.uploaded
            devices = await undo.enter_async_context(DeviceRegistry(self._home.devices_db, clock, uploaded=uploaded))
            monitor = MonitorService(
                journal, clock, devices=devices, uploaded=uploaded, audit=self._home.audit, group_s=_GROUP_S
            )
            follow = functools.partial(uploaded.follow, clock, lambda _: None)
            await undo.enter_async_context(in_background("uploaded attributes", follow, clock))
            service = await undo.enter_async_context(monitor)
            self._undo = undo.pop_all()
        return service

    async def close(self) -> None:
        """Save the evidence and close the journal."""
        await self._undo.aclose()
