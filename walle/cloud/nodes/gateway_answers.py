"""Push answers of a gateway: the release table on its way in, the pull budget, and the devices that it has seen."""

import asyncio
import functools

from walle.base.clock import Clock
from walle.cloud.api.interfaces import MonitorPeer
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.nodes.table_publisher import TablePublisher
from walle.deploy.push.answerer import Answerer
from walle.deploy.push.pull_budget import PullBudget, PullRate
from walle.deploy.push.pull_sizes import PullSizes
from walle.deploy.push.table_feed import TableFeed
from walle.deploy.releases.table import ReleaseTable
from walle.store.background import Works

_NOTE_S = 2.0  # pause between two lists of the devices that were seen


class GatewayAnswers:
    """An answerer with its table, feed and budget. It takes tables from when it is made."""

    def __init__(self, config: CloudConfig, home: CloudHome, clock: Clock) -> None:
        self._home = home
        self._clock = clock
        self._sizes = PullSizes(home.files)
        rate = PullRate(config.pulls_s, config.pull_mb_s * 1e6)
        self.pulls = PullBudget(rate, clock, self._sizes.of) if any(rate) else None
        self.answerer = Answerer(budget=self.pulls, trace_ratio=config.trace_ratio if config.traces else 0.0)
        self.feed = TableFeed(self.answerer, lambda: self._sizes.known)
        self.tables = TablePublisher(self.feed, clock)
        self._has_table = asyncio.Event()

    async def publish(self, table: ReleaseTable) -> None:
        """Answer from `table` from now on; new versions once fallback inference has loaded them."""
        if self.pulls is not None:
            await self._sizes.learn(table.manifests)
        await self.tables.publish(table)
        self._has_table.set()

    async def read_uploaded(self) -> None:
        """Answer by the uploaded attributes of now."""
        await asyncio.to_thread(self._home.uploaded.read)
        self.answerer.swap_uploaded(self._home.uploaded.current)

    def works(self, monitor: MonitorPeer) -> Works:
        """Return what is done while the gateway runs."""
        return {
            "uploaded attributes": functools.partial(
                self._home.uploaded.follow, self._clock, self.answerer.swap_uploaded
            ),
            "list of devices": functools.partial(self._note_devices, monitor),
            "sizes of versions": self._learn_sizes,
        }

    async def _note_devices(self, monitor: MonitorPeer) -> None:
        """Pass on which devices sent profiles, until cancelled."""
        devices = self.answerer.devices
        while True:
            await devices.wait()
            await self._clock.sleep(_NOTE_S)
            await monitor.note_profiles(devices.take())

    async def _learn_sizes(self) -> None:
        """Tell other gateways how large versions are, after each table; a rollback does not wait for it."""
        while True:
            await self._has_table.wait()
            self._has_table.clear()
            if await self._sizes.learn(self.answerer.table.manifests):
                self.feed.tell()
