"""Pings behind the last frame of a flight: when they are sent, how many, and when none is."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import MakeClient, RawDevice, nothing_acked, running, until
from tests.sim.tunnel_wire import TunnelWire
from walle import protocol
from walle.base.clock import ManualClock
from walle.pipeline.tunnel import sockets
from walle.pipeline.tunnel.server.server import TunnelServer
from walle.pipeline.tunnel.tail_probe import answer_probe_delay_s

_TRIP_S = 0.1


def pings(wire: TunnelWire) -> int:
    heard = wire.hear()
    assert all(isinstance(frame, protocol.Ping) for frame in heard)
    return len(heard)


@pytest.mark.asyncio
async def test_a_lone_upload_is_followed_by_a_ping_and_by_another_if_its_acknowledgement_is_late() -> None:
    async with TunnelWire.open(_TRIP_S) as wire:
        wire.upload(1)
        wire.hear()
        await wire.clock.advance(_TRIP_S / 8)  # TCP does not take a packet for lost before that
        assert pings(wire) == 0
        await wire.clock.advance(_TRIP_S / 8)
        assert pings(wire) == wire.link.tail.count == 1
        await wire.clock.advance(_TRIP_S)
        assert pings(wire) == 0
        await wire.clock.advance(_TRIP_S)
        assert pings(wire) == 1
        await wire.clock.advance(1000.0)  # the acknowledgement does not come
        assert pings(wire) == 0
        wire.upload(2)
        wire.hear()
        await wire.clock.advance(_TRIP_S / 4)
        assert pings(wire) == 1
        await wire.clock.advance(_TRIP_S / 4)
        wire.upload(3)  # the second probe of the upload before is due
        wire.hear()
        await wire.clock.advance(_TRIP_S / 4)
        assert pings(wire) == 1


@pytest.mark.asyncio
async def test_an_upload_that_is_acknowledged_gets_no_ping() -> None:
    async with TunnelWire.open(_TRIP_S) as wire:
        wire.upload(1)
        wire.upload(2)
        wire.hear()
        await wire.clock.advance(0.015)
        wire.say(protocol.Ack(1))
        wire.say(protocol.Ack(2))
        await wire.clock.advance(10.0)
        assert pings(wire) == 0
        wire.upload(3)
        wire.upload(4)
        wire.hear()
        await wire.clock.advance(0.015)
        wire.say(protocol.Ack(3))
        await wire.clock.advance(10.0)
        assert pings(wire) == 2


@pytest.mark.asyncio
async def test_no_ping_comes_between_frames_that_follow_each_other() -> None:
    async with TunnelWire.open(_TRIP_S) as wire:
        for seq in range(1, 101):
            wire.upload(seq)
            await wire.clock.advance(_TRIP_S / 10)
        assert [type(frame) for frame in wire.hear()] == [protocol.Upload] * 100
        await wire.clock.advance(10.0)
        assert pings(wire) == 2


@pytest.mark.asyncio
async def test_a_request_without_an_answer_is_followed_by_a_ping() -> None:
    async with TunnelWire.open(_TRIP_S) as wire:
        for request_id, is_answered in enumerate([False, True], 1):
            asking = asyncio.create_task(
                wire.link.ask(
                    protocol.Request(request_id, "rank", b"q"), wire.encoder.encode, wire.clock.monotonic() + 60
                )
            )
            await wire.clock.advance(0.001)
            (request,) = wire.hear()
            assert isinstance(request, protocol.Request)
            if is_answered:
                wire.say(protocol.Response(request_id, b"a"))
            await wire.clock.advance(10.0)
            assert pings(wire) == (0 if is_answered else 2)
            wire.say(protocol.Response(request_id, b"a"))
            assert (await asking).payload == b"a"


@pytest.mark.asyncio
async def test_a_cancelled_request_gets_no_ping() -> None:
    async with TunnelWire.open(_TRIP_S) as wire:
        request = protocol.Request(1, "rank", b"q")
        asking = asyncio.create_task(wire.link.ask(request, wire.encoder.encode, wire.clock.monotonic() + 60))
        await wire.clock.advance(0.001)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert [type(frame) for frame in wire.hear()] == [protocol.Request, protocol.Cancel]
        await wire.clock.advance(10.0)
        assert pings(wire) == 0


@pytest.mark.asyncio
async def test_a_slow_welcome_does_not_hold_up_probes() -> None:
    async with TunnelWire.open(8.0) as wire:
        wire.upload(1)
        wire.hear()
        await wire.clock.advance(0.3)
        assert pings(wire) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("round_trip_s", [None, 0.0001, 0.009])
async def test_a_link_whose_round_trip_is_short_or_unknown_gets_no_ping(round_trip_s: float | None) -> None:
    async with TunnelWire.open(round_trip_s) as wire:
        wire.upload(1)
        wire.hear()
        await wire.clock.advance(1.0)
        assert pings(wire) == 0


@pytest.mark.asyncio
async def test_the_round_trip_is_learnt_from_acknowledgements_and_pongs() -> None:
    async with TunnelWire.open(None) as wire:
        wire.upload(1)
        await wire.clock.advance(0.3)
        wire.say(protocol.Ack(1))
        assert wire.link.round_trip.least_s == pytest.approx(0.3)
        wire.upload(2)
        wire.hear()
        while not (heard := wire.hear()):
            await wire.clock.advance(0.001)
        (ping,) = heard
        assert isinstance(ping, protocol.Ping)
        await wire.clock.advance(0.05)
        wire.say(protocol.Pong(ping.token + 1))  # another probe's token
        assert wire.link.round_trip.least_s == pytest.approx(0.3)
        wire.say(protocol.Pong(ping.token))
        assert wire.link.round_trip.least_s == pytest.approx(0.05, abs=0.001)


@pytest.mark.asyncio
async def test_a_ping_waits_until_the_kernel_has_sent_the_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    unsent = 5000
    monkeypatch.setattr(sockets, "unsent_bytes", lambda _: unsent)
    async with TunnelWire.open(_TRIP_S) as wire:
        wire.upload(1)
        wire.hear()
        await wire.clock.advance(_TRIP_S)
        assert pings(wire) == 0
        unsent = 0
        await wire.clock.advance(_TRIP_S / 2)
        assert pings(wire) == 1
        unsent = 5000
        looks = 0

        def look(_: object) -> int:
            nonlocal looks
            looks += 1
            return unsent

        monkeypatch.setattr(sockets, "unsent_bytes", look)
        wire.upload(2)
        wire.hear()
        await wire.clock.advance(60.0)  # the link is dead
        assert pings(wire) == 0
        assert looks < 300


@pytest.mark.asyncio
async def test_a_device_that_leaves_sends_no_ping() -> None:
    async with TunnelWire.open(_TRIP_S) as wire:
        wire.upload(1)
        wire.hear()
        wire.link.leave()
        await wire.clock.advance(10.0)
        assert pings(wire) == 0


@pytest.mark.asyncio
async def test_the_ping_comes_later_where_the_cloud_takes_longer_to_store_an_upload() -> None:
    async def delay_s(seq: int, stored_s: float) -> float:
        """Upload, answer Ping and upload after a round trip, and return when the Ping came."""
        began_s = wire.clock.monotonic()
        wire.upload(seq)
        wire.hear()
        while not (heard := wire.hear()):
            await wire.clock.advance(0.001)
        (ping,) = heard
        assert isinstance(ping, protocol.Ping)
        after_s = wire.clock.monotonic() - began_s
        answers: dict[float, protocol.Frame] = {
            _TRIP_S + after_s: protocol.Pong(ping.token),
            _TRIP_S + stored_s: protocol.Ack(seq),
        }
        for at_s, frame in sorted(answers.items()):
            await wire.clock.advance(began_s + at_s - wire.clock.monotonic())
            wire.say(frame)
        return after_s

    async with TunnelWire.open(_TRIP_S) as wire:
        quick = [await delay_s(seq, 0.005) for seq in range(1, 11)]
        assert quick == pytest.approx([0.02] * 10, abs=0.002)
        slow = [await delay_s(seq, 0.04) for seq in range(11, 31)]
        assert 0.038 < slow[-1] < 0.05
        stuck = [await delay_s(seq, 0.5) for seq in range(31, 51)]
        assert stuck[-1] <= _TRIP_S / 2 + 0.002
        again = [await delay_s(seq, 0.005) for seq in range(51, 151)]
        assert again[-1] == pytest.approx(0.02, abs=0.002)


@pytest.mark.asyncio
async def test_a_client_counts_its_probes_and_sends_none_over_loopback(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    answer = asyncio.Event()

    async def on_request(_device_id: str, topic: str, _payload: bytes) -> bytes:
        if topic == "far":
            await answer.wait()
        return b""

    cloud.on_request = on_request
    async with cloud:
        client = make_client(MemoryOutbox(), cloud.server.port)
        async with running(client), asyncio.timeout(20):
            await until(lambda: client.connected)
            assert client._link is not None
            client._link.round_trip.least_s = 0.001  # a busy machine may take longer for the Welcome
            await client.send("t", b"")
            await client.drained()
            await client.request("near", b"")
            assert client.probes == 0
            client._link.round_trip.least_s = 0.05
            asking = asyncio.create_task(client.request("far", b""))
            await until(lambda: client.probes >= 1)
            answer.set()
            await asking
        assert client.probes >= 1


class SlowHandler:
    """A handler whose answers come when the test opens the gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def __call__(self, _device_id: str, topic: str, _payload: bytes) -> bytes:
        if topic != "quick":
            await self.gate.wait()
        return topic.encode()


@contextlib.asynccontextmanager
async def connected(authority: TunnelAuthority, clock: ManualClock, handler: SlowHandler) -> AsyncIterator[RawDevice]:
    async with (
        TunnelServer(
            ssl_context=authority.server_context(),
            resume=nothing_acked,
            on_request=handler,
            clock=clock,
        ) as server,
        RawDevice.connect(authority, server.port) as device,
    ):
        await device.hello()
        yield device


async def later_frames(device: RawDevice, clock: ManualClock, seconds: float) -> list[protocol.Frame]:
    """Advance the clock, and return what the cloud wrote in that time."""
    await clock.advance(seconds)
    device.say(protocol.Ping(99))
    heard = []
    while (frame := await device.hear()) != protocol.Pong(99):
        assert frame is not None
        heard.append(frame)
    return heard


@pytest.mark.asyncio
async def test_the_answer_of_a_slow_handler_is_followed_by_a_pong_without_a_ping(
    authority: TunnelAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, handler = ManualClock(), SlowHandler()
    monkeypatch.setattr(sockets, "least_round_trip_s", lambda _: _TRIP_S)
    async with connected(authority, clock, handler) as device:
        device.say(protocol.Request(1, "slow", b""), protocol.Ping(7))
        assert await device.hear() == protocol.Pong(7)
        handler.gate.set()
        assert await device.hear() == protocol.Response(1, b"slow")
        assert await later_frames(device, clock, _TRIP_S / 5) == []  # RACK would take an earlier one for lost
        assert await later_frames(device, clock, 10.0) == []  # the Pong that ended the line before has followed
        handler.gate.clear()
        device.say(protocol.Request(2, "slow", b""), protocol.Ping(8))
        assert await device.hear() == protocol.Pong(8)
        handler.gate.set()
        assert await device.hear() == protocol.Response(2, b"slow")
        assert await later_frames(device, clock, _TRIP_S / 3) == [protocol.Pong(0)]
        assert await later_frames(device, clock, 20.0) == []


@pytest.mark.asyncio
async def test_an_answer_followed_by_other_frames_gets_no_separate_pong(authority: TunnelAuthority) -> None:
    clock, handler = ManualClock(), SlowHandler()
    async with connected(authority, clock, handler) as device:
        device.say(protocol.Request(1, "quick", b""))
        assert await device.hear() == protocol.Response(1, b"quick")
        assert await later_frames(device, clock, 10.0) == []
        device.say(protocol.Request(2, "slow", b""), protocol.Request(3, "late", b""), protocol.Ping(7))
        assert await device.hear() == protocol.Pong(7)
        handler.gate.set()
        assert await device.hear() == protocol.Response(2, b"slow")
        assert await device.hear() == protocol.Response(3, b"late")
        assert await later_frames(device, clock, 10.0) == [protocol.Pong(0)]  # one for both


@pytest.mark.asyncio
async def test_the_cloud_s_pong_waits_until_the_kernel_has_sent_the_answer(
    authority: TunnelAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, handler = ManualClock(), SlowHandler()
    unsent, looks = 5000, 0

    def look(_: object) -> int:
        nonlocal looks
        looks += 1
        return unsent

    monkeypatch.setattr(sockets, "unsent_bytes", look)
    async with connected(authority, clock, handler) as device:
        device.say(protocol.Request(1, "slow", b""), protocol.Ping(7))
        assert await device.hear() == protocol.Pong(7)
        handler.gate.set()
        assert await device.hear() == protocol.Response(1, b"slow")
        await clock.advance(60.0)  # the device does not take it
        assert 10 < looks < 100
        unsent = 0
        assert await later_frames(device, clock, 1.0) == [protocol.Pong(0)]


def test_the_pong_behind_an_answer_comes_after_a_quarter_of_the_round_trip() -> None:
    assert answer_probe_delay_s(None) == answer_probe_delay_s(0.001) == 0.01
    assert answer_probe_delay_s(0.1) == 0.025
    assert answer_probe_delay_s(60.0) == 0.25
