"""Dictionaries of a device's uploads: each task's own, for its own topics."""

import random
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.sim.offline_device import offline_config
from walle.base.clock import ManualClock
from walle.device.cloud_tunnel import CloudTunnel
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.tunnel.client.sessions import ResumingContext
from walle.protocol import Upload


@pytest_asyncio.fixture
async def tunnel(tmp_path: Path) -> AsyncIterator[CloudTunnel]:
    context, clock, rng = ResumingContext(ssl.PROTOCOL_TLS_CLIENT), ManualClock(), random.Random(1)
    async with FeatureStore(tmp_path / "features.db") as store:
        yield CloudTunnel(
            offline_config(tmp_path), Outbox(store), context, clock, rng, on_ack=lambda _seq, _latency_s: None
        )


@pytest.mark.asyncio
async def test_a_client_that_replaces_another_has_the_dictionaries(tunnel: CloudTunnel) -> None:
    dictionary: Any = object()
    tunnel.use_dictionaries({"shop/a": dictionary})
    for client in (tunnel.client, tunnel._new_client()):
        of = {topic: client._dictionary_of(Upload(1, topic, b"", 0)) for topic in TOPICS}
        assert [topic for topic, found in of.items() if found is dictionary] == ["shop/a", "shop/a/clicks"]


TOPICS = ["shop/a", "shop/a/clicks", "shop/b", "shop/b/a", "shop/ab", "a", "shop", "/shop/a", ""]
