"""Times of attempts to connect: backoff, attempts brought forward by waiting work, and their rate."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_rig import MakeClient, running, until
from walle.base.clock import ManualClock
from walle.pipeline.tunnel.client.client import RequestError, TunnelClient
from walle.pipeline.tunnel.client.reconnects import IDLE_S, Reconnects


class _SetClock(ManualClock):
    """A clock that is set, without sleepers."""

    def pass_s(self, seconds: float) -> None:
        self._now_s += seconds


def reconnects_of(seed: int) -> tuple[_SetClock, Reconnects]:
    clock = _SetClock(0.0)
    return clock, Reconnects(clock, random.Random(seed), backoff_s=0.5, backoff_max_s=60.0)


def outage(seed: int, seconds: float, *, request_s: float | None) -> list[float]:
    """Return the times of a device's failed attempts in an outage, with a request each `request_s` seconds."""
    clock, reconnects = reconnects_of(seed)
    attempts: list[float] = []
    failures, next_s = 0, request_s
    while clock.monotonic() < seconds:
        failures += 1
        reconnects.begin(failures, 0.0)
        while next_s is not None and clock.monotonic() + reconnects.left_s > next_s:
            clock.pass_s(max(0.0, next_s - clock.monotonic()))
            reconnects.hurry()
            assert request_s is not None
            next_s += request_s
        clock.pass_s(reconnects.left_s)
        attempts.append(clock.monotonic())
    return attempts


@pytest.mark.parametrize("away_s", [4, 12, 60, 300])
def test_a_cloud_that_is_back_is_found_soon_by_a_device_with_requests(away_s: int) -> None:
    def found_late(request_s: float | None) -> list[float]:
        runs = [outage(seed, away_s, request_s=request_s) for seed in range(200)]
        return sorted(attempts[-1] - away_s for attempts in runs)

    late, alone = found_late(1.0), found_late(None)
    assert late[-1] <= max(1.0, away_s / 7) + 1.0  # the time until the next request, which hurries, adds to it
    assert late[100] <= max(0.7, away_s / 12)
    if away_s in (12, 60):  # the backoff of a minute is soon enough after longer ones
        assert alone[100] > 2 * late[100]


def test_the_attempts_of_a_device_with_requests_grow_with_the_logarithm_of_the_outage() -> None:
    for seed in range(20):
        attempts = outage(seed, 600.0, request_s=1.0)
        per_minute = [sum(60 * minute <= at < 60 * (minute + 1) for at in attempts) for minute in range(10)]
        assert per_minute[0] <= 50
        assert max(per_minute[5:]) <= 10
        assert len(attempts) <= 100


def test_devices_that_get_work_at_one_moment_are_spread() -> None:
    """As after a notification that is sent to all, in the middle of a long outage."""
    dues = []
    for seed in range(1000):
        clock, reconnects = reconnects_of(seed)
        for failures in range(1, 10):
            reconnects.begin(failures, 0.0)
            clock.pass_s(reconnects.left_s)
        reconnects.begin(10, 0.0)
        clock.pass_s(min(5.0, reconnects.left_s / 2))
        reconnects.hurry()
        assert reconnects.left_s <= 1.0
        dues.append(reconnects.left_s)
    assert max(sum(low <= due < low + 0.05 for due in dues) for low in (0.0, 0.05, 0.1, 0.15, 0.2)) < 300


def test_the_time_that_the_cloud_asked_for_is_kept() -> None:
    clock, reconnects = reconnects_of(1)
    reconnects.begin(1, 20.0)
    reconnects.hurry()
    assert 20.0 <= reconnects.left_s <= 21.0
    with reconnects.waiting():
        clock.pass_s(reconnects.left_s)
        reconnects.begin(2, 20.0)
        assert reconnects.was_hurried.is_set()
        assert 20.0 <= reconnects.left_s <= 24.0
    reconnects.begin(3, 20.0)
    assert not reconnects.was_hurried.is_set()


def test_an_attempt_is_never_put_off_by_work() -> None:
    for seed in range(100):
        clock, reconnects = reconnects_of(seed)
        for failures in range(1, 12):
            reconnects.begin(failures, 0.0)
            left_s = reconnects.left_s
            reconnects.hurry()
            assert reconnects.left_s <= left_s
            clock.pass_s(reconnects.left_s)


def test_uploads_hurry_after_a_long_time_without_one() -> None:
    clock, reconnects = reconnects_of(2)

    def hurried_by(last_seq: int) -> bool:
        reconnects.begin(9, 0.0)
        reconnects.note_uploads(last_seq)
        return reconnects.was_hurried.is_set()

    assert not hurried_by(7)  # made before
    assert hurried_by(8)
    for seq in range(9, 60):  # one each second
        clock.pass_s(1.0)
        assert not hurried_by(seq)
    clock.pass_s(IDLE_S + 1)
    assert not hurried_by(59)
    assert hurried_by(60)


class _Refusing:
    """A port that closes each connection, and counts them."""

    def __init__(self) -> None:
        self.count = 0
        self.port = 0

    async def on_connection(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        writer.close()


@pytest_asyncio.fixture
async def refusing() -> AsyncIterator[_Refusing]:
    refuser = _Refusing()
    server = await asyncio.start_server(refuser.on_connection, "127.0.0.1", 0)
    refuser.port = server.sockets[0].getsockname()[1]
    async with server:
        yield refuser


async def in_long_pause(client: TunnelClient, clock: ManualClock, refusing: _Refusing) -> None:
    """Return in a pause of more than ten seconds after many failed attempts."""
    await until(lambda: refusing.count > 0)
    while client._reconnects.left_s < 10.0 or refusing.count < 8:
        before = refusing.count
        await until(lambda: client._reconnects.left_s > 0)
        await clock.advance(client._reconnects.left_s)
        await until(lambda before=before: refusing.count > before)  # type: ignore[misc]
        await until(lambda: client._reconnects.left_s > 0)
    await clock.advance(0)


@pytest.mark.asyncio
async def test_a_request_or_a_late_upload_brings_the_next_attempt_forward(
    make_client: MakeClient, refusing: _Refusing
) -> None:
    clock, outbox = ManualClock(), MemoryOutbox()
    client = make_client(outbox, refusing.port, clock=clock, backoff_s=0.5, backoff_max_s=60.0)
    async with running(client):
        for work in ("request", "upload"):
            await in_long_pause(client, clock, refusing)
            before = refusing.count
            await clock.advance(1.0)
            assert refusing.count == before
            if work == "request":
                with pytest.raises(RequestError, match="no connection within"):
                    await client.request("ask", b"", connect_timeout=0.01)
            else:
                await clock.advance(min(5.0, client._reconnects.left_s / 2))
                outbox.add("ipv", b"")
            await until(client._reconnects.was_hurried.is_set)
            assert client._reconnects.left_s <= 1.0
            await clock.advance(1.0)
            await until(lambda before=before: refusing.count > before)  # type: ignore[misc]
