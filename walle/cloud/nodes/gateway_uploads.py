"""Uploads of a gateway: the store that they go to, its retention, and what watches it."""

import contextlib
from collections.abc import AsyncIterator

from walle.base.clock import Clock
from walle.cloud.api.interfaces import WatchedParts
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.telemetry.losses_watch import LossesWatch
from walle.cloud.telemetry.uploads_watch import UploadsWatch
from walle.pipeline.ingest.store.quota import DeviceQuota
from walle.pipeline.ingest.store.retention import Retention, parse_rule
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.pipeline.ingest.stores import open_uploads
from walle.store.background import Works


class GatewayUploads:
    """The store, within the block of `opened`."""

    store: UploadStore
    retention: Retention
    watch: UploadsWatch

    def __init__(self, config: CloudConfig, home: CloudHome, clock: Clock) -> None:
        self._config = config
        self._home = home
        self._clock = clock
        self._has_rules = bool(config.retention)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the store for the block.

        Raises:
            ConfigError: a retention rule or the quota cannot be read.
            IngestError: the store cannot be opened.
        """
        config = self._config
        rules = dict(parse_rule(rule) for rule in config.retention)
        quota = DeviceQuota.parse(config.device_quota)
        location = config.uploads or self._home.uploads_db
        async with open_uploads(location, create=True, clock=self._clock, device_quota=quota) as self.store:
            self.retention = Retention(self.store, rules)
            self.watch = UploadsWatch(self.store, self.retention, self._clock)
            self._losses = LossesWatch(self.store.loss_totals, self._clock)
            yield

    def works(self) -> Works:
        """Return what is done while the gateway runs."""
        works: Works = {"watch of uploads": self.watch.run, "watch of losses": self._losses.run}
        return {**works, "retention of uploads": self.retention.run} if self._has_rules else works

    def parts(self) -> WatchedParts:
        """Return what /healthz and /metrics show."""
        return {"uploads": self.watch, "losses": self._losses}
