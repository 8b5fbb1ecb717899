"""Fallback inference: runs a phase for a device that hands it over (`ctx.escalate`, §7.1 Fig. 9)."""

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import Any

from walle import plain
from walle.cloud.config import CloudConfig
from walle.cloud.home import CloudHome
from walle.cloud.peers import Judged
from walle.deploy.bundle import unpack
from walle.errors import DeployError
from walle.protocol import Manifest
from walle.task_runner import TaskRunner

PHASE_TOPIC = "phase"
_PHASES_ON_CLOUD = ("cloud", "auto")


class InferenceError(DeployError):
    """A hand-over that cannot be answered: `what` says why, and reaches the device."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class InferenceNode:
    """Answers tunnel requests with the task version that asked, in VMs of the cloud."""

    def __init__(self, config: CloudConfig) -> None:
        self.answered = 0
        self.failed = 0
        self._home = CloudHome(config.folder)
        self._runner = TaskRunner(config.inference_vms)
        self._versions: dict[tuple[str, str], asyncio.Task[tuple[Path, Manifest]]] = {}
        self._releases: Judged | None = None

    async def open(self, releases: Judged) -> None:
        self._releases = releases
        shutil.rmtree(self._home.inference_folder, ignore_errors=True)
        self._home.inference_folder.mkdir(parents=True)

    async def close(self) -> None:
        await self._runner.close()

    async def answer(self, device_id: str, topic: str, payload: bytes) -> bytes:
        """Run the phase that the payload names, and return its result as plain data.

        Raises:
            InferenceError: it is no such request, or the version or its phase is not to be run here.
            VMError: the phase failed.
        """
        if topic != PHASE_TOPIC:
            raise InferenceError(f"there is no request {topic[:100]!r}; a device may ask for {PHASE_TOPIC!r}")
        try:
            question = plain.decode(payload)
            task, version, phase = (str(question[key]) for key in ("task", "version", "phase"))
            value, device = question["payload"], {**question["device"], "id": device_id}
        except (plain.PlainDataError, KeyError, TypeError) as error:
            raise InferenceError(f"the request of {device_id} cannot be read: {error!r}") from error
        try:
            result = await self._run(task, version, phase, value, device)
        except BaseException:
            self.failed += 1
            raise
        self.answered += 1
        return plain.encode(result)

    async def _run(self, task: str, version: str, phase: str, value: Any, device: dict[str, Any]) -> Any:
        files, manifest = await self._version(task, version)
        if manifest.phases.get(phase) not in _PHASES_ON_CLOUD:
            raise InferenceError(f"task.toml of {task} {version} does not let {phase!r} run on the cloud")
        return await self._runner.phase(files, manifest, phase, value, device)

    async def _version(self, task: str, version: str) -> tuple[Path, Manifest]:
        """Return where a version lies here, laying it out at first use; several callers wait for one."""
        key = (task, version)
        if key not in self._versions:
            self._versions[key] = asyncio.create_task(self._lay_out(task, version))
        try:
            return await asyncio.shield(self._versions[key])
        except BaseException:
            if self._versions[key].done():
                del self._versions[key]
            raise

    async def _lay_out(self, task: str, version: str) -> tuple[Path, Manifest]:
        assert self._releases is not None
        for release in await self._releases.all():
            if (release.request.name, release.request.version) == (task, version) and release.manifest:
                return await asyncio.to_thread(self._unpack, release.manifest)
        raise InferenceError(f"{task} {version} was never released here")

    def _unpack(self, sha256: str) -> tuple[Path, Manifest]:
        store = self._home.files
        manifest = self._home.trusted_keys.verify_manifest(store.path(sha256).read_bytes())
        blobs = {entry.sha256: store.path(entry.sha256).read_bytes() for entry in manifest.files}
        folder = self._home.inference_folder / sha256
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
        unpack(manifest, blobs, folder)
        return folder, manifest
