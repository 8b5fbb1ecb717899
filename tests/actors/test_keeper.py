"""The keeper of a cloud's nodes: orders that come at the same moment, and nodes that cannot be supplied."""

import asyncio
from pathlib import Path

import pytest

from walle.actors import keeper as keeper_module
from walle.actors.keeper import NodeKeeper
from walle.actors.members import member_kinds
from walle.actors.service import Place
from walle.cloud import CloudConfig
from walle.cloud.node_plan import DrainRefusedError, Node, Plan, Process

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
            await all_others.wait()  # as long as an edge whose port is taken, or that Ray cannot place
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
