"""Refusals of the tunnel and their messages: wrong identities, broken order, inconsistent numbers."""

import asyncio
import random
import ssl
from pathlib import Path

import pytest

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud, echo
from tests.sim.tunnel_rig import (
    MakeClient,
    RawDevice,
    bare_server,
    fill,
    nothing_acked,
    running,
    stored,
    until,
    upload,
)
from walle import protocol
from walle.base.clock import ManualClock
from walle.errors import ConfigError
from walle.pipeline.features.checksums import first_link
from walle.pipeline.features.losses import Loss, LossCause
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
from walle.pipeline.tunnel.client.client import (
    TunnelClosedError,
    TunnelRefusedError,
    client_context,
)
from walle.pipeline.tunnel.client.link import Link
from walle.pipeline.tunnel.frames import Encoder
from walle.pipeline.tunnel.received import ResumePoint
from walle.pipeline.tunnel.server.server import ServerLimits, TunnelServer, TunnelServerError


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"device_id": "stranger"}, "identity"),
        ({"device_id": "device-1"}, "identity"),
        ({"device_id": ""}, "hello"),
    ],
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
async def test_a_refused_device_that_disconnects_leaves_no_connection_behind(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    cloud.limits = ServerLimits(linger_s=60.0)  # what a connection is kept whose device has not closed it
    async with cloud:
        with pytest.raises(TunnelRefusedError):
            await make_client(MemoryOutbox(), cloud.server.port, device_id="stranger").run()
        await until(lambda: cloud.server.counts.open == 0)


@pytest.mark.asyncio
async def test_a_device_that_is_refused_for_what_came_behind_its_hello_leaves_no_connection_behind(
    authority: TunnelAuthority,
) -> None:
    async with (
        bare_server(authority, limits=ServerLimits(linger_s=60.0)) as server,
        RawDevice.connect(authority, server.port) as device,
    ):
        hello = protocol.Hello("device-0", "e", "")
        device.say(hello, protocol.Ack(1))  # an Ack is the cloud's
        assert isinstance(await device.hear(), protocol.Welcome)
        assert isinstance(await device.hear(), protocol.Refusal)
        device.writer.close()
        await until(lambda: server.counts.open == 0)


@pytest.mark.asyncio
async def test_a_cloud_of_another_authority_gets_nothing(
    cloud: TunnelCloud, make_client: MakeClient, tmp_path: Path
) -> None:
    outbox = MemoryOutbox()
    fill(outbox, 1)
    other = TunnelAuthority(tmp_path / "other")
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
async def test_nothing_but_tls_1_3_is_spoken(cloud: TunnelCloud, authority: TunnelAuthority) -> None:
    old = authority.device_context()
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with cloud:
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await asyncio.open_connection("127.0.0.1", cloud.server.port, ssl=old)
    lax = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(TunnelServerError, match=r"TLS 1\.3"):
        TunnelServer(ssl_context=lax, resume=cloud.ingest.resume, on_request=echo)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([upload(1)], "order"),
        ([protocol.Ping(1)], "order"),
        ([protocol.Ack(1)], "order"),
        ([protocol.Hello("device-0", "e", "", protocol=1)], "protocol"),
        ([protocol.Hello("device-0", "", "")], "hello"),
        ([protocol.Hello("device-1", "e", ""), upload(1)], "identity"),
    ],
)
async def test_a_stranger_that_breaks_the_order_is_told(
    cloud: TunnelCloud, authority: TunnelAuthority, said: list[protocol.Frame], code: str
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
async def test_a_stranger_may_not_send_much(cloud: TunnelCloud, authority: TunnelAuthority) -> None:
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        device.say(protocol.Hello("device-0", "e", random.Random(1).randbytes(5_000).hex()))
        refusal = await device.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "frame"
        assert "4096" in refusal.message


@pytest.mark.asyncio
async def test_duplicates_are_dropped_and_acknowledged_again(cloud: TunnelCloud, authority: TunnelAuthority) -> None:
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        assert await device.hello() == protocol.Welcome(0, cloud.limits.window, first_link("e"))
        device.say(upload(1), upload(2))
        while await device.hear() != protocol.Ack(2):
            pass
        device.say(upload(1), upload(2))
        assert await device.hear() == protocol.Ack(2)
        assert cloud.server.counts.duplicates == 2
        assert await cloud.ingest.count() == 2


@pytest.mark.asyncio
async def test_a_gap_hangs_up_and_what_came_before_it_is_kept(cloud: TunnelCloud, authority: TunnelAuthority) -> None:
    async with cloud:
        async with RawDevice.connect(authority, cloud.server.port) as device:
            await device.hello()
            device.say(upload(1), upload(2), upload(4))
            frames = [await device.hear()]
            while not isinstance(frames[-1], protocol.Refusal):
                frames.append(await device.hear())
            assert frames[-1].code == "gap"
            assert "received upload 4 where 3 was expected" in frames[-1].message
            assert frames[-1].retry_s >= 0
        await until(lambda: cloud.server.queued == 0)
        async with asyncio.timeout(10):
            while await cloud.ingest.acked("device-0", "e") < 2:
                pass
        async with RawDevice.connect(authority, cloud.server.port) as device:
            assert (await device.hello()).acked == 2


@pytest.mark.asyncio
async def test_a_bad_frame_hangs_up_on_that_device_alone(cloud: TunnelCloud, authority: TunnelAuthority) -> None:
    async with (
        cloud,
        RawDevice.connect(authority, cloud.server.port, 1) as bad,
        RawDevice.connect(authority, cloud.server.port, 2) as good,
    ):
        await bad.hello(1)
        await good.hello(2)
        bad.writer.write(b"\xff" * 100)
        refusal = await bad.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "frame"
        good.say(upload(1))
        assert await good.hear() == protocol.Ack(1)


@pytest.mark.asyncio
async def test_a_bad_frame_after_known_uploads_is_refused_at_once(
    cloud: TunnelCloud, authority: TunnelAuthority
) -> None:
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        await device.hello()
        device.writer.write(device.encoder.encode(upload(0)) + b"\0\0\0\1\x03\x02\0\0x")
        assert await device.hear() == protocol.Ack(0)
        refusal = await device.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert (refusal.code, "unknown bits" in refusal.message) == ("frame", True)


@pytest.mark.asyncio
async def test_a_new_connection_of_a_device_replaces_the_old_one(
    cloud: TunnelCloud, authority: TunnelAuthority
) -> None:
    async with (
        cloud,
        RawDevice.connect(authority, cloud.server.port) as older,
        RawDevice.connect(authority, cloud.server.port) as newer,
    ):
        await older.hello()
        older.say(upload(1))
        assert await older.hear() == protocol.Ack(1)
        assert (await newer.hello()).acked == 1
        refusal = await older.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "replaced"
        assert refusal.retry_s < 0
        assert await older.hear() is None
        newer.say(upload(2))
        assert await newer.hear() == protocol.Ack(2)
        await until(lambda: cloud.server.counts.open == 1)


@pytest.mark.asyncio
async def test_uploads_of_a_replaced_connection_may_become_durable_later(
    authority: TunnelAuthority, tmp_path: Path
) -> None:
    """The new connection is welcomed at 0 while 1..3 of the old one are queued; the acknowledgement jumps ahead."""
    async with (
        Ingest(tmp_path / "ingest.db") as ingest,
        TunnelServer(ssl_context=authority.server_context(), resume=ingest.resume, on_request=echo) as server,
        RawDevice.connect(authority, server.port) as older,
        RawDevice.connect(authority, server.port) as newer,
    ):
        await older.hello()
        older.say(upload(1), upload(2), upload(3))
        await until(lambda: server.queued == 3)
        assert (await newer.hello()).acked == 0
        newer.say(upload(1))
        await until(lambda: server.queued == 4)
        accepted = await ingest.accept(await server.arrived(10))
        assert accepted.highest == {("device-0", "e"): 3}
        await server.acknowledge("device-0", "e", 3)
        assert await newer.hear() == protocol.Ack(3)
        newer.say(upload(4))
        await until(lambda: server.queued == 1)
        accepted = await ingest.accept(await server.arrived(10))
        assert accepted.highest == {("device-0", "e"): 4}
        assert await ingest.count() == 4


@pytest.mark.asyncio
async def test_an_ack_that_comes_before_the_welcome_is_taken_over_counts() -> None:
    link = Link(ManualClock())
    link.data_received(Encoder().encode(protocol.Welcome(3, 8, 0)) + Encoder().encode(protocol.Ack(5)))
    link.accept(await link.welcome(), [])
    assert link.acked == 5


@pytest.mark.asyncio
async def test_a_cloud_that_lost_acknowledged_uploads_records_it_and_continues(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    outbox = MemoryOutbox()
    added = fill(outbox, 5)
    await outbox.forget(3)  # acknowledged once, by a cloud whose file is gone since
    async with cloud:
        client = make_client(outbox, cloud.server.port)
        async with running(client), asyncio.timeout(10):
            await client.drained()
            assert outbox.epoch == "epoch-1"
        assert await stored(cloud.ingest) == added[3:]
        (recorded,) = await cloud.ingest.losses("device-0")
        assert recorded.loss == Loss("epoch-1", 1, 3, LossCause.CLOUD_RESTORED)


@pytest.mark.asyncio
async def test_an_outbox_that_was_put_back_to_an_earlier_day_continues_with_new_numbers(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    outbox = MemoryOutbox()
    added = fill(outbox, 5)
    async with cloud, asyncio.timeout(20):
        client = make_client(outbox, cloud.server.port)
        async with running(client):
            await client.drained()
        restored = MemoryOutbox()  # the same epoch, from a backup: two known uploads, then one of its own
        for _, topic, payload in added[:2]:
            restored.add(topic, payload)
        restored.add("ipv", b"made after the restore")
        client = make_client(restored, cloud.server.port)
        async with running(client):
            await client.drained()
        assert restored.epoch == "epoch-1+"
        assert await stored(cloud.ingest) == [*added, (3, "ipv", b"made after the restore")]
        assert "other uploads than the outbox" in str(client.last_error)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "hello",
    [
        protocol.Hello("device-0", "e", "", acked=-1),
        protocol.Hello("device-0", "e", "", acked=2**62 + 1),
        protocol.Hello("device-0", "e", "", acked=1, acked_chain=-1),
        protocol.Hello("device-0", "e", "", origins="a:1"),
        protocol.Hello("device-0", "e", "", origins="a:1:1:-2"),
        protocol.Hello("device-0", "e", "", origins=f"a:1:1:{2**63}"),
        protocol.Hello("device-0", "e", "", origins=",".join(["a:1:1:1"] * 9)),
    ],
)
async def test_a_hello_with_impossible_numbers_is_refused(
    cloud: TunnelCloud, authority: TunnelAuthority, hello: protocol.Hello
) -> None:
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        device.say(hello)
        refusal = await device.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert (refusal.code, refusal.retry_s) == ("hello", -1.0)
        assert await cloud.ingest.losses() == []


@pytest.mark.asyncio
async def test_an_outage_of_the_lookup_is_waited_out(authority: TunnelAuthority, make_client: MakeClient) -> None:
    calls = 0

    async def resume(hello: protocol.Hello) -> ResumePoint:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("the database is away")
        return await nothing_acked(hello)

    class Hasty(ManualClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(min(seconds, 0.01))

    async with TunnelServer(ssl_context=authority.server_context(), resume=resume, on_request=echo) as server:
        client = make_client(MemoryOutbox(), server.port, clock=Hasty())
        async with running(client):
            await until(lambda: client.connected)
        assert isinstance(client.last_error, TunnelRefusedError)
        assert client.last_error.code == "unavailable"
        assert client.last_error.retry_s == 5.0


@pytest.mark.asyncio
async def test_a_lookup_that_never_ends_is_refused_after_a_while(
    authority: TunnelAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    is_cancelled = False

    async def never(_hello: protocol.Hello) -> ResumePoint:
        nonlocal is_cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_cancelled = True
            raise
        raise AssertionError

    clock = ManualClock()
    async with (
        bare_server(authority, resume=never, clock=clock, limits=ServerLimits(check_s=20.0)) as server,
        RawDevice.connect(authority, server.port) as device,
    ):
        device.say(protocol.Hello("device-0", "e", ""))
        await until(lambda: [connection.pauses for connection in server._connections] == [1])
        await clock.advance(19.0)
        assert server.counts.open == 1
        await clock.advance(3.0)
        refusal = await device.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert (refusal.code, refusal.retry_s) == ("unavailable", 5.0)
        await until(lambda: server.counts.open == 0 and is_cancelled)
        assert "not looked up within 20.0 s" in caplog.text
