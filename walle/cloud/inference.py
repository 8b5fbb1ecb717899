"""Fallback inference: runs a phase for a device that hands it over (`ctx.escalate`, §7.1 Fig. 9)."""

import asyncio
import contextlib
import functools
import shutil
from pathlib import Path
from typing import Any

from walle import plain
from walle.cloud.background import in_background
from walle.cloud.config import CloudConfig
from walle.cloud.home import CloudHome
from walle.cloud.peers import ReleasesPeer
from walle.deploy.cloud.bundle import unpack
from walle.engine_ext._core import packed_values
from walle.engine_ext.vm.host import shared_host
from walle.errors import DeployError
from walle.pipeline.ingest.feature_view import FeatureView, FeatureViewError, ViewConfig
from walle.pipeline.ingest.upload_store import open_uploads
from walle.pipeline.topics import check_readable
from walle.protocol import Manifest
from walle.task_runner import PHASE_TOPIC, TaskRunner

_MAX_VALUES = 1 << 19  # of a request, with those in containers: an empty list is 1 byte on the wire, and 72 in Python


class InferenceError(DeployError):
    """A hand-over that cannot be answered: `what` says why, to the device too."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class InferenceNode:
    """Answers tunnel requests with the task version that asked, in VMs of the cloud.

    A phase may ask for features that devices uploaded (`ctx.features`): `views` has the latest of each key.
    """

    def __init__(self, config: CloudConfig) -> None:
        self.views: dict[str, FeatureView] = {}
        self._config = config
        self._undo = contextlib.AsyncExitStack()
        self._home = CloudHome(config.folder)
        self._runner = TaskRunner(config.inference_vms, host=shared_host() if config.vm_host else None)
        self._versions: dict[tuple[str, str], asyncio.Task[tuple[Path, Manifest]]] = {}
        self._releases: ReleasesPeer | None = None

    async def start(self, releases: ReleasesPeer) -> None:
        self._releases = releases
        shutil.rmtree(self._home.inference_folder, ignore_errors=True)
        self._home.inference_folder.mkdir(parents=True)
        configs = [ViewConfig.parse(text) for text in self._config.features]
        if configs:
            await self._follow(configs)

    async def _follow(self, configs: list[ViewConfig]) -> None:
        """Keep views of the stored uploads up to date."""
        async with contextlib.AsyncExitStack() as undo:
            location = self._config.uploads or self._home.uploads_db
            uploads = await undo.enter_async_context(open_uploads(location))
            for config in configs:
                view = self.views[config.name] = FeatureView(config, uploads)
                await undo.enter_async_context(in_background(f"feature view {config.name}", view.run, uploads.clock))
            self._undo = undo.pop_all()

    async def close(self) -> None:
        await self._undo.aclose()
        for laying in list(self._versions.values()):
            laying.cancel()
        await asyncio.gather(*self._versions.values(), return_exceptions=True)
        await self._runner.close()

    async def answer(self, device_id: str, topic: str, payload: bytes) -> bytes:
        """Run the phase that the payload names, and return its result as plain data.

        Raises:
            InferenceError: the topic is unknown, the request cannot be read, the version was never released, or the
                result cannot be sent.
            PhasePlaceError, VMError: as `TaskRunner.phase`.
        """
        if topic != PHASE_TOPIC:
            raise InferenceError(f"request {topic[:100]!r} is unknown; a device may send {PHASE_TOPIC!r}")
        if (values := packed_values(payload)) > _MAX_VALUES:
            what = f"the request of {device_id} has {values} values, more than {_MAX_VALUES}; hand over arrays"
            raise InferenceError(what)
        try:
            question = plain.decode(payload)
            task, version, phase = (str(question[key]) for key in ("task", "version", "phase"))
            value, device = question["payload"], {**question["device"], "id": device_id}
        except (plain.PlainDataError, KeyError, TypeError) as error:
            raise InferenceError(f"the request of {device_id} cannot be read: {error!r}") from error
        files, manifest = await self._version(task, version)
        callbacks = {"features": functools.partial(self._latest, manifest)}
        result = await self._runner.phase(files, manifest, phase, value, device, callbacks=callbacks)
        try:
            return plain.encode(result)
        except plain.PlainDataError as error:
            what = f"{phase} of {task} {version} returned a value that cannot be sent: {error}"
            raise InferenceError(what) from error

    def _latest(self, manifest: Manifest, name: str, key: dict[str, Any]) -> Any:
        """Return the latest feature of a key in a view of the task's scenario, if the task may read its topic."""
        scenario = manifest.scenario
        view = self.views.get(f"{scenario}/{name}")
        if view is None:
            known = ", ".join(sorted(each.partition("/")[2] for each in self.views if each.startswith(f"{scenario}/")))
            raise FeatureViewError(f"feature view {name!r} is unknown; {scenario!r} has {known or 'none'}")
        check_readable(manifest.name, manifest.readable_topics, view.config.topic)
        return view.latest(key)

    async def _version(self, task: str, version: str) -> tuple[Path, Manifest]:
        """Return the folder and manifest of a version, unpacked at first use; concurrent callers share that."""
        key = (task, version)
        laying = self._versions.get(key)
        if laying is None:
            laying = self._versions[key] = asyncio.create_task(self._lay_out(task, version))
            laying.add_done_callback(functools.partial(self._forget_failed, key))
        return await asyncio.shield(laying)

    def _forget_failed(self, key: tuple[str, str], laying: asyncio.Task[tuple[Path, Manifest]]) -> None:
        if laying.cancelled() or laying.exception() is not None:
            del self._versions[key]

    async def _lay_out(self, task: str, version: str) -> tuple[Path, Manifest]:
        assert self._releases is not None
        for release in await self._releases.all():
            if (release.request.name, release.request.version) == (task, version) and release.manifest:
                return await asyncio.to_thread(self._unpack, release.manifest)
        raise InferenceError(f"{task[:200]} {version[:100]} was never released here")

    def _unpack(self, sha256: str) -> tuple[Path, Manifest]:
        store = self._home.files
        manifest = self._home.trusted_keys.verify_manifest(store.path(sha256).read_bytes())
        blobs = {entry.sha256: store.path(entry.sha256).read_bytes() for entry in manifest.files}
        folder = self._home.inference_folder / sha256
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
        unpack(manifest, blobs, folder)
        return folder, manifest
