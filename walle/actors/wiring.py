"""Clouds and fleets of actors, on a local Ray or on an existing cluster."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import ray

from walle.actors.device import DeviceActor
from walle.actors.layout import SERVICES, service_options
from walle.actors.local_ray import LocalRay
from walle.actors.members import member_kinds
from walle.actors.node import NodeLostError, Remote, ask
from walle.actors.nodes import NodesActor
from walle.actors.placement import cloud_name
from walle.actors.process import KEEPER, actor_names, end, end_together, find, spawn
from walle.actors.ray_token import warn_of_open_cluster
from walle.actors.replicas import Replicas
from walle.actors.service import Place
from walle.cloud import CloudConfig, CloudHome, GatewayAddress
from walle.cloud.edge.shared_listener import free_port
from walle.cloud.folder.shared_folder import NOTES, make_cloud_id
from walle.cloud.nodes.node_plan import parse_member
from walle.device import DeviceConfig, DeviceSummary
from walle.errors import ConfigError

_LOG = logging.getLogger(__name__)

_LOOK_S = 1.0  # interval between two checks that no lease is lost
_PLACED_S = 30.0
_local_rays: list[LocalRay] = []  # the one that this process has started


def start_ray(address: str = "", *, import_root: Path | None = None) -> None:
    """Join the cluster at `address`, or start a Ray on this machine. Actors import from `import_root` too.

    Raises:
        ConfigError: no cluster is at `address`, or as `LocalRay.start`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    python_path = os.pathsep.join(filter(None, [str(import_root or ""), os.environ.get("PYTHONPATH")]))
    with _interrupt_later():
        if address:
            runtime_env = {"env_vars": {"PYTHONPATH": python_path}}
            try:
                ray.init(address=address, log_to_driver=True, runtime_env=runtime_env, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ConfigError(f"no Ray cluster can be joined at {address!r}: {error}") from error
            warn_of_open_cluster(address)
        else:
            _local_rays.append(LocalRay.start(python_path, logging_level=logging.ERROR))


@contextlib.contextmanager
def _interrupt_later() -> Iterator[None]:
    """Hold SIGINT back within the block; one that came is delivered at its end.

    A start of Ray that is interrupted half-way can block indefinitely. The processes that are started within the block
    never get a SIGINT: a terminal sends it to all of them, and the process that started them ends them in order.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def close_ray() -> None:
    """Leave the cluster; a Ray that `start_ray` started ends with all its processes."""
    ray.shutdown()
    while _local_rays:
        _local_rays.pop().close()


@dataclasses.dataclass(frozen=True)
class ActorCloud:
    """A cloud of actors: gateway, releases, monitor, identities, and one or more of fallback inference.

    `start` makes it, `close` ends it. The folder of `place` has the replicas' sockets: its path is short, as a
    socket's must be, and only this user may enter it.
    """

    home: CloudHome
    address: GatewayAddress
    nodes: dict[str, Any]
    replicas: Replicas
    place: Place

    @classmethod
    async def start(cls, config: CloudConfig, *, keeps_nodes: bool = False, is_detached: bool = False) -> Self:
        """Make the actors and start their nodes; where one cannot, none is left.

        `keeps_nodes`: with a keeper of nodes, which there is anyway where each node has actors. With `is_detached` the
        actors outlive this process.

        Raises:
            ConfigError, OSError: as `GatewayNode.start`.
        """
        home = CloudHome(config.folder, database=config.database)
        await asyncio.to_thread(home.prepare, config.scenarios)
        if config.gateways:
            await asyncio.to_thread(home.prepare_edges)
            config = dataclasses.replace(config, http_port=free_port(config.host, config.http_port))
        async with contextlib.AsyncExitStack() as undo:
            place = await asyncio.to_thread(_place, config)
            if (
                not config.shared_folder
            ):  # else another cloud of this folder, which keeps this one from starting, has some
                undo.callback(place.remove_notes)
            lifetime = {"lifetime": "detached"} if is_detached else {}
            nodes = {
                name: spawn(kind, config, place, **service_options(config, place, name), **lifetime)
                for name, kind in SERVICES.items()
            }
            keeps_nodes = keeps_nodes or is_detached or bool(member_kinds(config))
            if keeps_nodes:
                home_node = "" if is_detached and config.shared_folder else ray.get_runtime_context().get_node_id()
                options = service_options(config, place, KEEPER)
                keeper = spawn(NodesActor, config, place, home_node, **options, **lifetime)
                nodes = {**nodes, KEEPER: keeper}
            replicas_undo = await undo.enter_async_context(contextlib.AsyncExitStack())
            undo.push_async_callback(_end_in_turn, place, nodes)
            async with _waiting_for(config.service_resources):
                for name in ("identities", "monitor", "releases"):
                    await ask(nodes[name], "start")
                await ask(nodes["gateway"], "ray_node")  # an answer shows that the gateway is placed
            scheduler_node = "" if config.shared_folder else await ask(nodes["gateway"], "ray_node")
            names = {"namespace": place.namespace, **lifetime}
            replicas = Replicas(config, Path(place.sockets), scheduler_node, names)
            replicas_undo.push_async_callback(replicas.close)  # closed after the gateway, which asks them
            await replicas.start()
            address = await ask(nodes["gateway"], "start")
            if keeps_nodes:
                undo.push_async_callback(_end_members, place)
                await ask(nodes[KEEPER], "start")
            replicas_undo.pop_all()
            undo.pop_all()
        return cls(home, address, nodes, replicas, place)

    @property
    def actors(self) -> dict[str, Any]:
        """The actors by name."""
        return {**self.nodes, **self.replicas.actors}

    @property
    def gateway(self) -> Remote:
        return Remote(self.actors["gateway"])

    async def lost(self) -> None:
        """Return when another cloud has the lease of the release service or the monitor: it acts, or waits for both."""
        while not await asyncio.to_thread(self.place.lost_file.exists):  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """Close the nodes, the gateway first, and end their processes."""
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(self.place.remove_notes)
            undo.push_async_callback(self.replicas.close)
            undo.push_async_callback(_end_in_turn, self.place, self.nodes)
            if KEEPER in self.nodes:
                undo.push_async_callback(_end_members, self.place)


class Fleet:
    """Devices in actors, `per_actor` of them in each. `driver` and `options` as for `DeviceActor`.

    A process that dies is replaced by another when the fleet is next asked anything: its devices continue from their
    folders, as after a crash, with new drivers. One whose successor dies at once as well is not replaced again.
    """

    def __init__(
        self, configs: Sequence[DeviceConfig], *, per_actor: int, driver: str, options: dict[str, Any]
    ) -> None:
        self.replaced = 0  # processes that died
        self._groups = [configs[start : start + per_actor] for start in range(0, len(configs), per_actor)]
        self._play = driver, options
        self._replacing = asyncio.Lock()
        self._is_closed = False
        self.actors: list[Any] = [spawn(DeviceActor, group, *self._play) for group in self._groups]

    async def start(self) -> list[int]:
        """Start every device; return the ids of their processes."""
        return list(await asyncio.gather(*(ask(actor, "start") for actor in self.actors)))

    async def settle(self) -> None:
        """Let every driver end and everything that was produced reach the cloud.

        Raises:
            NodeLostError: a process died, and so did its successor.
        """
        await self._ask_all("settle")

    async def summaries(self) -> list[tuple[DeviceSummary, dict[str, Any]]]:
        """Return each device as it is, and its driver's counts.

        Raises:
            NodeLostError: as `settle`; and what a driver raised.
        """
        return [summary for group in await self._ask_all("summaries") for summary in group]

    async def close(self) -> None:
        """Close the devices and end their processes."""
        self._is_closed = True
        await end_together(self.actors)

    async def _ask_all(self, method: str) -> list[Any]:
        return list(await asyncio.gather(*(self._ask(number, method) for number in range(len(self.actors)))))

    async def _ask(self, number: int, method: str) -> Any:
        actor = self.actors[number]
        try:
            return await ask(actor, method)
        except NodeLostError as error:
            async with self._replacing:
                if self._is_closed:
                    raise
                if self.actors[number] is actor:  # nobody has replaced it meanwhile
                    _LOG.warning("%s; another takes over its %d devices", error, len(self._groups[number]))
                    await self._replace(number)
            return await ask(self.actors[number], method)

    async def _replace(self, number: int) -> None:
        actor = self.actors[number] = spawn(DeviceActor, self._groups[number], *self._play)
        await ask(actor, "start")
        self.replaced += 1


@contextlib.asynccontextmanager
async def _waiting_for(resources: Sequence[str]) -> AsyncIterator[None]:
    """Say within the block what is waited for, if Ray cannot place actors that take these resources."""

    def say() -> None:
        _LOG.warning("services wait for nodes of Ray that have %s to give", ", ".join(resources) or "room")

    timer = asyncio.get_running_loop().call_later(_PLACED_S, say)
    try:
        yield
    finally:
        timer.cancel()


def _place(config: CloudConfig) -> Place:
    """Return where the actors of a cloud find each other, and make their folder."""
    if config.shared_folder:
        cloud_id = make_cloud_id(config.folder)
        (config.folder / NOTES / "lost").unlink(missing_ok=True)
        return Place(f"walle-{cloud_name(config)}", str(config.folder / NOTES), cloud_id)
    folder = _local_rays[-1].folder if _local_rays else None  # removed with that Ray's folder, however Ray ends
    sockets = tempfile.mkdtemp(prefix="walle-", dir=folder)
    return Place(f"walle-{cloud_name(config)}", sockets, is_local=folder is not None)


async def _end_members(place: Place) -> None:
    """End the actors that the nodes have, after the keeper of nodes, who would start others."""
    with contextlib.suppress(NodeLostError):
        await end(find(KEEPER, place.namespace))
    names = await asyncio.to_thread(actor_names, place.namespace)
    for name in sorted(name for name in names if parse_member(name)):
        with contextlib.suppress(NodeLostError):
            await end(find(name, place.namespace))


async def _end_in_turn(place: Place, actors: Mapping[str, Any]) -> None:
    """End one actor after the other; where this is cancelled, it ends the others' processes all the same."""
    async with contextlib.AsyncExitStack() as undo:
        for name, actor in reversed(list(actors.items())):
            undo.push_async_callback(end, _present(place, name, actor))


def _present(place: Place, name: str, actor: Any) -> Any:
    """Return the actor with this name, which may have been moved; the one that was there where there is none."""
    try:
        return find(name, place.namespace)
    except NodeLostError:
        return actor
