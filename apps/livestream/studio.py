"""A cloud on this machine with the app's tasks released, and devices that have them: for the demo and the figures."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from apps.livestream.player import SCENARIO
from apps.livestream.task_files import MODULES, Models, tasks_of, write_modules, write_task
from apps.task_repo import TaskRepo
from walle.client.release_client import ReleaseClient, ReleaseJson
from walle.cloud import Cloud, CloudConfig
from walle.deploy.releases.release import ReleaseState
from walle.device import Device, DeviceConfig
from walle.errors import WalleError

VERSION = "v1"
# Weak detections are evidence too; the decision weighs them.
SETTINGS: Mapping[str, Mapping[str, Any]] = {"item": {"score": 0.25}}
_INSTALL_LIMIT_S = 120.0
_CHECKIN_S = 0.3


class TasksNotInstalledError(WalleError):
    """The devices did not get the app's tasks, since a release ended or the time is over."""


class Studio:
    """Cloud and devices, within `async with`. `folder` holds all that they keep.

    `settings` replace settings of a task by its name, as `write_task` takes them. The tasks and the modules that they
    share are pushed with git, and the tasks released; each device is a beta device, so it gets them after the
    simulation. `cloud` makes the cloud, by default in this process; one made elsewhere gives its `address` and `home`.

    Raises, from entering:
        GitError, ModelFileError, TaskFilesError: the tasks cannot be pushed.
        TasksNotInstalledError: a simulation failed, or the machine is too slow.
    """

    def __init__(
        self,
        folder: Path,
        models: Models,
        *,
        devices: int = 1,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        cloud: Callable[[CloudConfig], contextlib.AbstractAsyncContextManager[Any]] = Cloud,
    ) -> None:
        self._folder = folder
        self._models = models
        self._tasks = tasks_of(models)
        self._count = devices
        self._settings = {**SETTINGS, **(settings or {})}
        self._make_cloud = cloud
        self.cloud: Any
        self.devices: list[Device] = []

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as undo:
            config = CloudConfig(folder=self._folder / "cloud", scenarios=(SCENARIO,))
            self.cloud = await undo.enter_async_context(self._make_cloud(config))
            token = self.cloud.home.admin_token
            async with ReleaseClient(self.cloud.address.url, token) as releases:
                await self._ship(releases)
                for number in range(self._count):
                    self.devices.append(await undo.enter_async_context(Device(self._device_config(number))))
                await self._install(releases)
            self._undo = undo.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._undo.aclose()

    async def _ship(self, releases: ReleaseClient) -> None:
        repo = TaskRepo(self._folder / "work", self.cloud.address.url, SCENARIO, self.cloud.home.admin_token)
        await asyncio.to_thread(repo.push, MODULES, VERSION, write_modules)
        for name in self._tasks:
            write = functools.partial(write_task, name, models=self._models, settings=self._settings.get(name))
            await asyncio.to_thread(repo.push, name, VERSION, write)
            await releases.create(SCENARIO, name, VERSION, beta=self._count, steps=(1.0,))

    async def _install(self, releases: ReleaseClient) -> None:
        """Wait until each device has the tasks, or a release is over before that."""
        try:
            async with asyncio.timeout(_INSTALL_LIMIT_S):
                while lacking := self._lacking():
                    await asyncio.gather(*(device.checkin() for device in self.devices))
                    found = await releases.list_all()
                    if any(ReleaseState(each["state"]).terminal for each in found):
                        raise TasksNotInstalledError(f"the tasks were not released: {_states(found)}")
                    await asyncio.sleep(_CHECKIN_S)
        except TimeoutError:
            raise TasksNotInstalledError(
                f"no {', '.join(sorted(lacking))} on a device after {_INSTALL_LIMIT_S:.0f} s;"
                f" {_states(await releases.list_all())}"
            ) from None

    def _lacking(self) -> set[str]:
        """Return the tasks that a device does not have yet."""
        names = (f"{SCENARIO}/{name}" for name in self._tasks)
        return {name for name in names if any(name not in device.tasks for device in self.devices)}

    def _device_config(self, number: int) -> DeviceConfig:
        address, home = self.cloud.address, self.cloud.home
        device_id = f"camera-{number + 1}"
        return DeviceConfig(
            device_id=device_id,
            folder=self._folder / "devices" / device_id,
            app_version="1.0",
            attributes={},
            cloud_url=address.url,
            tunnel_host=address.tunnel_host,
            tunnel_port=address.tunnel_port,
            ca_pem=address.ca_pem,
            trusted_keys=home.trusted_keys,
            enrolment_token=home.identities().make_token(device_id, life_s=3600.0),
            vms=len(self._tasks) + 1,  # one more for a version that is being checked
            report_interval_s=1.0,
        )


def _states(releases: Sequence[ReleaseJson]) -> str:
    return "; ".join(f"{each['id']} is {each['stage']}: {each['reason'] or 'no reason'}" for each in releases)
