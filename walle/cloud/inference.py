"""Fallback inference: runs a phase for a device that hands it over (`ctx.escalate`, §7.1 Fig. 9)."""

import asyncio
import contextlib
import functools
import shutil
from pathlib import Path

from walle import plain
from walle.cloud.config import CloudConfig
from walle.cloud.home import CloudHome
from walle.cloud.peers import ReleasesPeer
from walle.deploy.cloud.bundle import unpack
from walle.errors import DeployError
from walle.protocol import Manifest
from walle.task_runner import PHASE_TOPIC, TaskRunner


class InferenceError(DeployError):
    """A hand-over that cannot be answered: `what` says why, to the device too."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class InferenceNode:
    """Answers tunnel requests with the task version that asked, in VMs of the cloud."""

    def __init__(self, config: CloudConfig) -> None:
        self._home = CloudHome(config.folder)
        self._runner = TaskRunner(config.inference_vms)
        self._versions: dict[tuple[str, str], asyncio.Task[tuple[Path, Manifest]]] = {}
        self._releases: ReleasesPeer | None = None

    async def start(self, releases: ReleasesPeer) -> None:
        self._releases = releases
        shutil.rmtree(self._home.inference_folder, ignore_errors=True)
        self._home.inference_folder.mkdir(parents=True)

    async def close(self) -> None:
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
        try:
            question = plain.decode(payload)
            task, version, phase = (str(question[key]) for key in ("task", "version", "phase"))
            value, device = question["payload"], {**question["device"], "id": device_id}
        except (plain.PlainDataError, KeyError, TypeError) as error:
            raise InferenceError(f"the request of {device_id} cannot be read: {error!r}") from error
        files, manifest = await self._version(task, version)
        result = await self._runner.phase(files, manifest, phase, value, device)
        try:
            return plain.encode(result)
        except plain.PlainDataError as error:
            what = f"{phase} of {task} {version} returned a value that cannot be sent: {error}"
            raise InferenceError(what) from error

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
