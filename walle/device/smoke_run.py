"""Check of a version on its device before it is activated: it is loaded, and plays the events that travel with it.

The events are the first of those of its simulation, with the images and arrays that they name. They run in the VM host
with the limits of the task and the attributes of this device, in a separate feature store, history and
state that are removed afterwards: the outputs go nowhere. There is no cloud: `ctx.escalate` fails as on a device
that is offline. The active version continues meanwhile, in its own VMs: a bad version does no harm to them.

A version without such events is loaded only, as is one whose events trigger nothing. One that trains takes a step, too.
"""

import asyncio
import contextlib
import functools
import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from walle.deploy.agent.agent_errors import CheckFailedError
from walle.deploy.agent.exclusive import ExclusiveFiles, ExclusiveMissingError
from walle.engine_ext.vm.callbacks import Callbacks
from walle.engine_ext.vm.host import HostStartError, VmHost
from walle.engine_ext.vm.loop_calls import DeadlineExceeded, HostLost
from walle.pipeline.events.event import Event, EventError
from walle.pipeline.events.event_files import EventFiles
from walle.pipeline.events.event_log import EventLog, LoggedEvent
from walle.pipeline.features.database import StoreError
from walle.pipeline.stream.event_history import EventHistoryError
from walle.protocol import (
    MAX_SMOKE_BYTES,
    MAX_SMOKE_FILE_BYTES,
    SMOKE_EVENTS,
    SMOKE_FILE,
    SMOKE_FOLDER,
    Attribute,
    Manifest,
)
from walle.task.format.failure import failure_of
from walle.task.run.event_play import TRAINING, EventPlay, PlayedRun, events_of_users
from walle.task.run.image_decoder import ImageDecoder, resolve_apart
from walle.task.run.log import LogLine, TaskLog, last_lines
from walle.task.run.run_version import deadline_s
from walle.task.run.runner import TaskRunner

_LOG = logging.getLogger(__name__)

_MAX_RUNS = 3
_LEAST_S = 10.0  # least time for all runs of a version; a long deadline gives more
_AT_ONCE = 2  # versions of different tasks
_MAX_ARRAY_BYTES = 8 << 20  # limit of an event's images and arrays: a frame of 1920 by 1080 has 6.2 MB
_NOT_OF_VERSION = (HostLost, HostStartError, StoreError, EventHistoryError)


class SmokeRun:
    """The check of versions, for an agent, within `async with`. `folder` is for it alone, and removed at the start."""

    def __init__(
        self,
        folder: Path,
        device: Mapping[str, Attribute],
        exclusive: ExclusiveFiles,
        *,
        task_log: TaskLog,
        host: VmHost | None,
    ) -> None:
        self._folder = folder
        self._device = device
        self._exclusive = exclusive
        self._task_log = task_log
        self._host = host
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def check(self, files: Path, manifest: Manifest) -> None:
        """Load the version, and run it on the events that it brings.

        What takes longer than the runs may is ended, and does not count against the version: a run that never ends is
        stopped before by its own deadline.

        Raises:
            CheckFailedError: a run failed, at the deadline twice.
            VMError: the version does not load, or the VM host does not serve it.
        """
        async with self._turns:
            runner = TaskRunner(1, task_log=self._task_log, host=self._host)  # strikes of this check end with it
            try:
                await runner.load(files, manifest)
                events = await asyncio.to_thread(_events_of, files, manifest)
                if events is not None:
                    with contextlib.closing(_Events(events, self._host)) as log:
                        await self._try(runner, files, manifest, log)
                elif manifest.training is not None:
                    await self._try(runner, files, manifest, None)
            finally:
                runner.drop(files, manifest)
                await runner.close()

    async def _try(self, runner: TaskRunner, files: Path, manifest: Manifest, events: "_Events | None") -> None:
        step_s = 0.0 if manifest.training is None else manifest.training.step_ms / 1000
        limit_s = max(_LEAST_S, 2 * (_MAX_RUNS * deadline_s(manifest) + step_s))
        try:
            async with asyncio.timeout(limit_s):
                try:
                    await self._play(runner, files, manifest, events)
                except CheckFailedError as error:
                    if not isinstance(error.__cause__, DeadlineExceeded):
                        raise
                    await self._play(runner, files, manifest, events)  # the first run of a VM is the slowest
        except TimeoutError:
            what = "its smoke run was ended, which does not count against it: it took more than"
            _LOG.warning("%s %s: %s %g s", manifest.name, manifest.version, what, limit_s)
        except (StoreError, OSError) as error:
            what = "its smoke run was not made, which does not count against it"
            _LOG.warning("%s %s: %s: %s", manifest.name, manifest.version, what, error)

    async def _play(self, runner: TaskRunner, files: Path, manifest: Manifest, events: "_Events | None") -> None:
        await asyncio.to_thread(self._folder.mkdir, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            runs = _Runs(manifest, self._task_log, self._exclusive)
            users = {"": list[LoggedEvent]()} if events is None else await events.by_user()
            for number, of_user in enumerate(users.values()):  # the cloud's simulation plays them so
                play = EventPlay(
                    runner,
                    files,
                    manifest,
                    self._device,
                    Path(folder) / f"device-{number}",
                    callbacks=runs.callbacks,
                    on_end=runs.end,
                    on_log=lambda _: runs.log,
                    share_arrays=self._host is not None,
                )
                async with play as device:
                    await self._play_user(device, of_user, manifest, events, runs)
                if runs.count >= _MAX_RUNS:
                    break
            if not runs.count and events is not None:
                _LOG.info("%s %s: its smoke events trigger no run", manifest.name, manifest.version)

    async def _play_user(
        self,
        device: EventPlay,
        of_user: list[LoggedEvent],
        manifest: Manifest,
        events: "_Events | None",
        runs: "_Runs",
    ) -> None:
        for record in of_user:
            assert events is not None
            try:
                await device.play(await events.resolved(record.event), record.position)
            except EventError as error:
                _LOG.info("%s %s: a smoke event is refused: %s", manifest.name, manifest.version, error)
            if runs.failed is not None:
                raise runs.failure() from runs.failed
            if runs.count >= _MAX_RUNS:
                break
        else:
            await device.end()
        await device.train(1)
        if runs.failed is not None:
            raise runs.failure() from runs.failed


class _Runs:
    """The runs of one play, until the first that fails by the version's fault."""

    def __init__(self, manifest: Manifest, task_log: TaskLog, exclusive: ExclusiveFiles) -> None:
        self.count = 0
        self.failed: Exception | None = None
        self._manifest = manifest
        self._task_log = task_log
        self._lines: list[LogLine] = []  # lines of the latest run
        self._is_unserved = False  # the run asked for what a smoke run does not have
        self.callbacks: Callbacks = {"escalate": self._escalate}
        if manifest.exclusive:
            self.callbacks = {**self.callbacks, "exclusive.read": functools.partial(self._exclusive_file, exclusive)}

    def log(self, lines: Any) -> None:
        self._lines = list(lines)
        self._task_log.write(self._manifest.name, f"{self._manifest.version} (smoke run)", self._lines)

    def end(self, run: PlayedRun) -> None:
        self.count += run.trigger.event_id != TRAINING
        if run.error is not None and not self._is_unserved and self.failed is None:
            if isinstance(run.error, _NOT_OF_VERSION):
                _LOG.info("%s: a smoke run was inconclusive: %s", self._manifest.name, run.error)
            else:
                self.failed = run.error
        self._is_unserved = False

    def failure(self) -> CheckFailedError:
        assert self.failed is not None
        return CheckFailedError("its smoke run failed", failure_of(self.failed, log=last_lines(self._lines)))

    async def _escalate(self, *_: object) -> tuple[str, Any]:
        self._is_unserved = True
        return "away", "a smoke run has no cloud"

    async def _exclusive_file(self, exclusive: ExclusiveFiles, name: str, known: str) -> tuple[str, bytes | None]:
        try:
            return await exclusive.read(self._manifest, name, known)
        except ExclusiveMissingError:
            self._is_unserved = True
            raise


class _Events:
    """The smoke events of a version, until `close`. Images are decoded in a separate process, as in a VM host."""

    def __init__(self, log: Path, host: VmHost | None) -> None:
        self._log = log
        self._files = EventFiles.beside(log) if log.name != SMOKE_FILE else EventFiles.of({})
        self._images = None if host is None else ImageDecoder(host, max_bytes=_MAX_ARRAY_BYTES)

    async def by_user(self) -> dict[str, list[LoggedEvent]]:
        """Return the events of each user, which has its own device."""
        return await asyncio.to_thread(events_of_users, EventLog(self._log))

    async def resolved(self, event: Event) -> Event:
        """Return the event with its images and arrays. Raises EventError, also where they are too large."""
        return await resolve_apart(self._files, event, self._images, max_bytes=_MAX_ARRAY_BYTES)

    def close(self) -> None:
        if self._images is not None:
            self._images.close()


def _events_of(files: Path, manifest: Manifest) -> Path | None:
    """Return the log of the version's smoke events, None where it has none, or more than a device takes."""
    sizes = {entry.path: entry.size_bytes for entry in manifest.files}
    beside_bytes = sum(size for path, size in sizes.items() if path.startswith(SMOKE_FOLDER) and path != SMOKE_EVENTS)
    for path in (SMOKE_EVENTS, SMOKE_FILE):
        if path in sizes and sizes[path] <= MAX_SMOKE_BYTES and beside_bytes <= MAX_SMOKE_FILE_BYTES:
            return files / path if (files / path).is_file() else None
    return None
