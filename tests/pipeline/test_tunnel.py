"""The tunnel over real sockets and TLS: whatever the network does, what was sent arrives once and in order."""

import asyncio
import contextlib
import dataclasses
import random
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.sim.fault_proxy import FaultProxy
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TOKENS, TunnelCloud, check_token, echo
from walle import protocol
from walle.clock import ManualClock
from walle.deploy.authority import Authority
from walle.errors import ConfigError, PipelineError
from walle.pipeline.frames import MAX_PAYLOAD_BYTES, Decoder, Encoder
from walle.pipeline.ingest import Ingest
from walle.pipeline.outbox import Outbox
from walle.pipeline.store import FeatureStore
from walle.pipeline.tunnel_client import (
    RequestError,
    TunnelClient,
    TunnelClosedError,
    TunnelError,
    TunnelRefusedError,
    client_context,
)
from walle.pipeline.tunnel_server import ServerLimits, TunnelServer, TunnelServerError


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def cloud(authority: Authority, tmp_path: Path) -> TunnelCloud:
    return TunnelCloud(authority.server_context(), tmp_path / "ingest.db")


type OutboxUnderTest = MemoryOutbox | Outbox
type Put = Callable[[str, bytes], Awaitable[object]]
type MakeClient = Callable[..., TunnelClient]


@pytest_asyncio.fixture
async def make_client(authority: Authority) -> AsyncIterator[MakeClient]:
    """Make clients that are closed at the end; fast to come back, and seeded."""
    clients = []

    def make(outbox: Any, port: int, *, device: int = 0, **options: Any) -> TunnelClient:
        settings: dict[str, Any] = {
            "device_id": f"device-{device}",
            "token": f"token-{device}",
            "host": "127.0.0.1",
            "ssl_context": client_context(authority.ca_path),
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


class KeepingOutbox(MemoryOutbox):
    """Remembers what was put into it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[int, str, bytes]] = []

    def add(self, topic: str, payload: bytes) -> int:
        seq = super().add(topic, payload)
        self.sent.append((seq, topic, payload))
        return seq


@contextlib.asynccontextmanager
async def running(client: TunnelClient) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(client.run())
    try:
        yield task
    finally:
        await client.close()
        await asyncio.gather(task, return_exceptions=True)


def fill(outbox: MemoryOutbox, count: int, *, size: int = 200, seed: int = 1) -> list[tuple[int, str, bytes]]:
    rng = random.Random(seed)
    added = []
    for _ in range(count):
        payload = rng.randbytes(rng.randrange(size))
        added.append((outbox.add("ipv", payload), "ipv", payload))
    return added


async def stored(ingest: Ingest, device: int = 0) -> list[tuple[int, str, bytes]]:
    rows = await ingest.query(device_id=f"device-{device}", limit=1_000_000)
    return [(received.seq, received.topic, received.payload) for _, received in rows]


async def until(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds. Other tasks decide when, so this can only look again after they ran."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition is of an object under test, which sets no event
            await asyncio.sleep(0.001)


# --- delivery ---------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_uploads_arrive_once_in_order_and_leave_the_outbox(cloud: TunnelCloud, make_client: MakeClient) -> None:
    outbox = MemoryOutbox()
    sent = fill(outbox, 700, size=3_000)
    async with cloud:
        latencies: list[tuple[int, float]] = []
        client = make_client(outbox, cloud.server.port, on_ack=lambda seq, seconds: latencies.append((seq, seconds)))
        async with running(client), asyncio.timeout(10):
            await client.drained()
            assert await client.send("late", b"one more") == 701
            await client.drained()
            await until(lambda: len(latencies) == 701)
        assert await stored(cloud.ingest) == [*sent, (701, "late", b"one more")]
        assert await cloud.ingest.count() == 701
        assert outbox.uploads == []
        assert [seq for seq, _ in latencies] == list(range(1, 702))
        assert all(0 <= seconds < 10 for _, seconds in latencies)
        assert cloud.server.counts.uploads == 701
        assert cloud.server.counts.duplicates == 0


@pytest.mark.asyncio
async def test_many_devices_at_once(cloud: TunnelCloud, make_client: MakeClient) -> None:
    async with cloud, contextlib.AsyncExitStack() as stack:
        sent = {}
        clients = []
        for device in range(10):
            outbox = MemoryOutbox()
            sent[device] = fill(outbox, 60, seed=device)
            client = make_client(outbox, cloud.server.port, device=device)
            await stack.enter_async_context(running(client))
            clients.append(client)
        async with asyncio.timeout(20):
            await asyncio.gather(*(client.drained() for client in clients))
        for device in range(10):
            assert await stored(cloud.ingest, device) == sent[device]


@pytest.mark.asyncio
async def test_a_new_epoch_numbers_from_one_again(cloud: TunnelCloud, make_client: MakeClient) -> None:
    async with cloud:
        for epoch in ("first", "second"):
            outbox = MemoryOutbox(epoch)
            fill(outbox, 5)
            client = make_client(outbox, cloud.server.port)
            async with running(client), asyncio.timeout(10):
                await client.drained()
        assert [seq for seq, _, _ in await stored(cloud.ingest)] == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]


@pytest.mark.asyncio
async def test_tcp_nodelay_is_set_on_both_ends(cloud: TunnelCloud, make_client: MakeClient) -> None:
    async with cloud:
        client = make_client(MemoryOutbox(), cloud.server.port)
        async with running(client):
            await until(lambda: client.connected)
            assert client._link is not None
            assert client._link._transport is not None
            (connection,) = cloud.server._connections
            for transport in (client._link._transport, connection._transport):
                end = transport.get_extra_info("socket")
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert client._link._transport.get_extra_info("ssl_object").version() == "TLSv1.3"


# --- a bad network ----------------------------------------------------------------------------------------------------


async def send_until_struck(proxy: FaultProxy, client: TunnelClient, outbox: MemoryOutbox, rng: random.Random) -> None:
    """Keep uploads going until the fault that was armed has struck."""
    struck = proxy.faults
    while proxy.faults == struck:
        outbox.add("ipv", rng.randbytes(rng.randrange(2_000)))
        await until(lambda: proxy.faults > struck or client._acked == outbox.last_seq)


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(6))
async def test_cuts_at_random_points_lose_and_double_nothing(
    cloud: TunnelCloud, make_client: MakeClient, seed: int
) -> None:
    rng = random.Random(seed)
    outbox = KeepingOutbox()
    fill(outbox, 300, size=2_000, seed=seed)
    async with cloud, FaultProxy(cloud.server.port) as proxy:
        client = make_client(outbox, proxy.port)
        async with running(client), asyncio.timeout(20):
            for _ in range(12):
                way = rng.choice(["up", "down"])
                proxy.cut_after(way, rng.randrange(1, 20_000 if way == "up" else 2_500))
                await send_until_struck(proxy, client, outbox, rng)
            await client.drained()
        assert proxy.faults == 12
        assert await stored(cloud.ingest) == outbox.sent
        assert await cloud.ingest.count() == len(outbox.sent)


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("seed", range(3))
async def test_a_flipped_bit_costs_the_connection_and_nothing_else(
    cloud: TunnelCloud, make_client: MakeClient, way: str, seed: int
) -> None:
    rng = random.Random(seed)
    outbox = KeepingOutbox()
    async with cloud, FaultProxy(cloud.server.port) as proxy:
        client = make_client(outbox, proxy.port)
        async with running(client), asyncio.timeout(20):
            await until(lambda: client.connected)
            proxy.flip_after(way, rng.randrange(1, 20_000 if way == "up" else 200))
            await send_until_struck(proxy, client, outbox, rng)
            await client.drained()
            await until(lambda: client.connected and client.connections >= 2)
        assert isinstance(client.last_error, ssl.SSLError | ConnectionError | TunnelClosedError)
        assert await stored(cloud.ingest) == outbox.sent


@pytest.mark.asyncio
async def test_a_cloud_that_stops_and_starts_again_goes_on_from_its_file(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    outbox = MemoryOutbox()
    sent = fill(outbox, 100)
    await cloud.start()
    async with FaultProxy(cloud.server.port) as proxy:
        client = make_client(outbox, proxy.port)
        async with running(client), asyncio.timeout(20):
            for crash in (False, True, True):
                await until(lambda: client.connected)
                arrivals = cloud.server.counts.uploads
                sent += fill(outbox, 500, seed=crash)
                await until(lambda before=arrivals: cloud.server.counts.uploads > before)  # type: ignore[misc]
                await (cloud.crash() if crash else cloud.stop())
                sent += fill(outbox, 50)
                await cloud.start()
                proxy.target_port = cloud.server.port
            await client.drained()
    assert client.connections >= 4
    assert await stored(cloud.ingest) == sent
    await cloud.stop()


@pytest.mark.asyncio
async def test_a_device_that_is_killed_goes_on_from_its_outbox(cloud: TunnelCloud, make_client: MakeClient) -> None:
    outbox = MemoryOutbox()
    sent = fill(outbox, 2_000)
    async with cloud:
        for goal in (50, 500):
            client = make_client(outbox, cloud.server.port)
            task = asyncio.create_task(client.run())
            await until(lambda goal=goal: cloud.server.counts.uploads > goal)  # type: ignore[misc]
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        client = make_client(outbox, cloud.server.port)
        async with running(client), asyncio.timeout(10):
            await client.drained()
        assert await stored(cloud.ingest) == sent


@pytest.mark.asyncio
async def test_the_client_is_patient_with_a_cloud_that_is_away(cloud: TunnelCloud, make_client: MakeClient) -> None:
    outbox = MemoryOutbox()
    sent = fill(outbox, 3)
    async with FaultProxy(1) as proxy:  # nothing listens on port 1
        client = make_client(outbox, proxy.port)
        async with running(client), asyncio.timeout(10):
            await until(lambda: proxy.connections >= 3)
            assert not client.connected
            assert client.last_error is not None
            async with cloud:
                proxy.target_port = cloud.server.port
                await client.drained()
                assert await stored(cloud.ingest) == sent


@pytest.mark.asyncio
async def test_backoff_grows_with_jitter_up_to_its_limit(make_client: MakeClient) -> None:
    class Recorder(ManualClock):
        def __init__(self) -> None:
            super().__init__()
            self.slept: list[float] = []

        async def sleep(self, seconds: float) -> None:
            self.slept.append(seconds)
            await asyncio.sleep(0)

    def delays(seed: int) -> Any:
        clock = Recorder()
        with socket.socket() as unused:  # bound, not listening: every connection is refused
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            return clock, make_client(
                MemoryOutbox(), port, clock=clock, rng=random.Random(seed), backoff_s=0.5, backoff_max_s=60.0
            )

    all_slept = []
    for seed in range(2):
        clock, client = delays(seed)
        async with running(client):
            await until(lambda clock=clock: len(clock.slept) >= 40)  # type: ignore[misc]
        all_slept.append(clock.slept[:40])
    for slept in all_slept:
        assert all(delay <= 0.5 * 2 ** (attempt + 1) for attempt, delay in enumerate(slept))
        assert all(delay <= 60.0 for delay in slept)
        assert max(slept[10:]) > 30.0
        assert len({round(delay, 6) for delay in slept}) == 40
    assert all_slept[0] != all_slept[1]


@pytest.mark.asyncio
async def test_a_dead_link_is_noticed_by_its_silence(cloud: TunnelCloud, make_client: MakeClient) -> None:
    outbox = MemoryOutbox()
    async with cloud, FaultProxy(cloud.server.port) as proxy:
        client = make_client(outbox, proxy.port, keepalive_s=0.05, connect_s=0.2)
        async with running(client), asyncio.timeout(10):
            await until(lambda: client.connected)
            proxy.swallow = True
            outbox.add("ipv", b"into the void")
            await until(lambda: not client.connected)
            assert "silent" in str(client.last_error)
            proxy.swallow = False
            proxy.cut()
            await client.drained()
            assert [seq for seq, _, _ in await stored(cloud.ingest)] == [1]


@pytest.mark.asyncio
async def test_pings_keep_an_idle_link_up(cloud: TunnelCloud, make_client: MakeClient) -> None:
    async with cloud:
        client = make_client(MemoryOutbox(), cloud.server.port, keepalive_s=0.02)
        async with running(client):
            await until(lambda: client.connected)
            before = cloud.server.counts.bytes_in
            await until(lambda: cloud.server.counts.bytes_in >= before + 5 * 16)  # five pings
            assert client.connected
            assert client.connections == 1


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_requests_ride_beside_uploads(cloud: TunnelCloud, make_client: MakeClient) -> None:
    outbox = MemoryOutbox()
    fill(outbox, 500)
    async with cloud:
        client = make_client(outbox, cloud.server.port)
        async with running(client), asyncio.timeout(10):
            answers = await asyncio.gather(*(client.request("ask", bytes([n]) * n * 100) for n in range(40)))
            await client.drained()
        assert answers == [b"device-0 ask " + bytes([n]) * n * 100 for n in range(40)]
        assert cloud.server.counts.requests == 40
        assert await cloud.ingest.count() == 500


@pytest.mark.asyncio
async def test_a_failed_request_says_why_and_nothing_of_the_clouds_inside(
    cloud: TunnelCloud, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(device_id: str, topic: str, payload: bytes) -> bytes:
        if topic == "known":
            raise PipelineError("no model named ipv")
        if topic == "huge":
            return b"x" * (MAX_PAYLOAD_BYTES * 2)
        raise KeyError("secret internals")

    cloud.on_request = fail
    async with cloud:
        client = make_client(MemoryOutbox(), cloud.server.port)
        async with running(client):
            with pytest.raises(RequestError, match="'known': no model named ipv"):
                await client.request("known", b"")
            with pytest.raises(RequestError, match="the cloud failed at this request"):
                await client.request("unknown", b"")
            assert "secret internals" in caplog.text
            with pytest.raises(RequestError, match="the answer cannot be sent"):
                await client.request("huge", b"")
            with pytest.raises(RequestError, match="at most"):
                await client.request("big", b"x" * (MAX_PAYLOAD_BYTES + 1))
            assert client.connected


@pytest.mark.asyncio
async def test_an_open_request_ends_with_the_link(cloud: TunnelCloud, make_client: MakeClient) -> None:
    asked = asyncio.Event()

    async def never(device_id: str, topic: str, payload: bytes) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    cloud.on_request = never
    async with cloud, FaultProxy(cloud.server.port) as proxy:
        client = make_client(MemoryOutbox(), proxy.port)
        async with running(client), asyncio.timeout(10):
            question = asyncio.create_task(client.request("ask", b""))
            await asked.wait()
            proxy.cut()
            with pytest.raises(TunnelClosedError, match="dropped before the answer"):
                await question
            with pytest.raises(RequestError, match="no answer within"):
                await client.request("ask", b"", timeout=0.05)
            last = asyncio.create_task(client.request("ask", b""))
            await until(lambda: cloud.server.counts.requests >= 3)
            await client.close()
            with pytest.raises(TunnelClosedError):
                await last
        assert not client._running
        with pytest.raises(TunnelClosedError):
            await client.request("ask", b"")


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "code"),
    [({"token": "wrong"}, "token"), ({"device_id": "stranger"}, "token"), ({"device_id": ""}, "hello")],
)
async def test_a_wrong_identity_ends_the_client(
    cloud: TunnelCloud, make_client: MakeClient, options: dict[str, str], code: str
) -> None:
    outbox = MemoryOutbox()
    fill(outbox, 3)
    async with cloud:
        client = make_client(outbox, cloud.server.port, **options)
        with pytest.raises(TunnelRefusedError) as raised:
            await client.run()
        assert raised.value.code == code
        with pytest.raises(TunnelClosedError):
            await client.drained()
        assert await cloud.ingest.count() == 0
        assert cloud.server.counts.refusals == {code: 1}
    assert len(outbox.uploads) == 3


@pytest.mark.asyncio
async def test_a_cloud_of_another_authority_gets_nothing(
    cloud: TunnelCloud, make_client: MakeClient, tmp_path: Path
) -> None:
    outbox = MemoryOutbox()
    fill(outbox, 1)
    other = Authority(tmp_path / "other")
    async with cloud:
        client = make_client(outbox, cloud.server.port, ssl_context=client_context(other.ca_path))
        async with running(client) as task:
            await until(lambda: isinstance(client.last_error, ssl.SSLCertVerificationError))
            assert not task.done()
        assert cloud.server.counts.connections == 0
    assert len(outbox.uploads) == 1


def test_a_missing_or_empty_authority_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        client_context(tmp_path / "nowhere.pem")
    empty = tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(ConfigError, match=r"empty\.pem"):
        client_context(empty)


@pytest.mark.asyncio
async def test_nothing_but_tls_1_3_is_spoken(cloud: TunnelCloud, authority: Authority) -> None:
    old = client_context(authority.ca_path)
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with cloud:
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await asyncio.open_connection("127.0.0.1", cloud.server.port, ssl=old)
    lax = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(TunnelServerError, match=r"TLS 1\.3"):
        TunnelServer(ssl_context=lax, token_check=check_token, acked=cloud.ingest.acked, on_request=echo)


class RawDevice:
    """A device that says what a test tells it to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.encoder, self.decoder = Encoder(), Decoder()
        self.frames: list[protocol.Frame] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, authority: Authority, port: int) -> AsyncIterator["RawDevice"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(authority.ca_path))
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def say(self, *frames: protocol.Frame) -> None:
        self.writer.write(b"".join(self.encoder.encode(frame) for frame in frames))

    async def hello(self, device: int = 0, epoch: str = "e") -> protocol.Welcome:
        self.say(protocol.Hello(f"device-{device}", epoch, TOKENS[f"device-{device}"]))
        welcome = await self.hear()
        assert isinstance(welcome, protocol.Welcome)
        return welcome

    async def hear(self) -> protocol.Frame | None:
        """Return the next frame; None when the cloud has hung up."""
        async with asyncio.timeout(10):
            while not self.frames:
                data = await self.reader.read(65536)
                if not data:
                    return None
                self.frames += self.decoder.feed(data)
        return self.frames.pop(0)


def _upload(seq: int, size: int = 1) -> protocol.Upload:
    return protocol.Upload(seq, "t", random.Random(seq).randbytes(size), 0)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([_upload(1)], "order"),
        ([protocol.Ping(1)], "order"),
        ([protocol.Ack(1)], "order"),
        ([protocol.Hello("device-0", "e", "token-0", protocol=99)], "protocol"),
        ([protocol.Hello("device-0", "", "token-0")], "hello"),
        ([protocol.Hello("device-0", "e", "wrong"), _upload(1)], "token"),
    ],
)
async def test_a_stranger_that_breaks_the_order_is_told(
    cloud: TunnelCloud, authority: Authority, said: list[protocol.Frame], code: str
) -> None:
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        device.say(*said)
        refusal = await device.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == code
        assert await device.hear() is None
        await until(lambda: cloud.server.counts.open == 0)
        assert await cloud.ingest.count() == 0


@pytest.mark.asyncio
async def test_a_stranger_may_not_send_much(cloud: TunnelCloud, authority: Authority) -> None:
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        device.say(protocol.Hello("device-0", "e", random.Random(1).randbytes(5_000).hex()))
        refusal = await device.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "frame"
        assert "4096" in refusal.message


@pytest.mark.asyncio
async def test_duplicates_are_dropped_and_acknowledged_again(cloud: TunnelCloud, authority: Authority) -> None:
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        assert await device.hello() == protocol.Welcome(0, cloud.limits.window)
        device.say(_upload(1), _upload(2))
        while await device.hear() != protocol.Ack(2):
            pass
        device.say(_upload(1), _upload(2))
        assert await device.hear() == protocol.Ack(2)
        assert cloud.server.counts.duplicates == 2
        assert await cloud.ingest.count() == 2


@pytest.mark.asyncio
async def test_a_gap_hangs_up_and_what_came_before_it_is_kept(cloud: TunnelCloud, authority: Authority) -> None:
    async with cloud:
        async with RawDevice.connect(authority, cloud.server.port) as device:
            await device.hello()
            device.say(_upload(1), _upload(2), _upload(4))
            frames = [await device.hear()]
            while not isinstance(frames[-1], protocol.Refusal):
                frames.append(await device.hear())
            assert frames[-1].code == "gap"
            assert "4 came where 3 was due" in frames[-1].message
            assert frames[-1].retry_s >= 0
        await until(lambda: cloud.server.queued == 0)
        async with asyncio.timeout(10):
            while await cloud.ingest.acked("device-0", "e") < 2:
                pass
        async with RawDevice.connect(authority, cloud.server.port) as device:
            assert (await device.hello()).acked == 2


@pytest.mark.asyncio
async def test_a_bad_frame_hangs_up_on_that_device_alone(cloud: TunnelCloud, authority: Authority) -> None:
    async with (
        cloud,
        RawDevice.connect(authority, cloud.server.port) as bad,
        RawDevice.connect(authority, cloud.server.port) as good,
    ):
        await bad.hello(1)
        await good.hello(2)
        bad.writer.write(b"\xff" * 100)
        refusal = await bad.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "frame"
        good.say(_upload(1))
        assert await good.hear() == protocol.Ack(1)


@pytest.mark.asyncio
async def test_the_newest_connection_of_a_device_wins(cloud: TunnelCloud, authority: Authority) -> None:
    async with (
        cloud,
        RawDevice.connect(authority, cloud.server.port) as older,
        RawDevice.connect(authority, cloud.server.port) as newer,
    ):
        await older.hello()
        older.say(_upload(1))
        assert await older.hear() == protocol.Ack(1)
        assert (await newer.hello()).acked == 1
        refusal = await older.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "replaced"
        assert refusal.retry_s < 0
        assert await older.hear() is None
        newer.say(_upload(2))
        assert await newer.hear() == protocol.Ack(2)
        await until(lambda: cloud.server.counts.open == 1)


@pytest.mark.asyncio
async def test_uploads_of_a_replaced_connection_may_become_durable_later(authority: Authority, tmp_path: Path) -> None:
    """The new connection is welcomed at 0 while 1..3 of the old one are queued; the acknowledgement jumps ahead."""
    async with (
        Ingest(tmp_path / "ingest.db") as ingest,
        TunnelServer(
            ssl_context=authority.server_context(), token_check=check_token, acked=ingest.acked, on_request=echo
        ) as server,
        RawDevice.connect(authority, server.port) as older,
        RawDevice.connect(authority, server.port) as newer,
    ):
        await older.hello()
        older.say(_upload(1), _upload(2), _upload(3))
        await until(lambda: server.queued == 3)
        assert (await newer.hello()).acked == 0
        newer.say(_upload(1))
        await until(lambda: server.queued == 4)
        accepted = await ingest.accept(await server.arrived(10))
        assert accepted.highest == {("device-0", "e"): 3}
        await server.acknowledge("device-0", "e", 3)
        assert await newer.hear() == protocol.Ack(3)
        newer.say(_upload(4))
        await until(lambda: server.queued == 1)
        accepted = await ingest.accept(await server.arrived(10))
        assert accepted.highest == {("device-0", "e"): 4}
        assert await ingest.count() == 4


@pytest.mark.asyncio
async def test_a_cloud_that_lost_what_it_acknowledged_is_not_hidden(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    outbox = MemoryOutbox()
    fill(outbox, 5)
    await outbox.forget(3)  # acknowledged once, by a cloud whose file is gone since
    async with cloud:
        client = make_client(outbox, cloud.server.port)
        with pytest.raises(TunnelError, match="up to 0, and the outbox begins at 4"):
            await client.run()


@pytest.mark.asyncio
async def test_an_outbox_that_was_put_back_to_an_earlier_day_is_not_hidden(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    outbox = MemoryOutbox()
    fill(outbox, 5)
    async with cloud:
        client = make_client(outbox, cloud.server.port)
        async with running(client):
            await client.drained()
        restored = MemoryOutbox()  # the same epoch, from a backup
        fill(restored, 3, seed=2)
        with pytest.raises(TunnelError, match="up to 5, and the outbox has given numbers up to 3"):
            await asyncio.wait_for(make_client(restored, cloud.server.port).run(), 10)
        assert len(restored.uploads) == 3


@pytest.mark.asyncio
async def test_an_outage_of_the_lookup_is_waited_out(authority: Authority, make_client: MakeClient) -> None:
    calls = 0

    async def acked(device_id: str, epoch: str) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("the database is away")
        return 0

    class Hasty(ManualClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(min(seconds, 0.01))

    async with TunnelServer(
        ssl_context=authority.server_context(), token_check=check_token, acked=acked, on_request=echo
    ) as server:
        client = make_client(MemoryOutbox(), server.port, clock=Hasty())
        async with running(client):
            await until(lambda: client.connected)
        assert isinstance(client.last_error, TunnelRefusedError)
        assert client.last_error.code == "unavailable"
        assert client.last_error.retry_s == 5.0


# --- flow control -----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_slow_consumer_stops_the_reading_and_memory_stays_bounded(
    authority: Authority, make_client: MakeClient
) -> None:
    async def nothing_yet(device_id: str, epoch: str) -> int:
        return 0

    limits = ServerLimits(window=2_000, queue_uploads=50)
    size = 20_000
    outbox = MemoryOutbox()
    rng = random.Random(3)
    for _ in range(2_000):
        outbox.add("t", rng.randbytes(size))
    async with TunnelServer(
        ssl_context=authority.server_context(),
        token_check=check_token,
        acked=nothing_yet,
        on_request=echo,
        limits=limits,
    ) as server:
        client = make_client(outbox, server.port)
        async with running(client), asyncio.timeout(20):
            await until(lambda: server.counts.pauses == 1)
            await until(lambda: client._link is not None and not client._link.writable.is_set())
            # The queue's bound, and what a handful of uploads may be more.
            assert 50 <= server.queued <= 50 + 14
            stalled = server.queued
            in_flight = server.counts.uploads
            for _ in range(20):
                await asyncio.sleep(0)
            assert server.queued == stalled
            seqs = [received.seq for received in await server.arrived(stalled - 20)]
            await until(lambda: server.counts.pauses == 2)  # it was let go, and held again
            while len(seqs) < 2_000:
                batch = await server.arrived(10)
                seqs += [received.seq for received in batch]
                assert server.queued <= 50 + 14
                await server.acknowledge("device-0", "epoch-1", seqs[-1])
            assert in_flight < 2_000
            assert seqs == list(range(1, 2_001))
            await client.drained()


@pytest.mark.asyncio
async def test_few_bytes_that_unpack_to_many_do_not_fill_the_memory(authority: Authority) -> None:
    async with (
        TunnelServer(
            ssl_context=authority.server_context(),
            token_check=check_token,
            acked=lambda _device, _epoch: _zero(),
            on_request=echo,
            limits=ServerLimits(queue_bytes=8 << 20),
        ) as server,
        RawDevice.connect(authority, server.port) as device,
    ):
        await device.hello()
        bombs = [protocol.Upload(seq, "t", bytes(1 << 20), 0) for seq in range(1, 201)]
        packed = b"".join(map(device.encoder.encode, bombs))
        assert len(packed) < 50_000  # one read from the socket
        device.writer.write(packed)
        await until(lambda: server.counts.pauses == 1)
        seqs: list[int] = []
        while len(seqs) < 200:
            seqs += [received.seq for received in await server.arrived(3)]
            assert server._queued_bytes <= 9 << 20
        assert seqs == list(range(1, 201))
        assert server.counts.pauses > 20
        device.say(protocol.Ping(1))
        assert await device.hear() == protocol.Pong(1)


@pytest.mark.asyncio
async def test_closing_does_not_wait_for_a_cloud_that_does_not_answer(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    async with cloud, FaultProxy(cloud.server.port) as proxy:
        proxy.swallow = True
        client = make_client(MemoryOutbox(), proxy.port, connect_s=1_000.0)
        async with running(client) as task:
            await until(lambda: proxy.connections == 1)
            async with asyncio.timeout(1):
                await client.close()
            await task


@pytest.mark.asyncio
async def test_the_window_bounds_what_is_unacknowledged(authority: Authority, make_client: MakeClient) -> None:
    async def nothing_yet(device_id: str, epoch: str) -> int:
        return 0

    outbox = MemoryOutbox()
    fill(outbox, 100)
    async with TunnelServer(
        ssl_context=authority.server_context(),
        token_check=check_token,
        acked=nothing_yet,
        on_request=echo,
        limits=ServerLimits(window=8),
    ) as server:
        client = make_client(outbox, server.port)
        async with running(client), asyncio.timeout(10):
            await until(lambda: server.queued == 8)
            assert await client.request("still", b"answered") == b"device-0 still answered"
            assert server.queued == 8  # the answer came after anything that was sent before the question
            await server.acknowledge("device-0", "epoch-1", 5)
            await until(lambda: server.queued == 13)
            await client.request("still", b"answered")
            assert server.queued == 13
        async with RawDevice.connect(authority, server.port) as greedy:
            await greedy.hello(3)
            greedy.say(*(_upload(seq) for seq in range(1, 10)))
            refusal = await greedy.hear()
            assert isinstance(refusal, protocol.Refusal)
            assert refusal.code == "window"


@pytest.mark.asyncio
async def test_a_device_that_does_not_read_is_cut_off_and_its_answers_wait(
    authority: Authority, cloud: TunnelCloud
) -> None:
    async def much(device_id: str, topic: str, payload: bytes) -> bytes:
        return random.Random(1).randbytes(1 << 20)

    clock = ManualClock()
    async with (
        TunnelServer(
            ssl_context=authority.server_context(),
            token_check=check_token,
            acked=lambda _device, _epoch: _zero(),
            on_request=much,
            clock=clock,
        ) as server,
        RawDevice.connect(authority, server.port) as deaf,
    ):
        await deaf.hello()
        deaf.say(*(protocol.Request(number, "ask", b"") for number in range(16)))
        (connection,) = server._connections
        await until(lambda: not connection._writable.is_set())
        written = server.counts.bytes_out
        assert written < 12 << 20  # of 16 MiB; the kernel's socket buffers hold some
        deaf.say(protocol.Request(99, "ask", b""))
        await clock.advance(server.limits.idle_s + 2)
        await clock.advance(server.limits.linger_s + 2)
        await until(lambda: server.counts.open == 0)
        assert server.counts.refusals == {"idle": 1}


async def _zero() -> int:
    return 0


@pytest.mark.asyncio
async def test_the_silent_are_hung_up_on(authority: Authority) -> None:
    clock = ManualClock()
    async with (
        TunnelServer(
            ssl_context=authority.server_context(),
            token_check=check_token,
            acked=lambda _device, _epoch: _zero(),
            on_request=echo,
            clock=clock,
        ) as server,
        RawDevice.connect(authority, server.port) as mute,
        RawDevice.connect(authority, server.port) as idle,
    ):
        await idle.hello()
        await clock.advance(server.limits.hello_s - 3)
        heard = server.counts.bytes_in
        mute.writer.write(b"\0")  # a byte of a Hello wins it no time
        await until(lambda: server.counts.bytes_in > heard)
        await clock.advance(4)
        refusal = await mute.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "hello"
        idle.say(protocol.Ping(5))
        assert await idle.hear() == protocol.Pong(5)
        await clock.advance(server.limits.idle_s - 2)
        idle.say(protocol.Ping(6))
        assert await idle.hear() == protocol.Pong(6)
        await clock.advance(server.limits.idle_s + 2)
        refusal = await idle.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "idle"


@pytest.mark.asyncio
async def test_too_many_requests_or_devices_are_told_to_wait(authority: Authority, cloud: TunnelCloud) -> None:
    gate = asyncio.Event()

    async def wait(device_id: str, topic: str, payload: bytes) -> bytes:
        await gate.wait()
        return b"done"

    cloud.on_request = wait
    cloud.limits = dataclasses.replace(cloud.limits, requests=2, connections=1)
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        await device.hello()
        device.say(*(protocol.Request(number, "ask", b"") for number in (1, 2, 3)))
        busy = await device.hear()
        assert isinstance(busy, protocol.Response)
        assert busy.request_id == 3
        assert "busy" in busy.error
        gate.set()
        assert {await device.hear(), await device.hear()} == {protocol.Response(n, b"done") for n in (1, 2)}
        async with RawDevice.connect(authority, cloud.server.port) as extra:
            refusal = await extra.hear()
            assert isinstance(refusal, protocol.Refusal)
            assert refusal.code == "busy"
            assert refusal.retry_s > 0


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_closing_tells_devices_when_to_come_back_and_ends_the_iteration(
    authority: Authority, tmp_path: Path
) -> None:
    server = TunnelServer(
        ssl_context=authority.server_context(),
        token_check=check_token,
        acked=lambda _device, _epoch: _zero(),
        on_request=echo,
    )
    await server.start()
    async with RawDevice.connect(authority, server.port) as device:
        await device.hello()
        device.say(_upload(1), _upload(2))
        await until(lambda: server.queued == 2)
        closing = asyncio.create_task(server.close())
        refusal = await device.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "closing"
        assert refusal.retry_s == server.limits.closing_retry_s
        assert await device.hear() is None
    await closing
    await server.close()
    assert [received.seq async for received in server] == [1, 2]
    with pytest.raises(TunnelServerError, match="no port"):
        _ = server.port
    with pytest.raises(TunnelServerError, match="starts once"):
        await server.start()


@pytest.mark.asyncio
async def test_no_task_outlives_client_and_cloud(cloud: TunnelCloud, make_client: MakeClient) -> None:
    outbox = MemoryOutbox()
    fill(outbox, 100)
    before = asyncio.all_tasks()
    async with cloud:
        client = make_client(outbox, cloud.server.port)
        async with running(client):
            await client.drained()
    assert asyncio.all_tasks() == before
    with pytest.raises(TunnelError, match="runs once"):
        await client.run()


# --- the outbox -------------------------------------------------------------------------------------------------------


class OutboxContract:
    """What the client takes for granted of every outbox."""

    def make(self, folder: Path) -> contextlib.AbstractAsyncContextManager[tuple[OutboxUnderTest, Put]]:
        """Yield an empty outbox, and a function that puts one upload into it durably."""
        raise AssertionError(f"{type(self).__name__} makes no outbox in {folder}")

    @pytest.mark.asyncio
    async def test_numbers_start_at_one_and_have_no_gaps(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as (outbox, put):
            assert outbox.last_seq == 0
            assert outbox.epoch
            assert await outbox.batch(0, 10) == []
            for number in range(5):
                await put(f"topic-{number}", b"payload")
            assert outbox.last_seq == 5
            batch = await outbox.batch(0, 10)
            assert [(upload.seq, upload.topic) for upload in batch] == [(n + 1, f"topic-{n}") for n in range(5)]
            assert await outbox.batch(5, 10) == []

    @pytest.mark.asyncio
    async def test_a_batch_goes_on_after_a_number_up_to_a_limit(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as (outbox, put):
            for _ in range(5):
                await put("t", b"payload")
            assert [upload.seq for upload in await outbox.batch(1, 2)] == [2, 3]
            assert await outbox.batch(1, 2) == await outbox.batch(1, 2)

    @pytest.mark.asyncio
    async def test_what_is_forgotten_does_not_come_again(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as (outbox, put):
            for _ in range(5):
                await put("t", b"payload")
            await outbox.forget(3)
            await outbox.forget(2)
            await put("t", b"payload")
            assert [upload.seq for upload in await outbox.batch(3, 10)] == [4, 5, 6]
            await outbox.forget(100)  # of an earlier life of the file, so to speak: harmless
            assert outbox.last_seq == 6
            await put("t", b"payload")
            assert [upload.seq for upload in await outbox.batch(6, 10)] == [7]

    @pytest.mark.asyncio
    async def test_waiting_ends_with_the_next_number(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as (outbox, put), asyncio.timeout(10):
            await put("t", b"payload")
            await outbox.wait_for_more(0)
            waiting = asyncio.create_task(outbox.wait_for_more(1))
            await asyncio.sleep(0)
            assert not waiting.done()
            await put("t", b"payload")
            await waiting
            assert [upload.seq for upload in await outbox.batch(1, 10)] == [2]

    @pytest.mark.asyncio
    async def test_a_client_empties_it_through_cuts(
        self, cloud: TunnelCloud, make_client: MakeClient, tmp_path: Path
    ) -> None:
        async with self.make(tmp_path) as (outbox, put), cloud, FaultProxy(cloud.server.port) as proxy:
            client = make_client(outbox, proxy.port)
            async with running(client), asyncio.timeout(20):
                for round_ in range(4):
                    proxy.cut_after("up", 2_000)
                    for number in range(25):
                        await put("t", bytes([round_, number]) * 50)
                await client.drained()
            seqs = [seq for seq, _, _ in await stored(cloud.ingest)]
            assert seqs == list(range(1, 101))
            assert proxy.faults >= 1


class TestMemoryOutbox(OutboxContract):
    @contextlib.asynccontextmanager
    async def make(self, folder: Path) -> AsyncIterator[tuple[OutboxUnderTest, Put]]:
        outbox = MemoryOutbox()
        yield outbox, outbox.put


class TestStoreOutbox(OutboxContract):
    @contextlib.asynccontextmanager
    async def make(self, folder: Path) -> AsyncIterator[tuple[OutboxUnderTest, Put]]:
        async with FeatureStore(folder / "features.db") as store:
            outbox = Outbox(store)
            yield outbox, outbox.put
