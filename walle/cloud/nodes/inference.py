"""Fallback-inference node: answers devices' requests by a scheduler and an engine."""

import asyncio
import shutil
from collections.abc import Sequence
from typing import Any

from prometheus_client.core import Metric

from walle.base.clock import Clock, SystemClock
from walle.cloud.api.interfaces import ReleasesPeer
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.inference.counts import InferenceCounts
from walle.cloud.inference.engine import Engine
from walle.cloud.inference.failures import InferenceError
from walle.cloud.inference.feature_views import FeatureViews
from walle.cloud.inference.local_engine import LocalEngine
from walle.cloud.inference.request import PhaseRequest, phase_request
from walle.cloud.inference.scheduler import Scheduler
from walle.cloud.inference.served_versions import ServedVersions
from walle.cloud.inference.version_source import HomeSource
from walle.cloud.inference.versions import Versions
from walle.cloud.inference.watch import InferenceWatch
from walle.task.run.runner import check_place


class InferenceNode:
    """Answers tunnel requests with the task version that asked, in VMs of the cloud.

    Without `engine` these are in this process. A phase may ask for features that devices uploaded (`ctx.features`).
    """

    def __init__(self, config: CloudConfig, engine: Engine | None = None, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._home = CloudHome(config.folder)
        source, folder = HomeSource(self._home), self._home.inference_folder / "main"
        self._local = LocalEngine(config, self._clock, source=source, folder=folder) if engine is None else None
        self._engine: Engine = engine or self._local.vms  # type: ignore[union-attr]
        self._scheduler = Scheduler(self._engine, self._clock)
        self._watch = InferenceWatch(self._scheduler, self._engine)
        self._versions: Versions | None = None
        self._served: ServedVersions | None = None

    @property
    def views(self) -> FeatureViews:
        """The views of uploaded features; none where the engine is in other processes, which have their own."""
        return FeatureViews() if self._local is None else self._local.views

    @property
    def counts(self) -> InferenceCounts:
        return self._scheduler.counts

    async def start(self, releases: ReleasesPeer) -> None:
        self._versions = Versions(self._home, releases)
        self._served = ServedVersions(self._versions, self._engine)
        self._watch.loads = self._served.loads
        if self._local is not None:
            await asyncio.to_thread(
                shutil.rmtree, self._home.inference_folder, ignore_errors=True
            )  # an earlier process may have left it
            await self._local.start()

    async def close(self) -> None:
        if self._served is not None:
            served, self._served = self._served, None  # nothing is loaded any more
            await served.close()
        if self._versions is not None:
            await self._versions.close()
        await self._scheduler.close()
        await self._engine.close()
        if self._local is not None:
            await self._local.close()

    async def answer(self, device_id: str, topic: str, payload: bytes) -> bytes:
        """Run the phase that the payload names, whoever asks, and return its result as plain data.

        The deadline is that of the tunnel's request (`request_due_s`).

        Raises:
            InferenceFullError: there is no room for the request, or not enough time.
            InferenceLateError: it could not run before its deadline.
            InferenceError: the topic is unknown, the request cannot be read, the version was never released, or the
                result cannot be sent.
            PhasePlaceError, VMError: as `TaskRunner.phase`.
        """
        return await self.run(phase_request(device_id, topic, payload))

    async def run(self, request: PhaseRequest) -> bytes:
        """Run the phase of a request that was read, whoever asks. Raises as `answer`."""
        if self._versions is None:
            raise InferenceError("fallback inference has not started yet")
        version = await self._versions.find(request.task, request.version)
        check_place(version.manifest, request.phase)
        return await self._scheduler.answer(version, request)

    async def cold(self, manifests: Sequence[str]) -> frozenset[str]:
        """Return those of these versions whose phases run here and that are not loaded."""
        return frozenset() if self._served is None else await self._served.cold(manifests)

    async def load(self, manifest: str) -> None:
        """Load a version before devices ask for it; others make room for it. A failure is logged and counted."""
        if self._served is not None:
            await self._served.load(manifest)

    async def keep(self, manifests: Sequence[str]) -> None:
        """Take note of the versions that devices may get: they are loaded as far as there is room, and stay so."""
        if self._served is not None:
            await self._served.keep(manifests)

    def health(self) -> dict[str, Any]:
        """Return the state as JSON, for /healthz."""
        return self._watch.health()

    def metrics(self) -> list[Metric]:
        """Return the state for /metrics."""
        return self._watch.metrics()
