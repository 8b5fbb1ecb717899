"""The release node: a `ReleaseService` that acts on a cloud's folder and on its peers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from walle.clock import SystemClock
from walle.cloud.config import CloudConfig
from walle.cloud.home import CloudHome
from walle.cloud.peers import Gateway, Monitor
from walle.cloud.simulation import Simulator
from walle.deploy.cloud.bundle import CONFIG_FILE, Bundle, build_bundle
from walle.deploy.cloud.compilers import other_pythons
from walle.deploy.cloud.journal import Journal
from walle.deploy.cloud.release_service import ReleaseService, SimulationResult, World
from walle.deploy.cloud.repo import TaskTree
from walle.deploy.cloud.task_config import TaskConfig

CDN_URL = "/cdn"  # relative: a device takes it from the gateway that it knows


@contextlib.asynccontextmanager
async def release_node(config: CloudConfig, gateway: Gateway, monitor: Monitor) -> AsyncIterator[ReleaseService]:
    """Give the releases of the cloud in `config.folder`; it goes on where it was, and stops at the end of the block."""
    home = CloudHome(config.folder)
    others = await asyncio.to_thread(other_pythons, config.pythons)
    simulator = Simulator(config.simulation_vms)

    async def read_task(scenario: str, task: str, version: str) -> TaskTree:
        return await asyncio.to_thread(home.repos.read, scenario, task, version)

    async def build(tree: TaskTree) -> Bundle:
        return await asyncio.to_thread(build_bundle, tree, home.bundle_signer, others)

    async def put(data: bytes) -> str:
        return await asyncio.to_thread(home.files.put, data)

    async def simulate(bundle: Bundle) -> SimulationResult:
        tree = await read_task(bundle.manifest.scenario, bundle.manifest.task, bundle.manifest.version)
        path = TaskConfig.parse(tree.files[CONFIG_FILE], CONFIG_FILE).simulation_events
        return await simulator.run(bundle, tree.files[path] if path else None)

    sign = home.release_signer.sign_directive
    world = World(read_task, build, put, simulate, gateway.publish, gateway.recent_devices, sign, monitor)
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(simulator.close)
        journal = await undo.enter_async_context(Journal(home.releases_db))
        service = ReleaseService(journal, world, SystemClock(), cdn_url=CDN_URL)
        undo.push_async_callback(service.close)
        await service.open()
        yield service
