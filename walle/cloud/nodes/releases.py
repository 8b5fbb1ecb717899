"""Release node: a `ReleaseService` on a cloud's folder and peers."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence

from walle.base.clock import SystemClock
from walle.cloud.api.interfaces import GatewayPeer, MonitorPeer
from walle.cloud.api.targeting import WEEK_S
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.epoch import read_epoch
from walle.cloud.folder.folder import CloudHome
from walle.cloud.folder.state import STOP_S, StopWhenLost, node_state
from walle.cloud.nodes.trust import OnlineRoles
from walle.cloud.simulation.isolation import check_simulation_layers, compiler, simulation_host
from walle.cloud.simulation.simulation import Simulator
from walle.cloud.upkeep.scrubbing import Scrubbing
from walle.cloud.upkeep.stored_files import StoredFiles
from walle.deploy.exclusive_files.groups import GroupPart
from walle.deploy.fleet.device_group import TargetedGroups
from walle.deploy.gate.gate import Verdict
from walle.deploy.policies.attribute_schema import read_schema
from walle.deploy.policies.policy import Policy
from walle.deploy.releases.effects import World
from walle.deploy.releases.release import Release
from walle.deploy.releases.service import ReleaseService
from walle.deploy.releases.signatures import SigningState
from walle.deploy.releases.simulation_result import SimulationResult
from walle.deploy.shared_files.store import FileStore, FileStoreError, FileStoreUnavailableError
from walle.errors import DeployError, WalleError
from walle.pipeline.events.event_files import EventFiles
from walle.protocol import Envelope, Manifest
from walle.store.background import in_background
from walle.store.lease import RELEASES
from walle.store.threads import StoreThreads
from walle.task.format.bundle import CONFIG_FILE, Bundle, TaskVersion, UnsignedBundle, build_unsigned
from walle.task.format.compilers import other_pythons
from walle.task.format.config import TaskConfig
from walle.task.format.large_file import LargeFile

_LOG = logging.getLogger(__name__)
_CLOUD_CAUSE = "cloud"  # cause of a pause for a fault of the cloud itself, not of the version


class ReleaseNode:
    """Owner of the release service and what it uses, between `start` and `close`."""

    def __init__(self, config: CloudConfig) -> None:
        self._config = config
        self.lost = asyncio.Event()  # replaced by that of the lease, which stops the node
        self._home = CloudHome(config.folder, database=config.database)
        self._undo = contextlib.AsyncExitStack()
        self._stopping: StopWhenLost | None = None
        self._hurry: Callable[[float], None] = lambda _: None

    async def start(self, gateway: GatewayPeer, monitor: MonitorPeer, *, is_successor: bool = False) -> ReleaseService:
        """Return the service, once it has the lease; it continues the releases that its journal has.

        Raises:
            ConfigError: one of the configured Pythons cannot compile, or the kernel lacks layers that the configuration
                asks for.
            StateError: the journal cannot be opened.
            LeaseLostError: as `MonitorNode.start`.
        """
        home = self._home
        others = await asyncio.to_thread(other_pythons, self._config.pythons)
        compile_sources = compiler(self._config)
        simulator = Simulator(
            self._config.simulation_vms,
            new_host=functools.partial(simulation_host, self._config),
            vm_host=self._config.vm_host,
        )

        async def check_version(scenario: str, task: str, version: str) -> None:
            await asyncio.to_thread(home.repos.check_version, scenario, task, version)

        async def read_config(scenario: str, task: str, version: str) -> TaskConfig:
            return TaskConfig.parse(
                await asyncio.to_thread(home.repos.read_file, scenario, task, version, CONFIG_FILE), CONFIG_FILE
            )

        async def read_version(scenario: str, task: str, version: str) -> TaskVersion:
            return TaskVersion.parse(await asyncio.to_thread(home.repos.read, scenario, task, version))

        async def build_version(version: TaskVersion) -> UnsignedBundle:
            return await asyncio.to_thread(build_unsigned, version, others, compile_sources)

        async def build(version: TaskVersion) -> Bundle:
            built = await build_version(version)
            return built.signed(await asyncio.to_thread(home.signatures.envelope, built.manifest))

        async def signing(version: TaskVersion) -> SigningState:
            built = await build_version(version)
            return await asyncio.to_thread(home.signatures.state, built.manifest)

        async def add_signatures(version: TaskVersion, signatures: Mapping[str, bytes]) -> SigningState:
            built = await build_version(version)
            return await asyncio.to_thread(home.signatures.add, built.manifest, signatures)

        async def read(sha256: str) -> bytes:
            return await asyncio.to_thread(home.files.read, sha256)

        async def put(data: bytes | LargeFile) -> str:
            return await asyncio.to_thread(_put, home.files, data)

        async def put_cloud_file(data: bytes | LargeFile) -> str:
            return await asyncio.to_thread(_put, home.cloud_files, data)

        async def code_files(bundle: Bundle, older: Sequence[str]) -> None:
            try:
                await asyncio.to_thread(_code_files, home, bundle, older)
            except (DeployError, OSError, MemoryError):
                _LOG.warning("%s: its files travel whole", bundle.manifest.name, exc_info=True)

        async def simulate(
            bundle: Bundle, events: bytes | None, files: Mapping[str, bytes], policy: Policy
        ) -> SimulationResult:
            limit_s, targeted = self._config.simulation_s, TargetedGroups()
            if events is not None:
                targeted = await _targeted(monitor, policy)
            try:
                result = await simulator.run(
                    bundle,
                    events,
                    files=EventFiles.of(files),
                    groups=targeted.groups,
                    limit_s=limit_s,
                    group_limit_s=limit_s / 2,
                )
                return dataclasses.replace(result, other_groups=targeted.others)
            except TimeoutError:
                what = f"the simulation took more than {self._config.simulation_s:g} s"
                raise DeployError(f"{what}; push fewer simulation events, or make the task faster") from None

        clock, life_s = SystemClock(), self._config.timestamp_life_s
        roles = await asyncio.to_thread(
            OnlineRoles, home.trust, read_epoch(home.folder), clock, timestamp_life_s=life_s
        )

        threads = StoreThreads("exclusive files of releases")

        async def exclusive_files(device_id: str, generation: int, groups: GroupPart) -> bytes:
            own = await threads.run(home.exclusive.files, device_id, generation)
            found = own.with_groups(groups.serial, groups.files)
            return roles.sign_exclusive(device_id, generation, found).to_bytes()

        await asyncio.to_thread(lambda: home.exclusive)
        world = World(
            check_version=check_version,
            read_config=read_config,
            read_schema=lambda: asyncio.to_thread(read_schema, home.attributes),
            read_version=read_version,
            build=build,
            put=put,
            put_cloud_file=put_cloud_file,
            code_files=code_files,
            simulate=simulate,
            publish=gateway.publish,
            recent_devices=gateway.recent_devices,
            sign=roles.sign,
            stamp=roles.stamp,
            read=read,
            signing=signing,
            add_signatures=add_signatures,
            judge=monitor,
            exclusive_files=exclusive_files,
        )
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(home.close)
            await check_simulation_layers(self._config)
            state = await undo.enter_async_context(node_state(home, RELEASES, clock, is_successor=is_successor))
            self._hurry = state.hurry
            cdn_url, restamp_s = home.file_addresses.prefix, life_s / 4
            service = ReleaseService(
                state.journal, world, clock, cdn_url=cdn_url, restamp_s=restamp_s, audit=home.audit
            )
            await undo.enter_async_context(service)

            async def metadata_changed() -> None:
                service.look_again()
                await service.restamp()

            watch = functools.partial(roles.watch, metadata_changed)
            await undo.enter_async_context(in_background("watch of metadata", watch, clock))
            scrubbing = self._scrubbing(service, lambda version: build_unsigned(version, others, compile_sources))
            await undo.enter_async_context(in_background("check of stored files", scrubbing.run, clock))
            await undo.enter_async_context(in_background("check of faults", scrubbing.check_faults, clock))
            self._undo = undo.pop_all()
        self._stopping = StopWhenLost("release service", state.keeper, self._undo.aclose)
        self.lost = self._stopping.lost
        return service

    def _scrubbing(self, service: ReleaseService, build: Callable[[TaskVersion], UnsignedBundle]) -> Scrubbing:
        clock = SystemClock()

        async def pause(release: Release, reason: str) -> None:
            present = await service.get(release.id)
            await service.verdict(present.id, present.stage, Verdict.PAUSE, reason, _CLOUD_CAUSE)

        scrubber = StoredFiles(self._home).scrubber(clock, build)
        return Scrubbing(self._home.folder, scrubber, pause, clock, mb_s=self._config.scrub_mb_s)

    def hurry(self, limit_s: float = STOP_S) -> None:
        """End what waits for a database in `limit_s`: the node is closed next."""
        self._hurry(limit_s)
        self._home.hurry(limit_s)  # records of the audit log, lists of exclusive files

    async def close(self) -> None:
        """Stop the service, in some seconds where the database does not answer.

        Effects that have not run stay journalled.
        """
        self.hurry()
        if self._stopping is not None:
            await self._stopping.close()
        await self._undo.aclose()


def _put(store: FileStore, data: bytes | LargeFile) -> str:
    if isinstance(data, bytes):
        return store.put(data)
    if data.path is None:
        raise DeployError(f"large file {data.sha256} is not in this cloud; push it again")
    try:
        return store.put_file(data.path, data.sha256)
    except FileStoreUnavailableError:
        raise
    except FileStoreError as error:
        what = "is damaged; walle storage check repairs it, or sets it aside, so that it can be pushed again"
        raise DeployError(f"large file {data.path} of this cloud {what}") from error


async def _targeted(monitor: MonitorPeer, policy: Policy) -> TargetedGroups:
    """Return the groups of devices that a policy reaches; none, which is logged, where they are not known now."""
    try:
        return await monitor.groups(policy, WEEK_S)
    except WalleError as error:
        _LOG.warning("the version is simulated on no groups of devices: %s", error)
        return TargetedGroups()


def _code_files(home: CloudHome, bundle: Bundle, older: Sequence[str]) -> None:
    """Make the smaller forms of a bundle's files; `older` has the manifests of versions that devices have."""
    manifests = []
    for sha256 in older:
        with home.files.open(sha256) as file:
            manifests.append(Manifest.from_bytes(Envelope.from_bytes(file.read()).payload))
    home.coded_files.make(bundle.manifest.files, [manifest.files for manifest in manifests])
