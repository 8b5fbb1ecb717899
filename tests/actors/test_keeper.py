"""The keeper of a cloud's nodes: orders that come at the same moment."""

import asyncio
from pathlib import Path

import pytest

from walle.actors import keeper as keeper_module
from walle.actors.keeper import NodeKeeper
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
