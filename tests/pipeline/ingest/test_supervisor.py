"""The state of the pump as /healthz sees it: failed lookups, failures that a reopening does not end, and lag."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.pipeline.ingest.upload_samples import Batches, SetClock, received, until
from walle.base.clock import ManualClock
from walle.engine_ext import _core
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore
from walle.pipeline.ingest.store.upload_store import IngestError
from walle.pipeline.ingest.supervisor import PumpSupervisor
from walle.pipeline.tunnel.received import Received
from walle.pipeline.tunnel.server.server import TunnelServer
from walle.protocol import Hello


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteUploadStore]:
    async with SqliteUploadStore(tmp_path / "uploads.db") as store:
        yield store


@pytest.mark.asyncio
async def test_devices_that_are_not_looked_up_are_an_error_though_no_upload_arrives(
    store: SqliteUploadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    supervisor = PumpSupervisor(Batches(), store, clock=clock)
    await clock.advance(1000.0)
    assert supervisor.error == ""

    async def fail(hello: Hello) -> None:
        raise IngestError("db", "the database restarts", may_pass=True)

    with monkeypatch.context() as patch:
        patch.setattr(store, "resume", fail)
        with pytest.raises(IngestError):
            await supervisor.resume(Hello("d", "e", ""))
        assert "the database restarts" in supervisor.error
        await clock.advance(61.0)
        assert supervisor.error == ""  # no device is waiting
        with pytest.raises(IngestError):
            await supervisor.resume(Hello("d", "e", ""))
    assert supervisor.error
    await supervisor.resume(Hello("d", "e", ""))
    assert supervisor.error == ""


class Waiting(Batches):
    """A server that waits for uploads when there are none, and gives those that were put back again."""

    async def arrived(self, limit: int) -> list[Received]:
        while not self.batches:  # noqa: ASYNC110 - a test appends to them
            await asyncio.sleep(0.001)
        return self.batches.popleft()

    def put_back(self, batch: list[Received]) -> None:
        self.batches.appendleft(batch)


@pytest.mark.asyncio
async def test_a_failure_lasts_until_the_batch_is_stored_and_not_until_the_file_is_open_again(
    store: SqliteUploadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tries, errors = store.accept, 0, list[str]()

    async def accept(batch: list[Received]) -> Any:
        nonlocal tries
        tries += 1
        errors.append(supervisor.error)
        if tries < 4:
            raise IngestError("db", "attempt to write a readonly database")
        return await real(batch)

    monkeypatch.setattr(store, "accept", accept)
    server = Waiting([received(1)])
    supervisor = PumpSupervisor(server, store, backoff_s=0.001)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: bool(server.acked), 10)
    assert errors[0] == ""
    assert all("readonly" in error for error in errors[1:])
    assert supervisor.error == ""
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.asyncio
async def test_an_error_at_reopening_that_is_not_the_stores_does_not_end_the_pump(
    store: SqliteUploadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reopen, tries = store.reopen, 0

    async def fail_first() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise MemoryError("no memory")
        await reopen()

    monkeypatch.setattr(store, "reopen", fail_first)
    server = Waiting([received(1)])
    supervisor = PumpSupervisor(server, store, backoff_s=0.001)
    await store.close()  # the pump fails
    running = asyncio.create_task(supervisor.run())
    await until(lambda: bool(server.acked) or running.done(), 10)
    assert not running.done()
    assert tries == 3
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_the_lag_of_an_upload_grows_though_the_clock_is_set_back() -> None:
    async def nothing(*_: object) -> Any:
        raise AssertionError

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    clock = SetClock(1_000_000.0)
    server = TunnelServer(
        ssl_context=context,
        resume=nothing,
        on_request=nothing,
        host="127.0.0.1",
        port=0,
        clock=clock,
    )
    assert server.lag_s == 0
    _core.UploadReceiver(server.queue).push([received(1)])
    clock.now_s, clock.monotonic_s = 500_000.0, 40.0
    assert server.lag_s == 40
