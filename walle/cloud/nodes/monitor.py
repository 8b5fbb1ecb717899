"""Monitor node: its verdicts on outcomes roll failing versions back (§6, "exception handling module")."""

import asyncio
import contextlib
import functools
from collections.abc import Callable

from walle.base.clock import SystemClock
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.folder.state import STOP_S, StopWhenLost, node_state
from walle.deploy.monitor.service import MonitorService
from walle.store.background import in_background
from walle.store.lease import MONITOR

_GROUP_S = 0.01  # time that a report waits for others with which it is journalled


class MonitorNode:
    """Owner of the monitor service, its journal and the device registry, between `start` and `close`."""

    def __init__(self, config: CloudConfig) -> None:
        self.lost = asyncio.Event()  # replaced by that of the lease, which stops the node
        self._config = config
        self._home = CloudHome(config.folder, database=config.database)
        self._undo = contextlib.AsyncExitStack()
        self._stopping: StopWhenLost | None = None
        self._hurry: Callable[[float], None] = lambda _: None

    async def start(self, *, is_successor: bool = False) -> MonitorService:
        """Return the service with the evidence of its journal, once it has the lease. The caller sets `on_verdict`.

        `is_successor`: a process that held the lease for the same cloud has ended.

        Raises:
            StateError: the journal or the device registry cannot be opened.
            LeaseLostError: another cloud than the predecessor's has the lease.
        """
        clock = SystemClock()
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(self._home.close)
            state = await undo.enter_async_context(node_state(self._home, MONITOR, clock, is_successor=is_successor))
            self._hurry = state.hurry
            uploaded = self._home.uploaded
            devices = await undo.enter_async_context(state.registry(clock, uploaded=uploaded))
            monitor = MonitorService(
                state.journal,
                clock,
                devices=devices,
                uploaded=uploaded,
                audit=self._home.audit,
                group_s=_GROUP_S,
                reports_s=self._config.reports_s,
            )
            follow = functools.partial(uploaded.follow, clock, lambda _: None)
            await undo.enter_async_context(in_background("uploaded attributes", follow, clock))
            service = await undo.enter_async_context(monitor)
            self._undo = undo.pop_all()
        self._stopping = StopWhenLost("monitor", state.keeper, self._undo.aclose)
        self.lost = self._stopping.lost
        return service

    def hurry(self, limit_s: float = STOP_S) -> None:
        """End what waits for a database in `limit_s`: the node is closed next."""
        self._hurry(limit_s)

    async def close(self) -> None:
        """Save the evidence and close the journal, in some seconds where the database does not answer."""
        self.hurry()
        if self._stopping is not None:
            await self._stopping.close()
        await self._undo.aclose()
