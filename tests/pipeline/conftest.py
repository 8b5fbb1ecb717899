"""Fixtures of the tunnel's tests: a cloud's tunnel end and its certificate authority."""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import MakeClient
from walle.pipeline.tunnel.client.client import (
    TunnelClient,
)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TunnelAuthority:
    return TunnelAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def cloud(authority: TunnelAuthority, tmp_path: Path) -> TunnelCloud:
    return TunnelCloud(ssl_context=authority.server_context(), path=tmp_path / "ingest.db")


@pytest_asyncio.fixture
async def make_client(authority: TunnelAuthority) -> AsyncIterator[MakeClient]:
    """Make clients that are closed at the end; fast to come back, and seeded."""
    clients = []

    def make(outbox: Any, port: int, *, device: int = 0, **options: Any) -> TunnelClient:
        settings: dict[str, Any] = {
            "device_id": f"device-{device}",
            "host": "127.0.0.1",
            "ssl_context": authority.device_context(device),
            "rng": random.Random(7),
            "backoff_s": 0.005,
            "backoff_max_s": 0.02,
        }
        client = TunnelClient(outbox, port=port, **{**settings, **options})
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.close()
