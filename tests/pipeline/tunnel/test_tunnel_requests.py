"""Requests of the tunnel: priorities, deadlines on both sides, cancellation."""

import asyncio
import dataclasses
import time

import pytest

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import GatedHandler, MakeClient, RawDevice, bare_server, running, until
from walle import protocol
from walle.base.clock import ManualClock
from walle.pipeline.tunnel.client.client import RequestError
from walle.pipeline.tunnel.server.deadline import request_due_s
from walle.pipeline.tunnel.server.handlers import RequestBusyError, RequestRefusedError
from walle.pipeline.tunnel.server.refusal_pace import BURST, PER_S, RefusalPace
from walle.pipeline.tunnel.server.server import ServerLimits


@pytest.mark.asyncio
async def test_requests_that_wait_in_the_cloud_start_by_priority(
    cloud: TunnelCloud, authority: TunnelAuthority
) -> None:
    handler = cloud.on_request = GatedHandler()
    cloud.limits = dataclasses.replace(cloud.limits, handlers=1)
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        await device.hello()
        order = [("first", 0), ("low", -5), ("middle-1", 0), ("high", 50), ("middle-2", 0)]
        device.say(*(protocol.Request(n, topic, b"", priority) for n, (topic, priority) in enumerate(order)))
        await until(lambda: cloud.server.counts.requests == 5)
        assert handler.started == ["first"]
        handler.gate.set()
        answers = [await device.hear() for _ in order]
        assert answers == [protocol.Response(n, b"done") for n in (0, 3, 2, 4, 1)]
        assert handler.started == ["first", "high", "middle-1", "middle-2", "low"]


@pytest.mark.asyncio
async def test_the_cloud_does_not_start_an_expired_request_and_stops_one_that_expires(
    authority: TunnelAuthority,
) -> None:
    clock, handler = ManualClock(), GatedHandler()
    async with (
        bare_server(authority, on_request=handler, clock=clock, limits=ServerLimits(handlers=1)) as server,
        RawDevice.connect(authority, server.port) as device,
    ):
        await device.hello()
        device.say(
            protocol.Request(1, "runs", b"", deadline_ms=2_000),
            protocol.Request(2, "waits", b"", deadline_ms=1_000),
            protocol.Request(3, "patient", b""),
        )
        await until(lambda: server.counts.requests == 3)
        await clock.advance(1.5)
        answer = await device.hear()
        assert isinstance(answer, protocol.Response)
        assert (answer.request_id, answer.code) == (2, "expired")
        assert handler.started == ["runs"]
        await clock.advance(1.0)
        answer = await device.hear()
        assert isinstance(answer, protocol.Response)
        assert (answer.request_id, answer.code) == (1, "expired")
        assert handler.stopped == ["runs"]
        handler.gate.set()
        assert await device.hear() == protocol.Response(3, b"done")
        assert handler.started == ["runs", "patient"]
        assert server.counts.expired_requests == 2
        assert server.budget.requests == 0


@pytest.mark.asyncio
async def test_a_cancelled_request_stops_in_the_cloud(cloud: TunnelCloud, make_client: MakeClient) -> None:
    handler = cloud.on_request = GatedHandler()
    async with cloud:
        client = make_client(MemoryOutbox(), cloud.server.port)
        async with running(client), asyncio.timeout(10):
            asking = asyncio.create_task(client.request("ask", b"x" * 1000))
            await until(lambda: handler.started == ["ask"])
            asking.cancel()
            await until(lambda: handler.stopped == ["ask"])
            with pytest.raises(RequestError, match=r"no answer within|deadline passed") as raised:
                await client.request("late", b"", timeout=0.2)
            assert raised.value.code == "expired"
            await until(lambda: handler.stopped == ["ask", "late"])
            handler.gate.set()
            assert await client.request("ask", b"") == b"done"
            assert client.connections == 1
        assert cloud.server.counts.cancelled_requests + cloud.server.counts.expired_requests == 2
        assert cloud.server.budget.requests == 0


@pytest.mark.asyncio
async def test_a_cancel_of_an_unknown_request_changes_nothing(cloud: TunnelCloud, authority: TunnelAuthority) -> None:
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        await device.hello()
        device.say(protocol.Cancel(5), protocol.Ping(1))
        assert await device.hear() == protocol.Pong(1)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "request_",
    [
        protocol.Request(1, "ask", b"", priority=101),
        protocol.Request(1, "ask", b"", deadline_ms=-1),
        protocol.Request(1, "ask", b"", deadline_ms=protocol.MAX_DEADLINE_MS + 1),
    ],
)
async def test_impossible_numbers_in_a_request_are_refused(
    cloud: TunnelCloud, authority: TunnelAuthority, request_: protocol.Request
) -> None:
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        await device.hello()
        device.say(request_)
        refusal = await device.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert (refusal.code, "Request." in refusal.message) == ("frame", True)


@pytest.mark.asyncio
async def test_the_id_of_an_unanswered_request_is_refused_for_another(
    cloud: TunnelCloud, authority: TunnelAuthority
) -> None:
    cloud.on_request = GatedHandler()
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        await device.hello()
        device.say(protocol.Request(1, "ask", b""), protocol.Request(1, "ask", b""))
        refusal = await device.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert "id of a request that is not answered" in refusal.message


@pytest.mark.asyncio
@pytest.mark.parametrize("topic", ["t" * (9 << 20), "\ud800"])
async def test_a_request_that_fits_no_frame_is_refused_and_leaves_nothing(
    cloud: TunnelCloud, make_client: MakeClient, topic: str
) -> None:
    async with cloud:
        client = make_client(MemoryOutbox(), cloud.server.port)
        async with running(client), asyncio.timeout(10):
            with pytest.raises(RequestError, match="cannot be sent") as raised:
                await client.request(topic, b"")
            assert len(str(raised.value)) < 1000
            assert client._link is not None
            assert client._link.is_idle
            assert await client.request("ask", b"") == b"device-0 ask "


@pytest.mark.asyncio
async def test_slow_requests_do_not_hold_back_one_of_a_higher_priority(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    handler = GatedHandler()

    async def on_request(device_id: str, topic: str, payload: bytes) -> bytes:
        return b"at once" if topic == "urgent" else await handler(device_id, topic, payload)

    cloud.on_request = on_request
    async with cloud:
        client = make_client(MemoryOutbox(), cloud.server.port)
        async with running(client), asyncio.timeout(10):
            slow = [asyncio.create_task(client.request("slow", b"")) for _ in range(20)]
            await until(lambda: len(handler.started) == 8)
            assert await client.request("urgent", b"", priority=1) == b"at once"
            handler.gate.set()
            assert set(await asyncio.gather(*slow)) == {b"done"}
            with pytest.raises(RequestError, match="priority 101"):
                await client.request("urgent", b"", priority=101)


@pytest.mark.asyncio
async def test_a_handler_knows_the_deadline_and_says_that_it_has_no_room(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    left_s: dict[str, float | None] = {}

    async def on_request(device_id: str, topic: str, payload: bytes) -> bytes:
        due_s = request_due_s()
        left_s[topic] = None if due_s is None else due_s - time.monotonic()
        if topic == "full":
            raise RequestBusyError("no room for it")
        return b"done"

    cloud.on_request = on_request
    async with cloud:
        client = make_client(MemoryOutbox(), cloud.server.port)
        async with running(client), asyncio.timeout(10):
            assert await client.request("soon", b"", 2.5) == b"done"
            assert await client.request("later", b"", 60.0) == b"done"
            with pytest.raises(RequestError, match="no room for it") as full:
                await client.request("full", b"")
            assert full.value.code == "busy"
    assert request_due_s() is None
    assert left_s["soon"] == pytest.approx(2.4, abs=0.1)
    assert left_s["later"] == pytest.approx(59.9, abs=0.1)


class DeafHandler(GatedHandler):
    """A handler that goes on after its cancellation until the gate opens."""

    async def __call__(self, device_id: str, topic: str, payload: bytes) -> bytes:
        try:
            return await super().__call__(device_id, topic, payload)
        except asyncio.CancelledError:
            await self.gate.wait()
            self.ended.append(topic)
            return b"late"


@pytest.mark.asyncio
async def test_a_handler_that_ignores_its_deadline_delays_no_answer_and_gives_none(authority: TunnelAuthority) -> None:
    clock, handler = ManualClock(), DeafHandler()
    async with (
        bare_server(authority, on_request=handler, clock=clock) as server,
        RawDevice.connect(authority, server.port) as device,
    ):
        await device.hello()
        device.say(protocol.Request(1, "late", b"x" * 100, deadline_ms=1_000))
        await until(lambda: handler.started == ["late"])
        await clock.advance(1.5)
        answer = await device.hear()
        assert isinstance(answer, protocol.Response)
        assert (answer.request_id, answer.code, answer.payload) == (1, "expired", b"")
        assert server.budget.requests == 104  # the handler still holds it
        handler.gate.set()
        await until(lambda: handler.ended == ["late"])
        device.say(protocol.Ping(1))
        assert await device.hear() == protocol.Pong(1)
        assert server.budget.requests == 0


@pytest.mark.asyncio
async def test_a_cancelled_request_has_no_answer_though_its_handler_continues(
    cloud: TunnelCloud, authority: TunnelAuthority
) -> None:
    handler = cloud.on_request = DeafHandler()
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        await device.hello()
        device.say(protocol.Request(1, "ask", b""))
        await until(lambda: handler.started == ["ask"])
        device.say(protocol.Cancel(1))
        await until(lambda: handler.stopped == ["ask"])
        handler.gate.set()
        await until(lambda: handler.ended == ["ask"])
        device.say(protocol.Ping(1))
        assert await device.hear() == protocol.Pong(1)


@pytest.mark.asyncio
async def test_a_handler_that_cancels_itself_is_answered_as_a_failure(
    cloud: TunnelCloud, authority: TunnelAuthority
) -> None:
    async def on_request(device_id: str, topic: str, payload: bytes) -> bytes:
        raise asyncio.CancelledError

    cloud.on_request = on_request
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        await device.hello()
        device.say(*(protocol.Request(number, "ask", b"") for number in range(40)))
        answers = [await device.hear() for _ in range(20)]
        assert all(isinstance(answer, protocol.Response) and answer.error for answer in answers)
        device.say(protocol.Request(100, "ask", b""))
        await until(lambda: cloud.server.counts.requests == 41)
        assert cloud.server.budget.requests == 0


@pytest.mark.asyncio
async def test_one_device_does_not_take_all_handlers(cloud: TunnelCloud, authority: TunnelAuthority) -> None:
    handler = cloud.on_request = GatedHandler()
    cloud.limits = dataclasses.replace(cloud.limits, handlers=8)
    async with (
        cloud,
        RawDevice.connect(authority, cloud.server.port) as greedy,
        RawDevice.connect(authority, cloud.server.port, 1) as other,
    ):
        await greedy.hello(0)
        await other.hello(1)
        greedy.say(*(protocol.Request(number, f"greedy-{number}", b"", 100) for number in range(16)))
        await until(lambda: cloud.server.counts.requests == 16)
        assert handler.started == ["greedy-0", "greedy-1"]
        other.say(protocol.Request(1, "other", b"", -100))
        await until(lambda: "other" in handler.started)
        handler.gate.set()
        assert {type(await greedy.hear()) for _ in range(16)} == {protocol.Response}
        assert len(handler.ended) == 17
        assert cloud.server.handlers._device_slots == {}


@pytest.mark.asyncio
async def test_cancelled_requests_of_a_device_leave_handlers_to_others(
    cloud: TunnelCloud, authority: TunnelAuthority
) -> None:
    handler = cloud.on_request = DeafHandler()
    cloud.limits = dataclasses.replace(cloud.limits, handlers=8)
    async with (
        cloud,
        RawDevice.connect(authority, cloud.server.port) as greedy,
        RawDevice.connect(authority, cloud.server.port, 1) as other,
    ):
        await greedy.hello(0)
        await other.hello(1)
        for number in range(100):
            greedy.say(protocol.Request(number, "deaf", b""), protocol.Cancel(number))
        greedy.say(protocol.Ping(1))
        assert await greedy.hear() == protocol.Pong(1)
        for number in range(2):
            greedy.say(protocol.Request(200 + number, "deaf", b""))
            await until(lambda count=number + 1: len(handler.started) >= count)  # type: ignore[misc]
            greedy.say(protocol.Cancel(200 + number))
        await until(lambda: len(handler.stopped) == 2)
        other.say(protocol.Request(1, "other", b""))
        await until(lambda: "other" in handler.started)
        handler.gate.set()


@pytest.mark.asyncio
async def test_a_request_waits_for_a_connection_no_longer_than_it_says(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    async with cloud:
        port = cloud.server.port
    client = make_client(MemoryOutbox(), port)
    async with running(client), asyncio.timeout(10):
        with pytest.raises(RequestError, match=r"no connection within 0\.05 s; last error: ") as raised:
            await client.request("ask", b"", timeout=60, connect_timeout=0.05)
        assert raised.value.code == "expired"


@pytest.mark.asyncio
async def test_requests_that_wait_for_a_connection_do_not_hold_back_one_that_does_not(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    async with cloud:
        port = cloud.server.port
    client = make_client(MemoryOutbox(), port)
    async with running(client), asyncio.timeout(10):
        patient = [asyncio.create_task(client.request("ask", b"", timeout=60)) for _ in range(20)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match=r"no connection within 0\.05 s; last error: "):
            await client.request("ask", b"", timeout=60, connect_timeout=0.05)
        for one in patient:
            one.cancel()
        await asyncio.gather(*patient, return_exceptions=True)


@pytest.mark.asyncio
async def test_a_device_whose_requests_are_refused_is_read_slowly_and_others_are_not(
    authority: TunnelAuthority,
) -> None:
    clock = ManualClock()

    async def handler(device_id: str, topic: str, payload: bytes) -> bytes:
        if device_id == "device-0":
            raise RequestRefusedError("not for this device")
        return payload

    async with (
        bare_server(authority, on_request=handler, clock=clock) as server,
        RawDevice.connect(authority, server.port) as hostile,
        RawDevice.connect(authority, server.port, device=1) as honest,
    ):
        await hostile.hello()
        await honest.hello(1)
        hostile.say(*(protocol.Request(number, "phase", b"") for number in range(5_000)))
        await until(lambda: server.counts.slowed == 1)
        for number in range(100):
            honest.say(protocol.Request(number, "phase", b"mine"))
            assert await honest.hear() == protocol.Response(number, b"mine")
        handled = server.counts.requests - 100
        # One read may have as many requests as answers that are under way; beyond these each is counted at once.
        assert BURST <= handled <= BURST + 2 * server.limits.requests
        for _ in range(10):
            await clock.advance(1.0)
            await asyncio.sleep(0.01)
        assert BURST < server.counts.requests - 100 <= handled + 10 * PER_S + 2 * server.limits.requests
        assert server.counts.open == 2  # uploads and pings continue, at that pace


@pytest.mark.asyncio
async def test_refused_requests_are_forgotten_with_time_and_kept_of_few_devices() -> None:
    clock = ManualClock()
    pace = RefusalPace(clock)
    assert [pace.note("d") for _ in range(BURST)] == [0.0] * BURST
    assert pace.note("d") == 1 / PER_S
    for number in range(30_000):
        pace.note(f"other-{number}")
    assert len(pace._refused) <= 10_000
    assert pace.note("d") == 2 / PER_S  # those that send most stay
    await clock.advance(BURST / PER_S + 1)
    assert pace.note("d") == 0.0
