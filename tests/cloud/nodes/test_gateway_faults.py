"""Faults of the file of received uploads while devices send, and a device that fills it."""

import asyncio
import contextlib
import random
import resource
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sim.device_session import device_context
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.shop_cloud import LIMIT_S
from tests.sim.tunnel_rig import fill, running
from walle.cloud import Cloud, CloudConfig
from walle.pipeline.ingest.store.upload_store import IngestError
from walle.pipeline.tunnel.client.client import TunnelClient, TunnelRefusedError

_DEVICES = 4


class Fleet:
    """Devices that send through the real tunnel, and what they made."""

    def __init__(self, cloud: Cloud) -> None:
        self.outboxes = [MemoryOutbox() for _ in range(_DEVICES)]
        self.made = 0
        self.clients = [
            TunnelClient(
                outbox,
                device_id=f"device-{number}",
                host="127.0.0.1",
                port=cloud.address.tunnel_port,
                ssl_context=device_context(cloud.home, f"device-{number}"),
                rng=random.Random(number),
                backoff_s=0.01,
                backoff_max_s=0.05,
            )
            for number, outbox in enumerate(self.outboxes)
        ]

    def make(self, count: int, size: int = 2_000) -> None:
        for outbox in self.outboxes:
            fill(outbox, count, size=size, seed=self.made)
        self.made += count

    async def drained(self) -> None:
        await asyncio.gather(*(client.drained() for client in self.clients))


def _admin(cloud: Cloud) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {cloud.home.admin_token}"}
    return httpx.AsyncClient(base_url=cloud.address.url, headers=headers)


@contextlib.asynccontextmanager
async def _fleet(folder: Path, **options: Any) -> AsyncIterator[tuple[Cloud, Fleet, httpx.AsyncClient]]:
    async with (
        Cloud(CloudConfig(folder=folder, **options)) as cloud,
        _admin(cloud) as http,
        contextlib.AsyncExitStack() as devices,
    ):
        fleet = Fleet(cloud)
        for client in fleet.clients:
            await devices.enter_async_context(running(client))
        yield cloud, fleet, http


async def _health(http: httpx.AsyncClient, *, ok: bool) -> dict[str, Any]:
    """Return the tunnel's part of /healthz once that is or is not ok.

    The whole may be so at another time: the watch of stored uploads reads the file too.
    """
    async with asyncio.timeout(LIMIT_S):
        while True:
            answer = await http.get("/healthz")
            state = answer.json()
            assert answer.status_code == (200 if state["ok"] else 503)
            part: dict[str, Any] = state["tunnel"]
            if part["ok"] == ok:
                return part
            await asyncio.sleep(0.01)


async def _metric(http: httpx.AsyncClient, name: str) -> float:
    lines = (await http.get("/metrics")).text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


async def _check_nothing_lost(cloud: Cloud, fleet: Fleet) -> None:
    """Every upload that was made is stored once, in order."""
    rows = await cloud.gateway._uploads.store.query(limit=10**6)
    for number in range(_DEVICES):
        seqs = [row.seq for _, row in rows if row.device_id == f"device-{number}"]
        assert seqs == list(range(1, fleet.made + 1))


async def _try_fault(folder: Path, fault: Callable[[Path], Callable[[], None]], message: str) -> None:
    async with _fleet(folder) as (cloud, fleet, http), asyncio.timeout(60):
        fleet.make(50)
        await fleet.drained()
        assert (await _health(http, ok=True))["stored"] == 50 * _DEVICES
        mend = fault(cloud.home.uploads_db)
        try:
            fleet.make(200)
            part = await _health(http, ok=False)
            assert message in part["error"]
            assert part["pump"] == "failing"
            assert await _metric(http, 'walle_lost_uploads_total{cause="cloud-restored"}') == 0
            assert await _metric(http, "walle_tunnel_pump_up") == 0
            assert await _metric(http, "walle_tunnel_pump_failures_total") >= 1
        finally:
            mend()
        await fleet.drained()
        part = await _health(http, ok=True)
        assert (part["pump"], part["error"], part["queued"]) == ("storing", "", 0)
        assert await _metric(http, "walle_tunnel_pump_up") == 1
        await _check_nothing_lost(cloud, fleet)


@pytest.mark.asyncio
async def test_a_file_that_cannot_grow_is_waited_for(tmp_path: Path) -> None:
    def stop_growth(database: Path) -> Callable[[], None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        wal = database.with_name(f"{database.name}-wal")
        resource.setrlimit(resource.RLIMIT_FSIZE, (wal.stat().st_size // 4, before[1]))  # most of it is written ahead
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)

    await _try_fault(tmp_path, stop_growth, "disk I/O error")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.asyncio
async def test_a_full_disk_is_waited_for(small_disk: Path) -> None:
    def fill_disk(_: Path) -> Callable[[], None]:
        filler = small_disk / "filler"
        with filler.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
                file.flush()
        return filler.unlink

    await _try_fault(small_disk, fill_disk, "full")


@pytest.mark.asyncio
async def test_a_damaged_file_is_opened_again_once_it_is_restored(tmp_path: Path) -> None:
    def overwrite(database: Path) -> Callable[[], None]:
        copy = database.with_name("copy.db")
        with contextlib.closing(sqlite3.connect(database)) as source, contextlib.closing(sqlite3.connect(copy)) as goal:
            source.backup(goal)
        parts = [database.with_name(f"{database.name}{suffix}") for suffix in ("", "-wal", "-shm")]
        noise = random.Random(5)
        for part in parts:
            with part.open("r+b") as file:
                file.write(noise.randbytes(part.stat().st_size))

        def restore() -> None:
            for part in parts[1:]:
                part.unlink(missing_ok=True)
            copy.replace(database)

        return restore

    await _try_fault(tmp_path, overwrite, "not a database")


@pytest.mark.asyncio
async def test_a_file_that_is_broken_while_no_device_sends_is_found_by_the_next_that_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cloud(CloudConfig(folder=tmp_path)) as cloud, _admin(cloud) as http:
        await _health(http, ok=True)
        is_seen = asyncio.Event()
        store = cloud.gateway._uploads.store
        reopen = store.reopen

        async def reopen_once_seen() -> None:
            await is_seen.wait()
            await reopen()

        monkeypatch.setattr(store, "reopen", reopen_once_seen)
        await store.close()
        with pytest.raises(IngestError, match="is not open"):
            await cloud.gateway._uploads.watch.refresh()  # read by the cloud too, every few seconds
        fleet = Fleet(cloud)
        fleet.make(3)
        async with running(fleet.clients[0]):
            assert "is not open" in (await _health(http, ok=False))["error"]
            is_seen.set()
            await _health(http, ok=True)
            refusal = fleet.clients[0].last_error
            assert isinstance(refusal, TunnelRefusedError)
            assert (refusal.code, refusal.retry_s) == ("unavailable", 5.0)


@pytest.mark.asyncio
@pytest.mark.parametrize("processes", [1, 2])
async def test_a_device_that_fills_the_disk_is_refused_and_others_continue(tmp_path: Path, processes: int) -> None:
    options = {"device_quota": "4MB,10", "tunnel_processes": processes}
    async with _fleet(tmp_path, **options) as (cloud, fleet, http), asyncio.timeout(60):
        fleet.make(50)
        await fleet.drained()
        fill(fleet.outboxes[0], 1_000, size=20_000, seed=7)
        while (await _health(http, ok=True))["refusals"].get("quota", 0) == 0:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.05)
        assert await _metric(http, 'walle_tunnel_refusals_total{reason="quota"}') >= 1
        for outbox in fleet.outboxes[1:]:
            fill(outbox, 50, size=2_000, seed=8)
        await asyncio.gather(*(client.drained() for client in fleet.clients[1:]))
        rows = await cloud.gateway._uploads.store.query(limit=10**6)
        assert sum(len(row.payload) for _, row in rows if row.device_id == "device-0") < 20_000_000
        assert all(sum(row.device_id == f"device-{number}" for _, row in rows) == 100 for number in (1, 2, 3))
        seqs = [row.seq for _, row in rows if row.device_id == "device-0"]
        assert seqs == list(range(1, len(seqs) + 1))  # what was refused waits at the device
        assert len(seqs) < 1_050
