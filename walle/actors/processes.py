"""The nodes of a Ray cluster and a cloud's processes on them, with why the last of each ended."""

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Any

import ray

from walle.actors.head import SharedQuestion
from walle.actors.node import NodeLostError
from walle.actors.process import actor_names, find
from walle.cloud.status import NodeState, ProcessState
from walle.durable_file import write_file

_LOG = logging.getLogger(__name__)

_STATES = {"ALIVE": "running", "DEAD": "gone"}
_DETAIL_CHARS = 200


def note_process(folder: Path, name: str) -> None:
    """Note in the cloud's folder of sockets that this process has the actor from now on."""
    with contextlib.suppress(OSError), (folder / f"{name}.pids").open("a") as file:
        file.write(f"{os.getpid()}\n")


def note_address(folder: Path, address: str) -> None:
    """Note in the same folder where the actor of this process serves, for the list of processes."""
    with contextlib.suppress(OSError):
        write_file(folder / f"{ray.get_runtime_context().get_actor_name()}.address", address)


class ClusterProcesses:
    """Source of nodes and processes. `names` are those of the cloud's actors in a namespace of Ray."""

    def __init__(self, names: list[str], namespace: str, sockets: Path) -> None:
        self._names = names
        self._namespace = namespace
        self._sockets = sockets
        self._reading = SharedQuestion(self._read)

    async def read(self) -> tuple[list[NodeState], list[ProcessState]]:
        """Return both. Raises HeadAwayError."""
        return await self._reading.ask()

    def _read(self) -> tuple[list[NodeState], list[ProcessState]]:
        nodes = [
            NodeState(
                id=one["NodeID"],
                host=one["NodeManagerHostname"],
                is_alive=one["Alive"],
                resources={name: amount for name, amount in one["Resources"].items() if not name.startswith("node:")},
                labels={name: value for name, value in one["Labels"].items() if not name.startswith("ray.io/")},
            )
            for one in ray.nodes()  # type: ignore[no-untyped-call]
        ]
        ends = _ends()
        others = sorted(actor_names(self._namespace) - set(self._names))
        return nodes, [self._process(name, ends) for name in (*self._names, *others)]

    def _process(self, name: str, ends: dict[int, str]) -> ProcessState:
        try:
            actor = find(name, self._namespace)
        except NodeLostError as error:
            return ProcessState(name=name, state="gone", last_end=error.why[:_DETAIL_CHARS])
        record = record_of(actor)
        if not record:
            return ProcessState(name=name)
        is_running = record["State"] == "ALIVE"
        pid = int(record["Pid"]) if is_running else 0
        return ProcessState(
            name=name,
            state=_STATES.get(record["State"], "starting"),
            node=record["Address"]["NodeID"] if is_running else "",
            pid=pid,
            up_s=max(0.0, time.time() - record["Timestamp"] / 1000) if is_running else 0.0,
            restarts=int(record["NumRestarts"]),
            address=self._noted(f"{name}.address") if is_running else "",
            last_end=next((ends[one] for one in reversed(self._pids(name)) if one != pid and one in ends), ""),
        )

    def _noted(self, name: str) -> str:
        try:
            return (self._sockets / name).read_text()
        except OSError:
            return ""

    def _pids(self, name: str) -> list[int]:
        try:
            return [int(line) for line in (self._sockets / f"{name}.pids").read_text().split()]
        except (OSError, ValueError):  # of another node
            return []


# Ray has no public call for these two without its dashboard. What changes there is shown as unknown here.


def record_of(actor: Any) -> dict[str, Any]:
    try:
        from ray._private import state

        return dict(state.actors(actor._actor_id.hex()))
    except Exception:  # noqa: BLE001
        _LOG.debug("Ray's table of actors cannot be read", exc_info=True)
        return {}


def _ends() -> dict[int, str]:
    """Return why processes ended, by their ids."""
    try:
        from ray._private import state
        from ray.core.generated import gcs_pb2

        rows = state.state._connect_and_get_accessor().get_worker_table()
        found = [gcs_pb2.WorkerTableData.FromString(row) for row in rows]  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001
        _LOG.debug("Ray's table of processes cannot be read", exc_info=True)
        return {}
    return {one.pid: str(one.exit_detail)[:_DETAIL_CHARS] for one in found if not one.is_alive}
