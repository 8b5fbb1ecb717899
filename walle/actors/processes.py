"""The nodes of a Ray cluster and a cloud's processes on them, with why the last of each ended."""

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from walle.actors.head import SharedQuestion
from walle.actors.node import NodeLostError, ask
from walle.actors.process import actor_names, find
from walle.base.durable_file import write_file
from walle.cloud.telemetry.status import NodeState, ProcessState

_LOG = logging.getLogger(__name__)

_STATES = {"ALIVE": "running", "DEAD": "gone"}
_DETAIL_CHARS = 200
_ASK_S = 2.0  # time for a process to tell its version


def note_process(folder: Path, name: str) -> None:
    """Note in the cloud's folder of sockets that this process has the actor from now on."""
    try:
        with (folder / f"{name}.pids").open("a") as file:
            file.write(f"{os.getpid()}\n")
    except OSError as error:
        _LOG.warning("%s is missing in the list of processes: %s", name, error)


def note_address(folder: Path, address: str) -> None:
    """Note in the same folder where the actor of this process serves, for the list of processes."""
    name = ray.get_runtime_context().get_actor_name()
    try:
        write_file(folder / f"{name}.address", address)
    except OSError as error:
        _LOG.warning("the address of %s is missing in the list of processes: %s", name, error)


class ClusterProcesses:
    """Source of nodes and processes. `names` are those of the cloud's actors in a namespace of Ray."""

    def __init__(self, names: list[str], namespace: str, sockets: Path) -> None:
        self._names = names
        self._namespace = namespace
        self._sockets = sockets
        self._reading = SharedQuestion(self._read)

    async def read(self) -> tuple[list[NodeState], list[ProcessState]]:
        """Return both. Raises HeadAwayError."""
        nodes, processes = await self._reading.ask()
        return nodes, list(await asyncio.gather(*(_with_version(*one) for one in processes)))

    def _read(self) -> tuple[list[NodeState], list[tuple[ProcessState, Any]]]:
        """Return the nodes, and the processes with their actors, None for one that is gone."""
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

    def _process(self, name: str, ends: dict[int, str]) -> tuple[ProcessState, Any]:
        try:
            actor = find(name, self._namespace)
        except NodeLostError as error:
            return ProcessState(name=name, state="gone", last_end=error.why[:_DETAIL_CHARS]), None
        record = record_of(actor)
        if not record:
            return ProcessState(name=name), actor
        is_running = record["State"] == "ALIVE"
        pid = int(record["Pid"]) if is_running else 0
        state = ProcessState(
            name=name,
            state=_STATES.get(record["State"], "starting"),
            node=record["Address"]["NodeID"] if is_running else "",
            pid=pid,
            up_s=max(0.0, time.time() - record["Timestamp"] / 1000) if is_running else 0.0,
            restarts=int(record["NumRestarts"]),
            address=self._noted(f"{name}.address") if is_running else "",
            last_end=next((ends[one] for one in reversed(self._pids(name)) if one != pid and one in ends), ""),
        )
        return state, actor

    def _noted(self, name: str) -> str:
        try:
            return (self._sockets / name).read_text()
        except OSError:
            return ""

    def _pids(self, name: str) -> list[int]:
        try:
            return [int(line) for line in (self._sockets / f"{name}.pids").read_text().split()]
        except (OSError, ValueError):  # the file is another node's
            return []


async def _with_version(process: ProcessState, actor: Any) -> ProcessState:
    """Return a process with its version of walle, if it runs and answers."""
    if actor is None or process.state != _STATES["ALIVE"]:
        return process
    try:
        async with asyncio.timeout(_ASK_S):
            return dataclasses.replace(process, version=await ask(actor, "version"))
    except (NodeLostError, TimeoutError, AttributeError):  # the last: of a version without this method
        return process


# Ray has no public call for these without its dashboard. What changes there is shown as unknown here.


def has_room(node: str, options: Mapping[str, Any]) -> bool:
    """Return whether a node of Ray has what an actor with these options takes; true where nobody can tell."""
    needs = {**options.get("resources", {}), "CPU": options.get("num_cpus", 0), "GPU": options.get("num_gpus", 0)}
    needs["memory"] = options.get("memory", 0)
    if not any(needs.values()):
        return True
    try:
        from ray._private import state

        free: dict[str, float] = state.available_resources_per_node()[node]  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001
        _LOG.debug("Ray's free resources cannot be read", exc_info=True)
        return True
    return all(free.get(name, 0.0) >= amount for name, amount in needs.items())


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
