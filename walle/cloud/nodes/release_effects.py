"""Side effects of the release service on a cloud's folder, its simulator, its gateways and its monitor."""

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence

from walle.cloud.api.interfaces import GatewayPeer, MonitorPeer
from walle.cloud.api.targeting import WEEK_S
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.nodes.trust import OnlineRoles
from walle.cloud.simulation.isolation import simulation_host
from walle.cloud.simulation.simulation import Simulator
from walle.deploy.exclusive_files.groups import GroupPart
from walle.deploy.fleet.device_group import TargetedGroups
from walle.deploy.gate.step import Step
from walle.deploy.policies.attribute_schema import Schema, read_schema
from walle.deploy.policies.policy import Policy
from walle.deploy.releases.effects import Effects
from walle.deploy.releases.signatures import SigningState
from walle.deploy.releases.simulation_result import SimulationResult
from walle.deploy.releases.table import ReleaseTable
from walle.deploy.shared_files.store import FileStore, FileStoreError, FileStoreUnavailableError
from walle.errors import DeployError, WalleError
from walle.pipeline.events.event_files import EventFiles
from walle.protocol import Directive, Envelope, Manifest
from walle.store.threads import StoreThreads
from walle.task.format.bundle import CONFIG_FILE, Bundle, TaskVersion, UnsignedBundle
from walle.task.format.config import TaskConfig
from walle.task.format.large_file import LargeFile

_LOG = logging.getLogger(__name__)


class CloudEffects(Effects):
    """Side effects of the release service of a cloud. `build` makes the unsigned bundle of a version, and blocks."""

    def __init__(
        self,
        config: CloudConfig,
        home: CloudHome,
        roles: OnlineRoles,
        build: Callable[[TaskVersion], UnsignedBundle],
        gateway: GatewayPeer,
        monitor: MonitorPeer,
    ) -> None:
        self._home = home
        self._roles = roles
        self._build = build
        self._gateway = gateway
        self._monitor = monitor
        self._simulation_s = config.simulation_s
        new_host = functools.partial(simulation_host, config)
        self._simulator = Simulator(config.simulation_vms, new_host=new_host, vm_host=config.vm_host)
        self._threads = StoreThreads("exclusive files of releases")

    # --- versions ---

    async def check_version(self, scenario: str, task: str, version: str) -> None:
        await asyncio.to_thread(self._home.repos.check_version, scenario, task, version)

    async def read_config(self, scenario: str, task: str, version: str) -> TaskConfig:
        text = await asyncio.to_thread(self._home.repos.read_file, scenario, task, version, CONFIG_FILE)
        return TaskConfig.parse(text, CONFIG_FILE)

    async def read_version(self, scenario: str, task: str, version: str) -> TaskVersion:
        return await asyncio.to_thread(self._home.repos.read_version, scenario, task, version)

    async def read_schema(self) -> Schema:
        return await asyncio.to_thread(read_schema, self._home.attributes)

    async def build(self, version: TaskVersion) -> Bundle:
        built = await asyncio.to_thread(self._build, version)
        return built.signed(await asyncio.to_thread(self._home.signatures.envelope, built.manifest))

    async def signing(self, version: TaskVersion) -> SigningState:
        built = await asyncio.to_thread(self._build, version)
        return await asyncio.to_thread(self._home.signatures.state, built.manifest)

    async def add_signatures(self, version: TaskVersion, signatures: Mapping[str, bytes]) -> SigningState:
        built = await asyncio.to_thread(self._build, version)
        return await asyncio.to_thread(self._home.signatures.add, built.manifest, signatures)

    # --- simulation ---

    async def simulate(
        self, bundle: Bundle, events: bytes | None, files: Mapping[str, bytes], policy: Policy
    ) -> SimulationResult:
        targeted = TargetedGroups() if events is None else await self._targeted(policy)
        try:
            result = await self._simulator.run(
                bundle,
                events,
                files=EventFiles.of(files),
                groups=targeted.groups,
                limit_s=self._simulation_s,
                group_limit_s=self._simulation_s / 2,
            )
        except TimeoutError:
            what = f"the simulation took more than {self._simulation_s:g} s"
            raise DeployError(f"{what}; push fewer simulation events, or make the task faster") from None
        return dataclasses.replace(result, other_groups=targeted.others, other_names=targeted.other_names)

    async def _targeted(self, policy: Policy) -> TargetedGroups:
        """Return the groups of devices that a policy reaches; none, which is logged, where they are not known now."""
        try:
            return await self._monitor.groups(policy, WEEK_S)
        except WalleError as error:
            _LOG.warning("the version is simulated on no groups of devices: %s", error)
            return TargetedGroups()

    # --- files ---

    async def store_bundle(self, bundle: Bundle, older: Sequence[str]) -> None:
        shared: list[bytes | LargeFile] = [*bundle.blobs.values(), *bundle.large.values()]
        of_cloud: list[bytes | LargeFile] = [*bundle.cloud_blobs.values(), *bundle.cloud_large.values()]
        for store, files in ((self._home.files, shared), (self._home.cloud_files, of_cloud)):
            for file in files:
                await asyncio.to_thread(_put, store, file)
        for one in (bundle, *bundle.variants):
            await self.store_envelope(one.envelope)
        try:
            await asyncio.to_thread(_code_files, self._home, bundle, older)
        except (DeployError, OSError, MemoryError):
            _LOG.warning("%s: its files are sent uncompressed", bundle.manifest.name, exc_info=True)

    async def store_envelope(self, envelope: bytes) -> None:
        await asyncio.to_thread(self._home.files.put, envelope)

    async def read_envelope(self, sha256: str) -> bytes:
        return await asyncio.to_thread(self._home.files.read, sha256)

    async def exclusive_files(self, device_id: str, generation: int, groups: GroupPart) -> bytes:
        own = await self._threads.run(self._home.exclusive.files, device_id, generation)
        found = own.with_groups(groups.serial, groups.files)
        return self._roles.sign_exclusive(device_id, generation, found).to_bytes()

    # --- the table, and the monitor ---

    def sign(self, directive: Directive) -> Directive:
        return self._roles.sign(directive)

    async def stamp(self, table: ReleaseTable) -> str:
        return await self._roles.stamp(table)

    async def publish(self, table: ReleaseTable) -> None:
        await self._gateway.publish(table)

    async def recent_devices(self, count: int, policy: Policy, task: str) -> tuple[str, ...]:
        return await self._gateway.recent_devices(count, policy, task)

    async def watch(self, step: Step) -> None:
        await self._monitor.watch(step)

    async def unwatch(self, release_id: str) -> None:
        await self._monitor.unwatch(release_id)


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


def _code_files(home: CloudHome, bundle: Bundle, older: Sequence[str]) -> None:
    """Make the smaller forms of a bundle's files; `older` has the manifests of versions that devices have."""
    manifests = []
    for sha256 in older:
        with home.files.open(sha256) as file:
            manifests.append(Envelope.from_bytes(file.read()).manifest)
    for name in ("", *(one.name for one in bundle.manifest.variants)):
        before = [_with_variant(manifest, name).files for manifest in manifests]
        home.coded_files.make(bundle.manifest.of_variant(name).files, before)


def _with_variant(manifest: Manifest, name: str) -> Manifest:
    """Return what devices of a variant have of an older version, which may not have had it."""
    return manifest.of_variant(name) if any(one.name == name for one in manifest.variants) else manifest
