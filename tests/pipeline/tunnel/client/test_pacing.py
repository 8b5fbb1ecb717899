"""Bound on bytes in flight, which follows a simulated link's delay, and uploads beside requests."""

import asyncio
import collections
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import MakeClient, running
from tests.sim.tunnel_wire import TunnelWire
from walle import protocol
from walle.pipeline.tunnel import sockets
from walle.pipeline.tunnel.client.client import TunnelClient
from walle.pipeline.tunnel.client.pacing import InFlightBound


def _send(
    bound: InFlightBound,
    *,
    bytes_per_s: float,
    delay_s: float,
    seconds: float,
    start_s: float = 0.0,
    lost: int = 0,
    has_requests: bool = True,
) -> list[float]:
    """Keep the link as full as the bound allows; return how long each piece waited in the link's buffer.

    Each `lost`-th piece arrives one delay later, and so do those behind it.
    """
    piece = 10_000
    now_s, free_s, arrives_s, in_flight, count = start_s, 0.0, 0.0, 0, 0
    answers: collections.deque[tuple[float, float]] = collections.deque()  # (when, sent)
    waits = []
    while now_s < start_s + seconds:
        while in_flight < bound.limit_bytes:
            count += 1
            waits.append(max(0.0, free_s - now_s))
            free_s = max(free_s, now_s) + piece / bytes_per_s
            late_s = delay_s if lost and count % lost == 0 else 0.0
            arrives_s = max(arrives_s, free_s + delay_s + late_s)
            answers.append((arrives_s, now_s))
            in_flight += piece
        now_s, sent_s = answers.popleft()
        in_flight -= piece
        if has_requests:
            bound.note_request(now_s)
        bound.acknowledged(piece, now_s - sent_s, now_s)
    return waits


def test_the_buffer_on_the_way_stays_short_and_the_link_full() -> None:
    bound = InFlightBound(1 << 20)
    waits = _send(bound, bytes_per_s=1.25e6, delay_s=0.1, seconds=30)
    settled = waits[len(waits) // 2 :]
    assert max(settled) < 0.04
    assert sum(settled) / len(settled) < 0.025
    assert len(waits) * 10_000 > 0.9 * 30 * 1.25e6


def test_the_first_bytes_do_not_fill_the_buffer_on_the_way() -> None:
    waits = _send(InFlightBound(1 << 20), bytes_per_s=1.25e6, delay_s=0.1, seconds=3)
    assert max(waits) < 0.1  # 128 KiB wait for 105 ms


def test_a_fast_link_gets_the_whole_credit() -> None:
    bound = InFlightBound(1 << 20)
    _send(bound, bytes_per_s=1e9, delay_s=0.02, seconds=3)
    assert bound.limit_bytes == 1 << 20


def test_losses_lower_the_bound_while_there_are_requests_only() -> None:
    sent = {}
    for has_requests in (True, False):
        bound = InFlightBound(1 << 20)
        waits = _send(bound, bytes_per_s=1.25e6, delay_s=0.1, seconds=30, lost=20, has_requests=has_requests)
        sent[has_requests] = len(waits) * 10_000 / (30 * 1.25e6)
    assert 0.1 < sent[True] < 0.3  # each loss delays a request behind it by a round trip
    assert sent[False] > 0.9


def test_a_request_makes_room_within_a_few_round_trips() -> None:
    bound = InFlightBound(1 << 20)
    waits = _send(bound, bytes_per_s=1.25e6, delay_s=0.1, seconds=20, has_requests=False)
    assert max(waits[len(waits) // 2 :]) < 0.35
    waits = _send(bound, bytes_per_s=1.25e6, delay_s=0.1, seconds=5, start_s=20.0)
    assert max(waits[-50:]) < 0.1


def test_the_bound_stays_within_its_limits() -> None:
    bound = InFlightBound(40 << 10)
    assert bound.limit_bytes == 40 << 10
    for step in range(1, 200):
        bound.acknowledged(10_000, 0.01 if step < 5 else 5.0, step * 0.2)
    assert bound.limit_bytes == 16 << 10
    for step in range(200, 400):
        bound.acknowledged(10_000, 5.0, step * 6.0)  # a minute later, the delay is the link's own
    assert bound.limit_bytes == 40 << 10


def upload(wire: TunnelWire, seq: int) -> asyncio.Task[None]:
    async def write() -> None:
        await wire.link.writable_for_uploads()
        wire.upload(seq)

    return asyncio.create_task(write())


@pytest.mark.asyncio
async def test_uploads_wait_for_the_kernel_while_requests_are_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    unsent = 1000
    monkeypatch.setattr(sockets, "unsent_bytes", lambda _: unsent)
    async with TunnelWire.open(None) as wire:
        await upload(wire, 1)  # no request was made
        assert len(wire.hear()) == 1
        asking = asyncio.create_task(
            wire.link.ask(protocol.Request(1, "rank", b""), wire.encoder.encode, wire.clock.monotonic() + 60)
        )
        await wire.clock.advance(0.0)
        wire.hear()  # the request itself does not wait
        wire.say(protocol.Response(1, b""))
        await asking
        waiting = upload(wire, 2)
        await wire.clock.advance(5.0)
        assert wire.hear() == []
        unsent = 0
        await wire.clock.advance(0.01)
        assert [type(frame) for frame in wire.hear()] == [protocol.Upload]
        unsent = 1000
        waiting = upload(wire, 3)
        await wire.clock.advance(10.0)  # requests are not likely any more
        await waiting
        assert len(wire.hear()) == 1


@pytest.mark.asyncio
async def test_uploads_share_shorter_frames_while_requests_are_likely(
    cloud: TunnelCloud, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[int] = []
    frames_of = TunnelClient._frames

    def record(*arguments: Any) -> Iterator[list[protocol.Upload]]:
        for group in frames_of(*arguments):
            frames.append(sum(len(one.payload) for one in group))
            yield group

    monkeypatch.setattr(TunnelClient, "_frames", record)
    outbox = MemoryOutbox()
    async with cloud:
        client = make_client(outbox, cloud.server.port)
        async with running(client), asyncio.timeout(20):
            for most_bytes in (32 << 10, 8 << 10):
                frames.clear()
                for _ in range(60):
                    outbox.add("t", bytes(1000))
                await client.drained()
                assert most_bytes / 2 < max(frames) <= most_bytes
                await client.request("ask", b"")


def test_the_kernel_reports_its_unsent_bytes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as sender:
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        with receiver:
            assert sockets.unsent_bytes(sender) == 0
            sender.setblocking(False)
            sent = sender.send(bytes(8 << 20))  # more than the receiver's buffer takes
            assert 0 < sockets.unsent_bytes(sender) <= sent
    assert sockets.unsent_bytes(sender) == 0  # closed
    assert sockets.unsent_bytes(None) == 0
