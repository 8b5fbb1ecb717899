"""Release node: a `ReleaseService` on a cloud's folder and peers."""

import asyncio
import contextlib
from collections.abc import Mapping

from walle.clock import SystemClock
from walle.cloud.config import CloudConfig
from walle.cloud.home import CloudHome
from walle.cloud.peers import GatewayPeer, MonitorPeer
from walle.cloud.simulation import Simulator
from walle.deploy.cloud.bundle import CONFIG_FILE, Bundle, TaskVersion, build_bundle
from walle.deploy.cloud.compilers import other_pythons
from walle.deploy.cloud.journal import Journal
from walle.deploy.cloud.release_service import ReleaseService, World
from walle.deploy.cloud.simulation_result import SimulationResult
from walle.deploy.cloud.task_config import TaskConfig
from walle.pipeline.event_files import EventFiles


class ReleaseNode:
    """Owner of the release service and what it uses, between `start` and `close`."""

    def __init__(self, config: CloudConfig) -> None:
        self._config = config
        self._home = CloudHome(config.folder)
        self._undo = contextlib.AsyncExitStack()

    async def start(self, gateway: GatewayPeer, monitor: MonitorPeer) -> ReleaseService:
        """Return the service, which continues the releases that its journal has.

        Raises:
            ConfigError: one of the configured Pythons cannot compile.
            JournalError: the journal cannot be opened.
        """
        home = self._home
        others = await asyncio.to_thread(other_pythons, self._config.pythons)
        simulator = Simulator(self._config.simulation_vms, vm_host=self._config.vm_host)

        async def check_version(scenario: str, task: str, version: str) -> None:
            await asyncio.to_thread(home.repos.check_version, scenario, task, version)

        async def read_config(scenario: str, task: str, version: str) -> TaskConfig:
            return TaskConfig.parse(
                await asyncio.to_thread(home.repos.read_file, scenario, task, version, CONFIG_FILE), CONFIG_FILE
            )

        async def read_version(scenario: str, task: str, version: str) -> TaskVersion:
            return TaskVersion.parse(await asyncio.to_thread(home.repos.read, scenario, task, version))

        async def build(version: TaskVersion) -> Bundle:
            return await asyncio.to_thread(build_bundle, version, home.bundle_signer, others)

        async def put(data: bytes) -> str:
            return await asyncio.to_thread(home.files.put, data)

        async def put_cloud_file(data: bytes) -> str:
            return await asyncio.to_thread(home.cloud_files.put, data)

        async def simulate(bundle: Bundle, events: bytes | None, files: Mapping[str, bytes]) -> SimulationResult:
            return await simulator.run(bundle, events, files=EventFiles.of(files))

        world = World(
            check_version=check_version,
            read_config=read_config,
            read_version=read_version,
            build=build,
            put=put,
            put_cloud_file=put_cloud_file,
            simulate=simulate,
            publish=gateway.publish,
            recent_devices=gateway.recent_devices,
            sign=home.release_signer.sign_directive,
            judge=monitor,
        )
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(simulator.close)
            journal = await undo.enter_async_context(Journal(home.releases_db))
            service = ReleaseService(journal, world, SystemClock(), cdn_url=home.file_addresses.prefix)
            await undo.enter_async_context(service)
            self._undo = undo.pop_all()
        return service

    async def close(self) -> None:
        """Stop the service; effects that have not run stay journalled."""
        await self._undo.aclose()
