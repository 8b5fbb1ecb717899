"""Dictionaries of a device's uploads, by the topics that its tasks put."""

import random
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.sim.offline_device import offline_config
from walle.clock import ManualClock
from walle.device import cloud_tunnel as module
from walle.device.cloud_tunnel import CloudTunnel
from walle.pipeline.outbox import Outbox
from walle.pipeline.store import FeatureStore


@pytest_asyncio.fixture
async def tunnel(tmp_path: Path) -> AsyncIterator[CloudTunnel]:
    context, clock, rng = ssl.create_default_context(), ManualClock(), random.Random(1)
    async with FeatureStore(tmp_path / "features.db") as store:
        yield CloudTunnel(
            offline_config(tmp_path), Outbox(store), context, clock, rng, on_ack=lambda _seq, _latency_s: None
        )


DICTIONARIES: dict[str, Any] = {"a": object(), "b": object(), "plain": None}


@pytest.mark.asyncio
async def test_a_task_cannot_give_its_dictionary_to_the_topics_of_another(tunnel: CloudTunnel) -> None:
    tunnel.use_dictionaries(DICTIONARIES)
    tunnel.note_topics("a", ["a/more", "b", "plain"])
    tunnel.note_topics("b", ["a/more", "b/more"])
    a, b = DICTIONARIES["a"], DICTIONARIES["b"]
    assert tunnel.dictionaries == {"a": a, "b": b, "a/more": a, "b/more": b}
    assert tunnel.client._dictionaries == tunnel.dictionaries


@pytest.mark.asyncio
async def test_topics_of_a_removed_task_are_forgotten(tunnel: CloudTunnel) -> None:
    tunnel.use_dictionaries(DICTIONARIES)
    tunnel.note_topics("a", ["more"])
    tunnel.use_dictionaries({"b": DICTIONARIES["b"]})
    assert (tunnel.dictionaries, tunnel._topics) == ({"b": DICTIONARIES["b"]}, {})
    tunnel.note_topics("b", ["more"])
    assert tunnel.dictionaries["more"] is DICTIONARIES["b"]


@pytest.mark.asyncio
async def test_many_topics_of_a_task_leave_room_to_another(
    tunnel: CloudTunnel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_TOPICS", 10)
    tunnel.use_dictionaries(DICTIONARIES)
    for number in range(100):
        tunnel.note_topics("a", [f"a/{number}"])
    assert len(tunnel._topics) == 10
    tunnel.note_topics("b", ["b/more"])
    assert tunnel.dictionaries["b/more"] is DICTIONARIES["b"]
