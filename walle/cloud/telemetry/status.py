"""State of a running cloud: its nodes, processes and leases, and how far each part is behind. `GET /v1/cloud`."""

import asyncio
import dataclasses
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Header

import walle
from walle.access.access import ANY_SCENARIO, Identifier, Role
from walle.cloud.api.interfaces import KeeperPeer, ReleasesPeer
from walle.cloud.api.releases import check_role, identify
from walle.cloud.folder.folder import CloudHome
from walle.cloud.folder.state import lease_states
from walle.cloud.telemetry.database_watch import DatabaseWatch
from walle.errors import WalleError

_ASK_S = 2.0  # time for the release service, and the keeper of nodes: the rest is shown without them
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeState:
    """A machine of the cloud. `resources` are Ray's, empty without Ray."""

    id: str
    host: str
    is_alive: bool = True
    resources: Mapping[str, float] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessState:
    """A process of the cloud. `state` is `running`, `starting` or `gone`; `last_end` says why the one before it ended.

    `restarts` is None where nobody counts them; `address` is where an edge gateway has its own
    /metrics; a process without a node has `node` and `pid` empty and 0. `version` is that of walle, empty while the
    process does not answer.
    """

    name: str
    state: str = "running"
    node: str = ""
    pid: int = 0
    up_s: float = 0.0
    restarts: int | None = None
    last_end: str = ""
    address: str = ""
    version: str = ""


class Processes(Protocol):
    """Source of the nodes and processes of a cloud."""

    async def read(self) -> tuple[list[NodeState], list[ProcessState]]:
        """Return both. Raises WalleError where nobody can say."""


class OneProcess:
    """The nodes and processes of a cloud in this process, which began when this was made."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    async def read(self) -> tuple[list[NodeState], list[ProcessState]]:
        host = socket.gethostname()
        up_s = time.monotonic() - self._began_s
        return [NodeState(id=host, host=host)], [
            ProcessState(name="cloud", node=host, pid=os.getpid(), up_s=up_s, version=walle.__version__)
        ]


class CloudStatus:
    """Reads the state of a cloud. `tunnel` returns the tunnel's health, `generation` that of the table served.

    `keeper` looks after the nodes, None where nobody does.
    """

    def __init__(
        self,
        home: CloudHome,
        processes: Processes,
        releases: ReleasesPeer,
        tunnel: Callable[[], Mapping[str, Any]],
        generation: Callable[[], int],
        tunnel_servers: Callable[[], list[dict[str, Any]]] = list,
        keeper: KeeperPeer | None = None,
        database: DatabaseWatch | None = None,
    ) -> None:
        self._home = home
        self._processes = processes
        self._releases = releases
        self._tunnel = tunnel
        self._generation = generation
        self._tunnel_servers = tunnel_servers
        self._keeper = keeper
        self._database = database

    async def read(self) -> dict[str, Any]:
        """Return the state as JSON; what cannot be read now is None."""
        machines, leases, lag, plan = await asyncio.gather(self._machines(), self._leases(), self._lag(), self._plan())
        return {
            **machines,
            "tunnel_servers": self._tunnel_servers(),
            "plan": plan,
            "database": None if self._database is None else dict(self._database.health()),
            "leases": leases,
            "lag": lag,
        }

    async def _machines(self) -> dict[str, Any]:
        try:
            nodes, processes = await self._processes.read()
        except WalleError as error:
            return {"nodes": None, "processes": None, "versions": [], "unknown": str(error)}
        return {
            "nodes": [dataclasses.asdict(one) for one in nodes],
            "processes": [{**dataclasses.asdict(one), "up_s": round(one.up_s, 1)} for one in processes],
            "versions": sorted({one.version for one in processes if one.version}),
        }

    async def _leases(self) -> list[dict[str, Any]] | None:
        found = await (lease_states(self._home) if self._database is None else self._database.leases())
        if found is None:
            return None
        return [
            {"name": name, "holder": state.holder, "fence": state.fence, "left_s": round(state.left_s, 1)}
            for name, state in found.items()
        ]

    async def _plan(self) -> dict[str, Any] | None:
        if self._keeper is None:
            return None
        try:
            async with asyncio.timeout(_ASK_S):
                return await self._keeper.progress()
        except (WalleError, TimeoutError) as error:
            _LOG.warning("the plan of the nodes is missing in the cloud's status: %s", _why(error))
            return None

    async def _lag(self) -> dict[str, Any]:
        tunnel = self._tunnel()
        try:
            async with asyncio.timeout(_ASK_S):
                effects, published = await self._releases.backlog()
        except (WalleError, TimeoutError) as error:
            _LOG.warning("the backlog of releases is missing in the cloud's status: %s", _why(error))
            releases: dict[str, Any] = {"effects": None, "generations": None}
        else:
            releases = {"effects": effects, "generations": published - self._generation()}
        return {**releases, "uploads": tunnel["queued"], "uploads_s": tunnel["lag_s"]}


def _why(error: Exception) -> str:
    return str(error) or f"no answer within {_ASK_S:g} s"


def status_router(status: Callable[[], CloudStatus | None], access: Identifier) -> APIRouter:
    """Return /v1/cloud, which answers once the gateway serves."""
    router = APIRouter(prefix="/v1", tags=["watching"])

    @router.get("/cloud")
    async def cloud(authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Show the cloud's nodes and processes, who holds its leases, and its lag; this needs `reader` on `*`.

        `versions` of walle are more than one while the cloud takes another one. `lag`: journalled `effects` of releases
        that have not run, `generations` of the release table that this gateway does not serve yet, and `uploads` that
        are not stored, with the age in seconds of the oldest. `plan`: drained nodes and what they still have, processes
        that are still to be started again, and the `fault` that hinders it. `database` is whether the one with the
        cloud's state answers. A part that does not answer now is null (where nodes and
        processes are, `unknown` says why), as is the plan of a cloud without a keeper of
        nodes, and the database of one whose state is in files.
        """
        check_role(identify(access, authorization), ANY_SCENARIO, Role.READER)
        found = status()
        return {} if found is None else await found.read()

    return router
