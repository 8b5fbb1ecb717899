"""The engine of one process with what it needs: its files, the views of features, and its VMs."""

import asyncio
import contextlib
from pathlib import Path

from walle.base.clock import Clock
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.inference.feature_views import FeatureViews
from walle.cloud.inference.version_files import VersionFiles
from walle.cloud.inference.version_source import VersionSource
from walle.cloud.inference.vm_engine import VmEngine
from walle.cloud.simulation.isolation import check_layers, task_host
from walle.store.background import in_background

_UNLOAD_S = 60.0  # interval between two checks for versions that are not used any more


class LocalEngine:
    """A `VmEngine`, `vms`, between `start` and `close`. It unpacks what `source` gives in `folder`, its own."""

    def __init__(self, config: CloudConfig, clock: Clock, *, source: VersionSource, folder: Path) -> None:
        self._config = config
        self._clock = clock
        self._undo = contextlib.AsyncExitStack()
        self._files = VersionFiles(source, folder, config.inference_mb << 20)
        self.views = FeatureViews()
        self._host = task_host(config)  # a host that nothing else uses
        self.vms = VmEngine(
            config.inference_vms,
            config.inference_mb << 20,
            files=self._files,
            views=self.views,
            host=self._host,
            clock=clock,
        )

    async def start(self) -> None:
        """Raises as `FeatureViews.start` and `check_layers`."""
        await check_layers(self._config, self._host)
        self._files.prepare()
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self.views.close)
            uploads = self._config.uploads or str(CloudHome(self._config.folder).uploads_db)
            await self.views.start(self._config.features, uploads)
            await undo.enter_async_context(in_background("unused versions", self._unload_unused, self._clock))
            self._undo = undo.pop_all()

    async def _unload_unused(self) -> None:
        while True:
            await self._clock.sleep(_UNLOAD_S)
            self.vms.unload_unused()

    async def close(self) -> None:
        await self._undo.aclose()
        await self.vms.close()
        if self._host is not None:
            await asyncio.to_thread(self._host.close)
