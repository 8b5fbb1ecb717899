"""The keeper of a cloud's nodes: orders that come at the same moment, and nodes that cannot be supplied."""

import asyncio
import dataclasses
import itertools
from pathlib import Path

import pytest
import ray

from tests.sim.shop_cloud import until
from walle.actors import keeper as keeper_module
from walle.actors.head import HeadAwayError
from walle.actors.keeper import MemberNotReadyError, NodeKeeper, OrderLostError
from walle.actors.members import MemberKind, member_kinds
from walle.actors.process import KEEPER
from walle.actors.service import Place
from walle.cloud import CloudConfig
from walle.cloud.nodes.node_plan import DrainRefusedError, Node, Plan, Process, Restart

_NODES = [Node(letter * 56, f"host-{letter}") for letter in "abc"]


@pytest.mark.asyncio
async def test_orders_at_the_same_moment_are_all_kept_and_one_node_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = [Process(f"inference-{number}", node.id, number) for number, node in enumerate(_NODES)]
    monkeypatch.setattr(keeper_module, "_nodes", lambda: _NODES)
    monkeypatch.setattr(NodeKeeper, "_read", lambda _: (_NODES, processes))
    keeper = NodeKeeper(CloudConfig(folder=tmp_path), Place("ns", str(tmp_path)), (), "")
    orders = [keeper.drain(node.host, 0.0) for node in _NODES]
    restarts = [keeper.restart(node.host) for node in _NODES]
    answers = await asyncio.gather(*orders, *restarts, return_exceptions=True)
    assert [type(one) for one in answers].count(DrainRefusedError) == 1
    plan = Plan.load(tmp_path)
    assert len(plan.drained) == 2
    assert set(plan.restarting) == set(processes)
    await asyncio.gather(*(keeper.undrain(node_id) for node_id in plan.drained))
    assert not Plan.load(tmp_path).drained


@pytest.mark.asyncio
async def test_a_node_that_cannot_have_its_processes_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    all_others = asyncio.Event()

    async def start(_: NodeKeeper, kind: str, node: str, name: str) -> None:
        if node == _NODES[0].id:
            await all_others.wait()  # an edge takes as long if its port is taken, or if Ray cannot place it
            raise OSError(f"{name}: address already in use")
        started.append(f"{kind} {node[0]}")
        if len(started) == 4:
            all_others.set()

    monkeypatch.setattr(NodeKeeper, "_read", lambda _: (_NODES, []))
    monkeypatch.setattr(NodeKeeper, "_start_member", start)
    config = CloudConfig(folder=tmp_path, gateways=2)
    keeper = NodeKeeper(config, Place("ns", str(tmp_path)), member_kinds(config), "")
    try:
        await asyncio.wait_for(keeper.start(), 30.0)
        assert sorted(started) == ["edge b", "edge b", "edge c", "edge c"]
        assert "address already in use" in (await keeper.progress())["fault"]
    finally:
        await keeper.close()


@pytest.mark.asyncio
async def test_a_keeper_does_not_start_where_no_node_can_have_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(_: NodeKeeper, kind: str, node: str, name: str) -> None:
        raise OSError(f"{name}: address already in use")

    monkeypatch.setattr(NodeKeeper, "_read", lambda _: (_NODES, []))
    monkeypatch.setattr(NodeKeeper, "_start_member", start)
    config = CloudConfig(folder=tmp_path, gateways=2)
    keeper = NodeKeeper(config, Place("ns", str(tmp_path)), member_kinds(config), "")
    with pytest.raises(OSError, match=f"edge-{'a' * 8}-0: address already in use"):
        await asyncio.wait_for(keeper.start(), 30.0)
    await keeper.close()


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.asyncio
async def test_a_process_is_stopped_before_its_successor_where_a_node_has_no_room_for_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_room: bool
) -> None:
    node = _NODES[0]
    edge = Process(f"edge-{'a' * 8}-0", node.id, 7, "edge")
    running = [edge]
    done: list[str] = []
    next_pid = itertools.count(8)

    async def start(_: NodeKeeper, kind: str, node_id: str, name: str) -> None:
        done.append(f"start {name}")
        running.append(Process(name, node_id, next(next_pid), kind))

    async def leave(_: NodeKeeper, name: str, over_s: float) -> None:
        done.append(f"leave {name}")
        running[:] = [one for one in running if one.name != name]

    async def ready(actor: object, method: str) -> None:
        done.append(f"{method} {actor}")

    monkeypatch.setattr(keeper_module, "_nodes", lambda: [node])
    monkeypatch.setattr(keeper_module, "has_room", lambda *_: has_room)
    monkeypatch.setattr(keeper_module, "find", lambda name, _: name)
    monkeypatch.setattr(keeper_module, "ask", ready)
    monkeypatch.setattr(NodeKeeper, "_read", lambda _: ([node], list(running)))
    monkeypatch.setattr(NodeKeeper, "_start_member", start)
    monkeypatch.setattr(NodeKeeper, "_leave", leave)
    config = CloudConfig(folder=tmp_path, gateways=1, gateway_resources=("CPU=1",))
    keeper = NodeKeeper(config, Place("ns", str(tmp_path)), member_kinds(config), "")
    try:
        await keeper.start()
        await keeper.restart("")

        async def is_done() -> bool:
            return (await keeper.progress())["remaining"] == 0 and len(running) == 1

        await until(is_done)
        names = [f"edge-{'a' * 8}-{number}" for number in (0, 1)]
        if has_room:
            assert done == [f"start {names[1]}", f"leave {names[0]}"]
        else:
            assert done[:2] == [f"leave {names[0]}", f"start {names[0]}"]
        assert running[0].pid != edge.pid
    finally:
        await keeper.close()


@pytest.mark.parametrize(
    ("pid", "why"), [(0, "Ray has no room there for CPU=1, big=2"), (7, "it does not become ready")]
)
@pytest.mark.asyncio
async def test_a_process_that_does_not_start_in_time_is_ended_and_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: int, why: str
) -> None:
    killed: list[str] = []

    async def spawn(_: MemberKind, config: CloudConfig, place: Place, node: str, name: str) -> str:
        return name

    async def never(actor: object, method: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(MemberKind, "spawn", spawn)
    monkeypatch.setattr(keeper_module, "_READY_S", 0.01)
    monkeypatch.setattr(keeper_module, "ask", never)
    monkeypatch.setattr(keeper_module, "record_of", lambda _: {"Pid": pid})
    monkeypatch.setattr(ray, "kill", killed.append)
    config = CloudConfig(folder=tmp_path, gateways=1, gateway_resources=("CPU=1", "big=2"))
    keeper = NodeKeeper(config, Place("ns", str(tmp_path)), member_kinds(config), "")
    with pytest.raises(MemberNotReadyError, match=why):
        await keeper._start_member("edge", _NODES[0].id, "edge-0")
    assert killed == ["edge-0"]


@pytest.mark.asyncio
async def test_a_fault_ends_once_the_head_answers_and_the_plan_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_away = False

    def read(_: NodeKeeper) -> tuple[list[Node], list[Process]]:
        if is_away:
            raise HeadAwayError("no answer within 5 s")
        return _NODES, []

    monkeypatch.setattr(NodeKeeper, "_read", read)
    monkeypatch.setattr(keeper_module, "_LOOK_S", 0.01)
    keeper = NodeKeeper(CloudConfig(folder=tmp_path), Place("ns", str(tmp_path)), (), "")
    try:
        await keeper.start()
        is_away = True

        async def are_noted() -> bool:
            return all(what in caplog.text for what in ("the plan cannot continue", "the nodes cannot be read"))

        await until(are_noted)
        is_away = False

        async def is_over() -> bool:
            return not (await keeper.progress())["fault"]

        await until(is_over)
    finally:
        await keeper.close()


@pytest.mark.asyncio
async def test_a_keeper_that_was_told_to_stop_and_still_runs_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[tuple[str, bool]] = []
    monkeypatch.setattr(keeper_module, "_READY_S", 0.01)
    monkeypatch.setattr("walle.actors.process.find", lambda name, _: name)
    monkeypatch.setattr(ray, "kill", lambda actor, *, no_restart: orders.append((actor, no_restart)))  # lost orders
    keeper = NodeKeeper(CloudConfig(folder=tmp_path), Place("ns", str(tmp_path)), (), "")
    with pytest.raises(OrderLostError):
        await asyncio.wait_for(keeper._do(Restart(KEEPER)), 30.0)
    assert orders == [(KEEPER, False)]


@pytest.mark.asyncio
async def test_a_process_that_does_not_continue_in_time_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(actor: object, method: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(keeper_module, "_READY_S", 0.01)
    monkeypatch.setattr(keeper_module, "ask", never)
    monkeypatch.setattr(NodeKeeper, "_read", lambda _: (_NODES, []))
    keeper = NodeKeeper(
        CloudConfig(folder=tmp_path),
        Place("ns", str(tmp_path)),
        member_kinds(CloudConfig(folder=tmp_path, gateways=1)),
        "",
    )
    with pytest.raises(MemberNotReadyError, match="monitor does not continue after its restart"):
        await keeper._until_ready("monitor", "monitor")
    with pytest.raises(MemberNotReadyError, match=f"node {'a' * 12} does not yet run its processes 'edge' again"):
        await keeper._until_supplied("edge", _NODES[0].id)


class FakeCluster:
    """Nodes with processes, each of which is its name; what the keeper does with them is noted and carried out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, running: dict[str, Process]) -> None:
        self.running = running
        self.done: list[str] = []
        self._pids = itertools.count(100)
        monkeypatch.setattr(keeper_module, "_nodes", lambda: _NODES)
        monkeypatch.setattr(NodeKeeper, "_read", lambda _: (_NODES, list(self.running.values())))
        monkeypatch.setattr(keeper_module, "find_soon", self._find_soon)
        monkeypatch.setattr(keeper_module, "ask", self._ask)
        monkeypatch.setattr(keeper_module, "end", self._end)
        monkeypatch.setattr(keeper_module, "spawn_again", self._spawn_again)
        monkeypatch.setattr(ray, "kill", self._kill)

    async def _find_soon(self, name: str, _namespace: str) -> str:
        return name

    async def _ask(self, actor: str, method: str, *arguments: object) -> None:
        self.done.append(" ".join(map(str, (method, actor, *arguments))))

    async def _end(self, actor: str, *, is_again: bool = False) -> None:
        self.done.append(f"end {actor}")
        before = self.running.pop(actor)
        if is_again:
            self.running[actor] = dataclasses.replace(before, pid=next(self._pids))

    async def _spawn_again(self, _config: CloudConfig, _place: Place, name: str, *, avoid: dict[str, object]) -> str:
        node = next(one.id for one in _NODES if one.id not in avoid)
        self.running[name] = Process(name, node, next(self._pids))
        return name

    def _kill(self, actor: str, *, no_restart: bool = True) -> None:
        self.done.append(f"kill {actor}{' permanently' if no_restart else ''}")


async def _until_done(keeper: NodeKeeper) -> None:
    async def is_done() -> bool:
        progress = await keeper.progress()
        return not progress["remaining"]

    await until(is_done)


@pytest.mark.asyncio
async def test_a_drained_nodes_processes_leave_or_move_and_none_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = _NODES[:2]
    edges = [Process(f"edge-{one.id[:8]}-0", one.id, number, "edge") for number, one in enumerate(_NODES)]
    services = [Process(name, first.id, 10 + number) for number, name in enumerate(("gateway", "monitor", "releases"))]
    cluster = FakeCluster(monkeypatch, {one.name: one for one in (*edges, *services)})
    config = CloudConfig(folder=tmp_path, gateways=1)
    keeper = NodeKeeper(config, Place("ns", str(tmp_path)), member_kinds(config), _NODES[2].id)
    try:
        await keeper.start()
        with pytest.raises(DrainRefusedError, match="has the cloud's folder, or the command that runs the cloud"):
            await keeper.drain(_NODES[2].host, 0.0)
        assert (await keeper.drain(first.host, 7.0))["remaining"] == 4
        await _until_done(keeper)
        assert cluster.done == [
            f"drain {edges[0].name} 7.0", f"end {edges[0].name}",
            "end monitor", "ready monitor", "end releases", "ready releases", "end gateway", "ready gateway",
        ]  # fmt: skip
        assert {one.node for one in cluster.running.values() if not one.kind} == {second.id}
        assert (await keeper.progress())["drained"] == {first.id: {"host": first.host, "left": []}}
    finally:
        await keeper.close()


@pytest.mark.asyncio
async def test_services_are_started_again_one_after_the_other_and_the_successor_of_the_keeper_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("gateway", "identities", "monitor", "releases", KEEPER)
    cluster = FakeCluster(monkeypatch, {name: Process(name, _NODES[0].id, number) for number, name in enumerate(names)})
    keeper = NodeKeeper(CloudConfig(folder=tmp_path), Place("ns", str(tmp_path)), (), "")
    services = [
        f"{word} {name}" for name in ("identities", "monitor", "releases", "gateway") for word in ("end", "ready")
    ]
    try:
        await keeper.start()
        await keeper.restart("")
        await until(lambda: f"kill {KEEPER}" in cluster.done)
        assert cluster.done == [*services, f"kill {KEEPER}"]
        assert (await keeper.progress())["restarting"] == [KEEPER]
    finally:
        await keeper.close()
    cluster.running[KEEPER] = Process(KEEPER, _NODES[0].id, 200)  # Ray started it again
    successor = NodeKeeper(CloudConfig(folder=tmp_path), Place("ns", str(tmp_path)), (), "")
    try:
        await successor.start()
        await _until_done(successor)
        assert (await successor.progress())["restarting"] == []
        assert cluster.done == [*services, f"kill {KEEPER}"]
    finally:
        await successor.close()


@pytest.mark.asyncio
async def test_the_gateway_moves_the_keeper_from_a_drained_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(monkeypatch, {KEEPER: Process(KEEPER, _NODES[0].id, 1)})
    keeper = NodeKeeper(CloudConfig(folder=tmp_path), Place("ns", str(tmp_path)), (), "")
    try:
        await keeper.start()
        await keeper.drain(_NODES[0].host, 0.0)
        await until(lambda: bool(cluster.done))
        assert cluster.done == [f"move_keeper gateway {[_NODES[0].id]}"]
        assert (await keeper.progress())["remaining"] == 1
    finally:
        await keeper.close()
