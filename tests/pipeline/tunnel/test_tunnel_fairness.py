"""Overload of a tunnel server: light devices have their turn, and no device within its window is cut off."""

import asyncio
import collections
import contextlib
from pathlib import Path

import pytest

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.mass_reconnect import Reconnects
from tests.sim.tunnel_rig import RawDevice, bare_server, until, upload
from walle import protocol
from walle.base.clock import ManualClock
from walle.pipeline.tunnel.received import Received
from walle.pipeline.tunnel.server.server import ServerLimits, TunnelServer

_TURN_UPLOADS = 17  # 17 of 8 KiB are in 128 KiB, the last one begun


async def _take(server: TunnelServer, limit: int) -> list[Received]:
    """Take and acknowledge uploads, as the pump does."""
    taken = await server.arrived(limit)
    server.acknowledge_all({received[:2]: received.seq for received in taken})
    return taken


@pytest.mark.asyncio
async def test_a_light_device_waits_for_one_turn_of_each_heavy_one_though_the_queue_stays_full(
    authority: TunnelAuthority,
) -> None:
    async with (
        bare_server(authority, limits=ServerLimits(queue_uploads=400, window=100)) as server,
        contextlib.AsyncExitStack() as devices,
        asyncio.timeout(60),
    ):
        heavy = [await devices.enter_async_context(RawDevice.connect(authority, server.port, n)) for n in range(8)]
        light = await devices.enter_async_context(RawDevice.connect(authority, server.port, 8))
        for number, device in enumerate([*heavy, light]):
            await device.hello(number)
        sent = collections.Counter[str]()
        for number, device in enumerate(heavy):  # 800 uploads for a queue of 400
            device.say(*(upload(seq, 8192) for seq in range(1, 101)))
            sent[f"device-{number}"] = 100
        await until(lambda: server.held_back == 8)
        for seq in range(1, 6):
            server.queue.release()  # the light device's former upload
            light.say(upload(seq))
            await until(lambda: server._by_device["device-8"].upload_bytes > 0)
            taken_before = 0
            while True:
                taken = await _take(server, 10)
                for received in taken:  # each acknowledged one is followed by the next: windows stay full
                    if received.device_id != "device-8":
                        sent[received.device_id] += 1
                        heavy[int(received.device_id[7:])].say(upload(sent[received.device_id], 8192))
                if any(received.device_id == "device-8" for received in taken):
                    break
                taken_before += len(taken)
            assert taken_before <= 8 * _TURN_UPLOADS
        assert server.counts.refusals == {}


@pytest.mark.asyncio
async def test_no_device_within_its_window_is_cut_off_and_memory_is_bounded(authority: TunnelAuthority) -> None:
    limits = ServerLimits(memory_bytes=24 << 20)  # 9 MiB for bytes that are not processed
    uploads = [upload(1, 500 << 10), *(upload(seq, 16 << 10) for seq in range(2, 33))]  # 1 MB, the window
    async with (
        bare_server(authority, limits=limits) as server,
        contextlib.AsyncExitStack() as devices,
        asyncio.timeout(120),
    ):
        raw = [await devices.enter_async_context(RawDevice.connect(authority, server.port, n)) for n in range(40)]
        for number, device in enumerate(raw):
            await device.hello(number)
        for device in raw:  # 40 MB for 24 MiB
            device.say(*uploads)
        await until(lambda: server.credit.waiting > 0 and server.held_back > 0)
        stored = collections.Counter[str]()
        most = 0
        while stored.total() < 40 * 32:
            for received in await _take(server, 50):
                stored[received.device_id] += 1
                assert received.seq == stored[received.device_id]
            most = max(most, server.budget.held_bytes)
        assert most <= 24 << 20
        assert server.counts.refusals == {}
        for device in raw:
            while await device.hear() != protocol.Ack(32):
                pass
        server.queue.release()
        assert server.budget.held_bytes == server.credit.held_bytes == 0


@pytest.mark.asyncio
async def test_a_device_that_does_not_end_its_frame_is_cut_off_only_while_others_wait(
    authority: TunnelAuthority,
) -> None:
    clock = ManualClock()
    limits = ServerLimits(memory_bytes=24 << 20, frame_s=10.0, idle_s=1e9)  # 9 MiB for unprocessed bytes
    frame = bytes([0, 16, 0, 0, 3, 0, 0, 0]) + bytes(512 << 10)  # an upload of 1 MiB, of which half comes
    async with (
        bare_server(authority, limits=limits, clock=clock) as server,
        contextlib.AsyncExitStack() as devices,
        asyncio.timeout(60),
    ):
        stalling = [await devices.enter_async_context(RawDevice.connect(authority, server.port, n)) for n in range(24)]
        honest = await devices.enter_async_context(RawDevice.connect(authority, server.port, 24))
        for number, device in enumerate([*stalling, honest]):
            await device.hello(number)
        for device in stalling[
            :12
        ]:  # more than half of the memory, and less than the three quarters that stop everyone
            device.writer.write(frame)
        await until(lambda: server.credit.held_bytes > server.budget.buffered_share // 2)
        honest.say(upload(1))  # read without delay: it takes no memory
        assert [received.device_id for received in await _take(server, 10)] == ["device-24"]
        assert await honest.hear() == protocol.Ack(1)
        assert server.counts.refusals == {}
        for device in stalling[12:]:  # all together more than the memory
            device.writer.write(frame)
        await until(lambda: server.credit.waiting > 0)
        while not server.counts.refusals:
            await clock.advance(1.0)
            await asyncio.sleep(0.001)
        honest.say(upload(2))
        taking = asyncio.create_task(_take(server, 10))
        while not taking.done():
            await clock.advance(1.0)
            await asyncio.sleep(0.001)
        assert [received.seq for received in taking.result()] == [2]
        assert server.counts.refusals.keys() == {"memory"}


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_fleet_that_comes_back_at_once_stores_everything_once(
    authority: TunnelAuthority, tmp_path: Path
) -> None:
    found = await Reconnects(authority, tmp_path / "uploads.db", devices=150, uploads=64).run()
    assert found.stored == 150 * 64
    assert found.acknowledged == 150
    assert found.refusals == {"closing": 150}  # refusals of the outage; none afterwards
