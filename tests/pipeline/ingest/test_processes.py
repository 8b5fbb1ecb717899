"""Several tunnel processes on one port, real ones: kills, hand-overs of devices, requests, and their end."""

import asyncio
import collections
import contextlib
import dataclasses
import os
import random
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from benchmarks.tunnel_authority import TunnelAuthority
from tests.night.cases import at_night
from tests.pipeline.ingest.upload_samples import until
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.postgres_server import PostgresServer
from tests.sim.tunnel_rig import fill, running
from walle.base.clock import SystemClock
from walle.errors import ConfigError, PipelineError, WalleError
from walle.pipeline.ingest import processes as processes_module
from walle.pipeline.ingest.processes import TunnelProcessError, TunnelProcesses, WorkerSettings
from walle.pipeline.ingest.service import DrainTarget, TunnelService
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.client.client import RequestError, TunnelClient
from walle.pipeline.tunnel.server.deadline import request_due_s
from walle.pipeline.tunnel.server.handlers import RequestBusyError, RequestExpiredError

_DEVICES = 8


class AnswerError(PipelineError):
    """An answer of the main process that is an error."""


async def answer(device_id: str, topic: str, payload: bytes) -> bytes:
    if topic == "fails":
        raise AnswerError(f"no {payload.decode()} for {device_id}")
    if topic == "breaks":
        raise ZeroDivisionError
    return f"{device_id} {topic} ".encode() + payload


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "uploads.db")
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return postgres.make_database()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TunnelAuthority:
    return TunnelAuthority(tmp_path_factory.mktemp("authority"))


def settings(authority: TunnelAuthority, location: str, port: int = 0, *, host: str = "127.0.0.1") -> WorkerSettings:
    return WorkerSettings(
        host=host, port=port, uploads=location, server_pem=authority.server_path, device_ca_pem=authority.devices.ca_pem
    )


def make_client(authority: TunnelAuthority, outbox: MemoryOutbox, port: int, number: int) -> TunnelClient:
    return TunnelClient(
        outbox,
        device_id=f"device-{number}",
        host="127.0.0.1",
        port=port,
        ssl_context=authority.device_context(number),
        rng=random.Random(number),
        backoff_s=0.01,
        backoff_max_s=0.1,
    )


@contextlib.asynccontextmanager
async def fleet(authority: TunnelAuthority, port: int) -> AsyncIterator[tuple[list[MemoryOutbox], list[TunnelClient]]]:
    outboxes = [MemoryOutbox() for _ in range(_DEVICES)]
    clients = [make_client(authority, outbox, port, number) for number, outbox in enumerate(outboxes)]
    async with contextlib.AsyncExitStack() as undo:
        for client in clients:
            await undo.enter_async_context(running(client))
        yield outboxes, clients


@pytest.mark.night
@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_killed_processes_lose_and_double_nothing(authority: TunnelAuthority, location: str) -> None:
    rng, made = random.Random(11), 0
    async with (
        open_uploads(location, create=True) as store,
        TunnelProcesses(3, settings(authority, location), on_request=answer) as processes,
        fleet(authority, processes.port) as (outboxes, clients),
        asyncio.timeout(150),
    ):
        used = collections.Counter[tuple[str, int]]()

        async def consume() -> None:
            async for batch in store.consume("g"):
                used.update((row.device_id, row.seq) for row in batch.uploads)
                await batch.commit()

        consuming = asyncio.create_task(consume())
        for kills in range(1, 7):
            for outbox in outboxes:
                fill(outbox, 150, size=1500, seed=made)
            made += 150
            await asyncio.sleep(rng.uniform(0.02, 0.3))
            os.kill(rng.choice(processes.pids), signal.SIGKILL)
            await until(lambda kills=kills: processes.restarts >= kills)  # type: ignore[misc]
            await until(lambda: len(processes.pids) >= 2)
        await asyncio.gather(*(client.drained() for client in clients))
        rows = await store.query(limit=10**6)
        for number in range(_DEVICES):
            seqs = [row.seq for _, row in rows if row.device_id == f"device-{number}"]
            assert seqs == list(range(1, made + 1))
        await until(lambda: len(used) == made * _DEVICES)
        assert set(used.values()) == {1}
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
        await until(lambda: len(processes.pids) == 3)
        total = sum(state.stored for state in [*processes.states(), *processes.ended()])
        assert total <= made * _DEVICES  # a killed process has not reported its last half second


@pytest.mark.parametrize(("count", "gets_signal"), [(1, False), *at_night((2, False)), (2, True)])
@pytest.mark.asyncio
async def test_devices_of_a_tunnel_that_stops_are_sent_to_another(
    authority: TunnelAuthority, tmp_path: Path, count: int, gets_signal: bool
) -> None:
    """With `gets_signal`, each process gets SIGTERM as well, as service managers send it."""
    release = asyncio.Event()

    async def slow(_device_id: str, _topic: str, _payload: bytes) -> bytes:
        await release.wait()
        return b"answered"

    location = str(tmp_path / "u.db")
    async with contextlib.AsyncExitStack() as undo:
        store = await undo.enter_async_context(open_uploads(location, create=True))
        other = TunnelService(
            store,
            ssl_context=authority.server_context(),
            on_request=slow,
            host="127.0.0.1",
            port=0,
            drain_to=DrainTarget(over_s=0.0),
        )
        await undo.enter_async_context(other)
        target = DrainTarget("127.0.0.1", other.port, 0.3)
        tunnel: TunnelService | TunnelProcesses
        if count == 1:
            tunnel = TunnelService(
                store,
                ssl_context=authority.server_context(),
                on_request=slow,
                host="127.0.0.1",
                port=0,
                drain_to=target,
            )
        else:
            stopping = dataclasses.replace(settings(authority, location), drain_to=target)
            tunnel = TunnelProcesses(count, stopping, on_request=slow)
        async with asyncio.timeout(60):
            await tunnel.__aenter__()
            outboxes, clients = await undo.enter_async_context(fleet(authority, tunnel.port))
            await until(lambda: all(client.connected for client in clients))
            question = asyncio.create_task(clients[0].request("slow", b""))
            await asyncio.sleep(0.2)
            for outbox in outboxes:
                fill(outbox, 20)
            asyncio.get_running_loop().call_later(0.6, release.set)
            if gets_signal:
                assert isinstance(tunnel, TunnelProcesses)
                for pid in tunnel.pids:
                    os.kill(pid, signal.SIGTERM)
            await tunnel.__aexit__(None, None, None)
            assert await question == b"answered"
            for outbox in outboxes:
                fill(outbox, 20, seed=2)
            await asyncio.gather(*(client.drained() for client in clients))
        assert [client.last_error for client in clients] == [None] * _DEVICES
        assert other.server.counts.connections == _DEVICES
        assert await store.count() == 40 * _DEVICES


@pytest.mark.asyncio
async def test_a_process_without_its_main_process_does_not_keep_devices_until_their_turn_to_move(
    authority: TunnelAuthority, tmp_path: Path
) -> None:
    """It could not answer their requests."""
    place = dataclasses.replace(settings(authority, str(tmp_path / "u.db")), drain_to=DrainTarget(over_s=30.0))
    async with TunnelProcesses(1, place, on_request=answer) as processes:
        client = make_client(authority, MemoryOutbox(), processes.port, 0)
        async with running(client), asyncio.timeout(15):
            assert await client.request("what", b"A") == b"device-0 what A"
            channel = processes._slots[0].channel
            assert channel is not None
            channel._writer.close()  # looks like the main process's end
            await until(lambda: processes.restarts == 1)
            assert await client.request("what", b"B") == b"device-0 what B"


@pytest.mark.parametrize(
    "text", ["host", ":1", "host:", "host:0", "host:99999", "ho st:1", "host:-1", "host:" + "9" * 5000]
)
def test_an_address_to_drain_to_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        DrainTarget.parse(text, 1.0)


@pytest.mark.parametrize("over_s", [-1.0, 3601.0, float("inf"), float("nan")])
def test_a_time_to_drain_that_is_none_is_refused(over_s: float) -> None:
    with pytest.raises(ConfigError, match="0 to 3600"):
        DrainTarget.parse("", over_s)


def test_addresses_to_drain_to() -> None:
    assert DrainTarget.parse("", 2.0) == DrainTarget("", 0, 2.0)
    assert DrainTarget.parse("cloud-2.example:7443", 0.0) == DrainTarget("cloud-2.example", 7443, 0.0)
    assert DrainTarget.parse("[::1]:7443", 1.0) == DrainTarget("::1", 7443, 1.0)


@pytest.mark.asyncio
async def test_connections_are_spread_and_a_device_that_moves_is_taken_over(
    authority: TunnelAuthority, tmp_path: Path
) -> None:
    location = str(tmp_path / "uploads.db")
    async with (
        open_uploads(location, create=True) as store,
        TunnelProcesses(2, settings(authority, location), on_request=answer) as processes,
        asyncio.timeout(60),
    ):
        outbox = MemoryOutbox()
        for round_number in range(12):  # one connection each
            fill(outbox, 5, seed=round_number)
            client = make_client(authority, outbox, processes.port, 0)
            async with running(client):
                await client.drained()
        assert [row.seq for _, row in await store.query(device_id="device-0")] == list(range(1, 61))
        await until(lambda: sum(state.stored for state in processes.states()) == 60)
        assert all(state.counts["connections"] > 0 for state in processes.states())


@pytest.mark.asyncio
async def test_requests_are_answered_by_the_main_process(authority: TunnelAuthority, tmp_path: Path) -> None:
    async with (
        TunnelProcesses(2, settings(authority, str(tmp_path / "u.db")), on_request=answer) as processes,
        fleet(authority, processes.port) as (_, clients),
        asyncio.timeout(60),
    ):
        answers = await asyncio.gather(*(client.request("what", bytes([65 + n])) for n, client in enumerate(clients)))
        assert answers == [f"device-{n} what {chr(65 + n)}".encode() for n in range(_DEVICES)]
        with pytest.raises(RequestError, match="no tea for device-3"):
            await clients[3].request("fails", b"tea")
        with pytest.raises(RequestError, match="the cloud failed at this request"):
            await clients[3].request("breaks", b"")
        big = os.urandom(300_000)
        assert await clients[0].request("big", big) == b"device-0 big " + big


@pytest.mark.asyncio
async def test_a_process_that_hangs_is_reported_and_the_others_continue(
    authority: TunnelAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes_module, "_SILENT_S", 3.0)
    location = str(tmp_path / "uploads.db")
    async with (
        TunnelProcesses(2, settings(authority, location), on_request=answer) as processes,
        asyncio.timeout(60),
    ):
        pid = processes.pids[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            await until(lambda: any("has not reported" in state.error for state in processes.states()))
            assert [bool(state.error) for state in processes.states()] == [True, False]
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: not any(state.error for state in processes.states()))


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_process_that_hangs_is_killed_and_started_again(
    authority: TunnelAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = str(tmp_path / "uploads.db")
    async with (
        TunnelProcesses(2, settings(authority, location), on_request=answer) as processes,
        fleet(authority, processes.port) as (outboxes, clients),
        asyncio.timeout(60),
    ):
        for outbox in outboxes:
            fill(outbox, 20)
        await asyncio.gather(*(client.drained() for client in clients))
        pid = processes.pids[0]
        monkeypatch.setattr(processes_module, "_HUNG_S", 2.0)
        monkeypatch.setattr(processes_module, "_TERM_S", 0.2)
        os.kill(pid, signal.SIGSTOP)  # SIGTERM alone does not end it
        await until(lambda: processes.hangs == 1)
        monkeypatch.setattr(processes_module, "_HUNG_S", 60.0)
        await until(lambda: len(processes.pids) == 2 and pid not in processes.pids)
        assert processes.restarts == 1
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        for outbox in outboxes:  # devices of the killed process, too
            fill(outbox, 20, seed=20)
        await asyncio.gather(*(client.drained() for client in clients))
        async with open_uploads(location, create=True) as store:
            assert await store.count() == 40 * _DEVICES


@pytest.mark.asyncio
async def test_no_process_counts_as_hung_while_the_main_process_was_stopped(
    authority: TunnelAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stoppable(SystemClock):
        stopped_s = 0.0

        def monotonic(self) -> float:
            return time.monotonic() + self.stopped_s

    monkeypatch.setattr(processes_module, "_TICK_S", 0.01)
    clock, location = Stoppable(), str(tmp_path / "u.db")
    async with TunnelProcesses(1, settings(authority, location), on_request=answer, clock=clock) as processes:
        pids, slot = processes.pids, processes._slots[0]
        clock.stopped_s, slot.quiet_s = 1000.0, 0.0  # time that passed while no step of this process ran
        await until(lambda: slot.quiet_s > 0)
        await until(lambda: slot.reported_s > 1000.0 + time.monotonic() - 60.0)
        assert (processes.pids, processes.hangs) == (pids, 0)


_OTHER_VERSION = """\
#!{python}
import asyncio, dataclasses, types
from walle.pipeline.ingest import worker

worker.dataclasses = types.SimpleNamespace(asdict=lambda state: {{**dataclasses.asdict(state), {change}}})
asyncio.run(worker._main())
"""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ('"colour": 1', "its state has other fields: colour"),
        *at_night(
            ('"stored": "many"', "its state has values of other types: stored"),
            ('"counts": {"uploads": None}', "its state has values of other types: counts"),
        ),
    ],
)
async def test_a_process_of_another_version_is_reported_and_replaced(
    authority: TunnelAuthority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: str,
    what: str,
) -> None:
    other = tmp_path / "python"
    other.write_text(_OTHER_VERSION.format(python=sys.executable, change=change))
    other.chmod(0o755)
    async with (
        TunnelProcesses(2, settings(authority, str(tmp_path / "u.db")), on_request=answer) as processes,
        asyncio.timeout(60),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(other))
            os.kill(processes.pids[0], signal.SIGKILL)
            await until(lambda: processes.restarts >= 2)
        assert what in caplog.text
        assert "restart the cloud if walle was updated" in caplog.text
        await until(lambda: len(processes.pids) == 2)


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["", "::1", "localhost"])
async def test_processes_listen_on_every_address_of_a_host(
    authority: TunnelAuthority, tmp_path: Path, host: str
) -> None:
    addresses = {"": ["127.0.0.1", "::1"], "::1": ["::1"], "localhost": []}[host]
    if not addresses:
        addresses = sorted({str(where[0]) for *_, where in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)})
    place = settings(authority, str(tmp_path / "u.db"), host=host)
    async with TunnelProcesses(2, place, on_request=answer) as processes:
        for address in addresses:
            with socket.create_connection((address, processes.port)):
                pass
        with pytest.raises(OSError, match="in use"):
            async with TunnelProcesses(1, dataclasses.replace(place, port=processes.port), on_request=answer):
                raise AssertionError


@pytest.mark.asyncio
async def test_the_end_does_not_wait_for_a_process_that_hangs_and_does_not_read(
    authority: TunnelAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes_module, "_STOP_S", 1.0)
    monkeypatch.setattr(processes_module, "_SILENT_S", 0.2)
    location = str(tmp_path / "uploads.db")
    async with asyncio.timeout(30):
        async with TunnelProcesses(2, settings(authority, location), on_request=answer) as processes:
            pids = processes.pids
            os.kill(pids[0], signal.SIGSTOP)
            channel = processes._slots[0].channel
            assert channel is not None
            sending = asyncio.create_task(channel.send("answer", 10**6, bytes(1 << 20), None, True))
            await asyncio.sleep(0.1)
            assert not sending.done()
            await processes.renew_certificate()
        await sending
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.asyncio
async def test_a_process_that_the_system_cannot_start_is_started_later(
    authority: TunnelAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        TunnelProcesses(2, settings(authority, str(tmp_path / "u.db")), on_request=answer) as processes,
        asyncio.timeout(60),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(tmp_path / "removed"))
            os.kill(processes.pids[0], signal.SIGKILL)
            await until(lambda: processes.restarts == 2)
        await until(lambda: len(processes.pids) == 2)


@pytest.mark.asyncio
async def test_the_end_does_not_wait_for_the_next_start_of_a_process(
    authority: TunnelAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes_module, "_BACKOFF_S", 30.0)
    async with asyncio.timeout(12):
        async with TunnelProcesses(1, settings(authority, str(tmp_path / "u.db")), on_request=answer) as processes:
            os.kill(processes.pids[0], signal.SIGKILL)
            await until(lambda: processes.restarts == 1)


@pytest.mark.asyncio
async def test_processes_end_with_the_main_process_and_store_what_arrived(
    authority: TunnelAuthority, tmp_path: Path
) -> None:
    location = str(tmp_path / "uploads.db")
    async with (
        TunnelProcesses(2, settings(authority, location), on_request=answer) as processes,
        fleet(authority, processes.port) as (outboxes, clients),
    ):
        fill(outboxes[0], 100)
        await clients[0].drained()
        pids, port = processes.pids, processes.port
        assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with socket.create_server(("127.0.0.1", port)):
        pass
    with contextlib.closing(sqlite3.connect(location)) as database:
        assert database.execute("SELECT count(*) FROM uploads").fetchone() == (100,)


@pytest.mark.asyncio
async def test_a_process_whose_main_process_has_ended_does_not_wait_for_its_devices_to_move(
    authority: TunnelAuthority, tmp_path: Path
) -> None:
    slow = dataclasses.replace(settings(authority, str(tmp_path / "u.db")), drain_to=DrainTarget(over_s=600.0))
    async with (
        TunnelProcesses(1, slow, on_request=answer) as processes,
        fleet(authority, processes.port) as (_, clients),
        asyncio.timeout(40),
    ):
        await until(lambda: all(client.connected for client in clients))
        process = processes._slots[0].process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()  # looks like a kill of this process
        assert await asyncio.wait_for(process.wait(), 20) == 0
        await until(lambda: len(processes.pids) == 1 and all(client.connected for client in clients))


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        yield taken.getsockname()[1]


@pytest.mark.asyncio
async def test_a_port_in_use_and_a_store_that_cannot_be_opened_are_refused(
    authority: TunnelAuthority, tmp_path: Path, taken_port: int
) -> None:
    with pytest.raises(OSError, match="in use"):
        async with TunnelProcesses(2, settings(authority, str(tmp_path / "u.db"), taken_port), on_request=answer):
            raise AssertionError
    with pytest.raises(TunnelProcessError, match=r"tunnel process \d cannot start: .*unable to open"):
        async with TunnelProcesses(2, settings(authority, str(tmp_path)), on_request=answer):
            raise AssertionError


@pytest.fixture
def taken_ipv6_port() -> Iterator[int]:
    with socket.create_server(("::1", 0), family=socket.AF_INET6, reuse_port=True) as taken:
        yield taken.getsockname()[1]


@pytest.mark.asyncio
async def test_a_port_in_use_on_one_address_of_the_host_is_refused(
    authority: TunnelAuthority, tmp_path: Path, taken_ipv6_port: int
) -> None:
    """The processes would share it with the other program, and get some of its connections."""
    place = settings(authority, str(tmp_path / "u.db"), taken_ipv6_port, host="")
    with pytest.raises(OSError, match="in use"):
        async with TunnelProcesses(1, place, on_request=answer):
            raise AssertionError


@pytest.mark.asyncio
async def test_deadlines_and_refusals_cross_between_the_processes(authority: TunnelAuthority, location: str) -> None:
    left_s: list[float] = []

    async def refuse(device_id: str, topic: str, payload: bytes) -> bytes:
        due_s = request_due_s()
        assert due_s is not None
        left_s.append(due_s - time.monotonic())
        raise {"busy": RequestBusyError, "expired": RequestExpiredError, "failed": WalleError}[topic](f"it is {topic}")

    async with TunnelProcesses(1, settings(authority, location), on_request=refuse) as processes, asyncio.timeout(60):
        client = make_client(authority, MemoryOutbox(), processes.port, 0)
        async with running(client):
            for code in ("busy", "expired", "failed"):
                with pytest.raises(RequestError, match=f"it is {code}") as refused:
                    await client.request(code, b"", 20.0)
                assert refused.value.code == code
    assert all(15 < one <= 20 for one in left_s)
