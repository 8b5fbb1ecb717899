"""Keeper of a cloud's nodes: gives each the processes that belong on it, drains nodes, and starts processes again."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import ray

from walle.actors.head import HeadAwayError, SharedQuestion, ask_head
from walle.actors.layout import SERVICES, spawn_again
from walle.actors.members import MemberKind
from walle.actors.node import NodeLostError, ask
from walle.actors.process import KEEPER, actor_names, end, find, find_soon
from walle.actors.processes import has_room, record_of
from walle.actors.service import Place
from walle.cloud import CloudConfig
from walle.cloud.folder.config import parse_labels
from walle.cloud.nodes.node_plan import (
    ID_CHARS,
    Action,
    Drained,
    DrainRefusedError,
    Forget,
    Leave,
    Move,
    Node,
    NodeKind,
    Plan,
    Process,
    Replace,
    Restart,
    Start,
    find_node,
    in_turn,
    parse_member,
    progress,
    urgent,
)
from walle.errors import ConfigError, WalleError

_LOG = logging.getLogger(__name__)

_LOOK_S = 1.0
_READY_S = 60.0  # timeout for a process that was started again to continue
_LEAVE_MORE_S = 15.0  # beyond the seconds over which the devices leave
_RESTART_OVER_S = 1.0
_PLAN = "plan"
_GONE = "gone"  # processes of nodes that are gone


class MemberNotReadyError(ConfigError):
    """A process that has not started in time. It is tried again while the cloud runs."""


class OrderLostError(WalleError):
    """An order to end this process that had no effect. It is given again."""


class NodeKeeper:
    """Looks at the nodes of Ray each second between `start` and `close`, and does what `node_plan` says is next.

    `home_node` is the node that cannot be drained, because the folder or the command that runs the cloud is there;
    empty where there is none.
    """

    def __init__(self, config: CloudConfig, place: Place, kinds: Sequence[MemberKind], home_node: str) -> None:
        self._config = config
        self._place = place
        self._kinds = {kind.name: kind for kind in kinds}
        self._rules = [kind.rule for kind in kinds]
        self._home_node = home_node
        self._plan = Plan()
        self._doing = ""
        self._faults: dict[str, str] = {}  # by node, and _PLAN; each until it is over
        self._supplying: dict[str, asyncio.Task[Exception | None]] = {}  # by node, or _GONE
        self._changing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._reading = SharedQuestion(self._read)
        self._undo = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Give each node what belongs on it, and look after them from then on.

        Raises:
            ConfigError: the plan is damaged; and what a process raised, if none can start on any node.
        """
        self._plan = await asyncio.to_thread(Plan.load, self._config.folder)
        await self._supply()
        self._undo.push_async_callback(self._end_supply)
        errors = await asyncio.gather(*self._supplying.values())
        if errors and (first := errors[0]) and all(errors):
            raise first
        for name, work in (("supply", self._keep_supplied), ("plan", self._follow_plan)):
            task = asyncio.create_task(work(), name=f"keeper of nodes: {name}")
            self._undo.push_async_callback(functools.partial(_cancel, task))

    async def close(self) -> None:
        """Look after the nodes no more."""
        await self._undo.aclose()

    async def drain(self, node: str, over_s: float) -> dict[str, Any]:
        """Have everything leave a node, its devices over `over_s` seconds; return the progress.

        Raises:
            UnknownNodeError: as `find_node`.
            DrainRefusedError: no other node can do its work.
        """
        nodes = await ask_head(_nodes)
        found = find_node(nodes, node)
        if found.id == self._home_node:
            what = "has the cloud's folder, or the command that runs the cloud"
            raise DrainRefusedError(f"node {found.host or found.id} {what}; see --shared-folder and --detach")

        def with_it(plan: Plan) -> Plan:
            if not any(one.id not in {found.id, *plan.drained} and self._may_serve(one) for one in nodes):
                what = "is the last one for services that is not drained; add another"
                raise DrainRefusedError(f"node {found.host or found.id} {what}")
            return dataclasses.replace(plan, drained={**plan.drained, found.id: Drained(found.host, over_s)})

        await self._change(with_it)
        return await self.progress()

    async def undrain(self, node: str) -> dict[str, Any]:
        """Let a node have processes again; return the progress.

        Raises:
            UnknownNodeError: as `find_node`.
        """

        def without_it(plan: Plan) -> Plan:
            found = find_node([Node(node_id, one.host) for node_id, one in plan.drained.items()], node)
            left = {node_id: one for node_id, one in plan.drained.items() if node_id != found.id}
            return dataclasses.replace(plan, drained=left)

        await self._change(without_it)
        return await self.progress()

    async def restart(self, node: str) -> dict[str, Any]:
        """Start every process again that runs now, in turn; with a `node` those of that node. Return the progress.

        What an earlier order has left is started again too.

        Raises:
            UnknownNodeError: as `find_node`.
        """
        nodes, processes = await ask_head(self._read)
        meant = {find_node(nodes, node).id} if node else {one.id for one in nodes}
        chosen = tuple(one for one in processes if one.node in meant)
        await self._change(
            lambda plan: dataclasses.replace(plan, restarting=tuple(dict.fromkeys((*plan.restarting, *chosen))))
        )
        return await self.progress()

    async def progress(self) -> dict[str, Any]:
        """Return what is left of the plan; see `walle.cloud.nodes.node_plan.progress`."""
        _, processes = await self._reading.ask()
        return progress(self._plan, self._rules, processes, self._doing, "; ".join(self._faults.values()))

    async def _change(self, change: Callable[[Plan], Plan]) -> None:
        """Change the plan as it is when those before have been kept: two orders at once are both done."""
        async with self._changing:
            plan = change(self._plan)
            await asyncio.to_thread(plan.save, self._config.folder)
            self._plan = plan
        self._changed.set()

    async def _keep_supplied(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._supply()
            except Exception as error:  # noqa: BLE001 - Ray's; the next look may go well
                self._note_fault(_GONE, "the nodes cannot be read", error)

    async def _follow_plan(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._changed.wait()
            self._changed.clear()
            try:
                while await self._step():
                    pass
            except Exception as error:  # noqa: BLE001 - Ray's, or of a process; it is tried again
                self._note_fault(_PLAN, "the plan cannot continue", error)
            finally:
                self._doing = ""

    def _note_fault(self, of: str, what: str, error: Exception) -> None:
        fault = f"{what}: {error}"
        if self._faults.get(of) != fault:  # said once, not each second
            _LOG.warning("%s; trying again", fault, exc_info=not isinstance(error, WalleError))
        self._faults[of] = fault

    async def _supply(self) -> None:
        """Begin what is urgent, each node by itself: one that cannot have its processes keeps no other waiting."""
        nodes, processes = await self._reading.ask()
        turns: dict[str, list[Start | Forget]] = {}
        for action in urgent(self._plan, nodes, self._rules, processes):
            turns.setdefault(action.node if isinstance(action, Start) else _GONE, []).append(action)
        for node in self._faults.keys() - turns.keys() - {_PLAN}:
            del self._faults[node]
        for node, actions in turns.items():
            if node not in self._supplying:
                self._supplying[node] = asyncio.create_task(self._supply_node(node, actions), name=f"supply {node}")

    async def _supply_node(self, node: str, actions: Sequence[Start | Forget]) -> Exception | None:
        """Do the actions for a node; return the error of the first that failed."""
        try:
            for action in actions:
                await self._do(action)
        except Exception as error:  # noqa: BLE001 - Ray's, or of a process; the next look may go well
            self._note_fault(node, f"node {node[:12]} has too few processes", error)
            return error
        else:
            return None
        finally:
            del self._supplying[node]

    async def _end_supply(self) -> None:
        await asyncio.gather(*(_cancel(task) for task in list(self._supplying.values())))

    async def _step(self) -> bool:
        """Do what the plan says is next; return whether there was anything."""
        nodes, processes = await ask_head(self._read)  # read again: the step before changed it
        actions = in_turn(self._plan, self._rules, processes)
        if all(one.id in self._plan.drained for one in nodes if self._may_serve(one)):
            actions = [one for one in actions if not isinstance(one, Move)]  # a process that moves would come back
        if not actions:
            self._faults.pop(_PLAN, None)
            done = self._plan.restarting
            if done and not self._plan.left(processes):
                await self._change(
                    lambda plan: dataclasses.replace(
                        plan, restarting=tuple(one for one in plan.restarting if one not in done)
                    )
                )
            return False
        leaving = [one for one in actions if isinstance(one, Leave)]
        self._doing = f"{type(actions[0]).__name__.lower()} {actions[0].name}"
        if leaving:  # drained nodes leave at the same time
            await asyncio.gather(*(self._do(one) for one in leaving))
        else:
            await self._do(actions[0])
        self._faults.pop(_PLAN, None)
        return True

    def _may_serve(self, node: Node) -> bool:
        return NodeKind("", 1, parse_labels(self._config.service_labels)).belongs_on(node)

    async def _do(self, action: Action) -> None:
        _LOG.info("%s", action)
        match action:
            case Start(kind, node, name):
                await self._start_member(kind, node, name)
            case Forget(name):
                await self._kill(name)
            case Leave(name, over_s):
                await self._leave(name, over_s)
            case Replace(kind, node, name, successor):
                if await ask_head(has_room, node, self._kinds[kind].options):
                    await self._start_member(kind, node, successor)
                    await self._leave(name, _RESTART_OVER_S)
                else:  # the one before it has what it would take
                    _LOG.warning("node %s has no room for two: %s leaves before its successor starts", node[:12], name)
                    await self._leave(name, _RESTART_OVER_S)
                    await self._until_supplied(kind, node)
            case Move(name) if name == KEEPER:
                await ask(await find_soon("gateway", self._place.namespace), "move_keeper", sorted(self._plan.drained))
                await self._until_ended()  # the keeper continues there
            case Move(name):
                await end(await find_soon(name, self._place.namespace))
                actor = await spawn_again(self._config, self._place, name, avoid=self._plan.drained)
                await self._until_ready(name, actor)
            case Restart(name):
                await self._restart(name)

    async def _start_member(self, kind: str, node: str, name: str) -> None:
        options = self._kinds[kind].options
        actor = await self._kinds[kind].spawn(self._config, self._place, node, name)
        try:
            try:
                async with asyncio.timeout(_READY_S):
                    await ask(actor, "start")
            except TimeoutError as error:
                is_placed = bool((await ask_head(record_of, actor)).get("Pid"))
                why = "it does not become ready" if is_placed else f"Ray has no room there for {_taken(options)}"
                raise MemberNotReadyError(
                    f"{name} has not started on node {node[:12]} in {_READY_S:.0f} s: {why}"
                ) from error
        except BaseException:
            ray.kill(actor)
            raise

    async def _until_supplied(self, kind: str, node: str) -> None:
        """Wait until a node has its processes of a kind again, which `_supply` starts.

        Raises:
            MemberNotReadyError: it does not have them in time.
        """
        async with _in_time(f"node {node[:12]} does not yet run its processes {kind!r} again"):
            while True:
                await asyncio.sleep(_LOOK_S / 10)
                _, processes = await ask_head(self._read)
                present = [one.name for one in processes if (one.kind, one.node) == (kind, node)]
                if len(present) < self._kinds[kind].count:
                    continue
                with contextlib.suppress(NodeLostError):
                    for name in present:
                        await ask(await find_soon(name, self._place.namespace), "ready")
                    return

    async def _leave(self, name: str, over_s: float) -> None:
        with contextlib.suppress(NodeLostError):
            actor = await find_soon(name, self._place.namespace)
            try:
                async with asyncio.timeout(over_s + _LEAVE_MORE_S):
                    await ask(actor, "drain", over_s)
            except TimeoutError:
                _LOG.warning(
                    "%s still has connections after %.0f s; it is stopped anyway", name, over_s + _LEAVE_MORE_S
                )
            await end(actor)

    async def _kill(self, name: str) -> None:
        with contextlib.suppress(NodeLostError):
            ray.kill(await find_soon(name, self._place.namespace))

    async def _restart(self, name: str) -> None:
        actor = await find_soon(name, self._place.namespace)
        if name == KEEPER:  # the keeper's successor continues with the plan, in which this step is done then
            ray.kill(actor, no_restart=False)
            await self._until_ended()
        await end(actor, is_again=True)
        await self._until_ready(name, actor)

    async def _until_ended(self) -> None:
        """Wait for the end of this process.

        Raises:
            OrderLostError: it has not come in time, such as where Ray's head was lost with the order.
        """
        await asyncio.sleep(_READY_S)
        raise OrderLostError(f"the keeper of nodes was told to stop and still runs after {_READY_S:.0f} s")

    async def _until_ready(self, name: str, actor: Any) -> Any:
        """Wait until a process continues.

        Raises:
            MemberNotReadyError: it does not in time.
        """
        method = "ready" if name in SERVICES else "start"
        async with _in_time(f"{name} does not continue after its restart"):
            while True:
                with contextlib.suppress(NodeLostError):
                    return await ask(actor, method)
                await asyncio.sleep(_LOOK_S / 10)

    def _read(self) -> tuple[list[Node], list[Process]]:
        nodes, found = _nodes(), []
        by_start = {one.id[:ID_CHARS]: one.id for one in nodes}
        for name in sorted(actor_names(self._place.namespace)):
            with contextlib.suppress(NodeLostError):
                if not (record := record_of(find(name, self._place.namespace))):
                    raise HeadAwayError(f"it does not say where {name} runs")  # the process may run nevertheless
                kind, node, pid = "", record["Address"]["NodeID"], int(record["Pid"])
                if member := parse_member(name):
                    kind, start = member
                    node = by_start.get(start, start)  # the node of a member that Ray cannot start again may be gone
                found.append(Process(name, node, pid, kind))
        return nodes, found


@contextlib.asynccontextmanager
async def _in_time(failure: str) -> AsyncIterator[None]:
    """Give the block _READY_S. Raises MemberNotReadyError, which says the failure, when they are over."""
    try:
        async with asyncio.timeout(_READY_S):
            yield
    except TimeoutError as error:
        raise MemberNotReadyError(f"{failure} in {_READY_S:.0f} s; see the logs of Ray on its node") from error


def _taken(options: Mapping[str, Any]) -> str:
    """Return what an actor with these options takes of its node, for a person."""
    amounts = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus"), "memory": options.get("memory")}
    amounts |= options.get("resources", {})
    return ", ".join(f"{name}={amount:g}" for name, amount in amounts.items() if amount) or "no resource"


def _nodes() -> list[Node]:
    """Return the live nodes of Ray."""
    return [
        Node(one["NodeID"], one["NodeManagerHostname"], one["Labels"])
        for one in ray.nodes()  # type: ignore[no-untyped-call]
        if one["Alive"]
    ]


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
