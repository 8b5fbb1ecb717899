"""Release node: a `ReleaseService` on a cloud's folder and peers."""

import asyncio
import contextlib
import functools
from collections.abc import Callable

from walle.base.clock import SystemClock
from walle.cloud.api.interfaces import GatewayPeer, MonitorPeer
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.epoch import read_epoch
from walle.cloud.folder.folder import CloudHome
from walle.cloud.folder.state import STOP_S, StopWhenLost, node_state
from walle.cloud.nodes.release_effects import CloudEffects
from walle.cloud.nodes.trust import OnlineRoles
from walle.cloud.simulation.isolation import check_simulation_layers, compiler
from walle.cloud.upkeep.scrubbing import Scrubbing
from walle.cloud.upkeep.stored_files import StoredFiles
from walle.deploy.gate.gate import Verdict
from walle.deploy.releases.release import Release
from walle.deploy.releases.service import ReleaseService
from walle.store.background import in_background
from walle.store.lease import RELEASES
from walle.task.format.bundle import TaskVersion, UnsignedBundle, build_unsigned
from walle.task.format.compilers import other_pythons

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

        def build(version: TaskVersion) -> UnsignedBundle:
            return build_unsigned(version, others, compile_sources)

        clock, life_s = SystemClock(), self._config.timestamp_life_s
        roles = await asyncio.to_thread(
            OnlineRoles, home.trust, read_epoch(home.folder), clock, timestamp_life_s=life_s
        )
        await asyncio.to_thread(lambda: home.exclusive)  # opening the store blocks the event loop
        effects = CloudEffects(self._config, home, roles, build, gateway, monitor)
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(home.close)
            await check_simulation_layers(self._config)
            state = await undo.enter_async_context(node_state(home, RELEASES, clock, is_successor=is_successor))
            self._hurry = state.hurry
            cdn_url, restamp_s = home.file_addresses.prefix, life_s / 4
            service = ReleaseService(
                state.journal, effects, clock, cdn_url=cdn_url, restamp_s=restamp_s, audit=home.audit
            )
            await undo.enter_async_context(service)

            async def metadata_changed() -> None:
                service.check_signatures()
                await service.restamp()

            watch = functools.partial(roles.watch, metadata_changed)
            await undo.enter_async_context(in_background("watch of metadata", watch, clock))
            scrubbing = self._scrubbing(service, build)
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
