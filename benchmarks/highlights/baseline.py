"""The cloud-only baseline on a local Ray: one actor for each variant, its clients, and what they use."""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import ray

from apps.livestream.player import DECIDER
from apps.livestream.studio import SETTINGS
from apps.livestream.task_files import Models, tasks_of, write_task
from benchmarks.highlights import processes
from benchmarks.highlights.cloud_process import CloudUse
from benchmarks.highlights.stream_client import StreamClient
from benchmarks.highlights.stream_server import StreamServer
from walle.actors.wiring import close_ray, start_ray

VIEWS = 6  # views of a frame in the highlight task's closer look (tasks/highlight/views.py)
EVERY_SECOND = {DECIDER: {"sure": [-1.0, 2.0]}}  # settings by which each second is looked at more closely


class RayCluster:
    """A local Ray within `async with`, and the CPU time of its own processes."""

    async def __aenter__(self) -> Self:
        before = set(processes.descendants(os.getpid()))
        await asyncio.to_thread(start_ray, import_root=Path(__file__).parents[2])
        self._own = set(processes.descendants(os.getpid())) - before
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(close_ray)

    def cpu_s(self, *, besides: set[int]) -> float:
        """Return the CPU seconds of Ray's processes but for the actors' in `besides`."""
        return sum(processes.one_cpu_s(pid) for pid in self._own - besides)


class Baseline:
    """One variant of the baseline, within `async with`; `settings` are of tasks, by name."""

    def __init__(self, folder: Path, models: Models, settings: Mapping[str, Mapping[str, Any]]) -> None:
        self._folder = folder
        self._models = models
        self._settings = {**SETTINGS, **settings}
        self.sent_bytes = 0

    async def __aenter__(self) -> Self:
        folders = {}
        for name in tasks_of(self._models):
            folders[name] = await asyncio.to_thread(
                write_task, name, self._folder / name, self._models, settings=self._settings.get(name)
            )
        kind: Any = ray.remote(num_cpus=0, max_restarts=-1)(StreamServer)
        self._actor = kind.remote(self._folder / "authority", folders, VIEWS)
        self._port, self.pid = await self._actor.start.remote()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._actor.close.remote()
        ray.kill(self._actor)

    def client(self, *, paced: bool) -> StreamClient:
        return StreamClient(self._port, self._folder / "authority" / "ca.pem", paced=paced)

    async def runs(self) -> dict[str, int]:
        """Return the counts of `ModelRuns`."""
        found: dict[str, int] = await self._actor.runs.remote()
        return found

    async def use(self) -> CloudUse:
        """Return what the actor's process has used so far; `sent_bytes` is what clients reported."""
        return CloudUse(processes.cpu_s(self.pid), self.sent_bytes, time.monotonic())
