import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
import pytest_asyncio
import uvicorn

from apps.ipv.generator import ShoppingEvents
from apps.ipv.shop import create_shop
from apps.ipv.shopper import LONGEST_WAIT_S, Shopper
from walle.base.clock import ManualClock, SystemClock
from walle.pipeline.events.event import Event, EventError
from walle.protocol import PROFILE_HEADER, TASKS_HEADER

type Receive = Callable[[], Awaitable[dict[str, object]]]


class RecordingDevice:
    """A device that notes what it is given."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Event]] = []
        self.answers: list[str | None] = []
        self.fails_at: int | None = None
        self.failure: Exception = RuntimeError("the device is broken")
        self.taken = asyncio.Event()

    async def on_event(self, event: Event, position: int) -> None:
        if position == self.fails_at:
            raise self.failure
        self.events.append((position, event))
        self.taken.set()

    def request_headers(self) -> dict[str, str]:
        return {PROFILE_HEADER: '{"d":"device"}'}

    async def handle_answer(self, header: str | None, trust: str | None = None) -> None:
        self.answers.append(header)


class Site:
    """The shop on its own loopback server, with a tasks header on each answer; it records the requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.profiles: set[str | None] = set()
        self.broken = False
        self.url = ""
        self._shop = create_shop()

    async def __call__(self, scope: dict[str, object], receive: Receive, send: Callable[..., Awaitable[None]]) -> None:
        self.asked.append((str(scope["method"]), str(scope["path"])))
        headers = dict(scope["headers"])  # type: ignore[call-overload]
        profile = headers.get(PROFILE_HEADER.lower().encode())
        self.profiles.add(profile and profile.decode())

        async def with_tasks(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (TASKS_HEADER.encode(), b"[]")]  # type: ignore[misc]
                message["status"] = 503 if self.broken else message["status"]
            await send(message)

        await self._shop(scope, receive, with_tasks)  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    listener = socket.create_server(("127.0.0.1", 0))
    site.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(site, log_level="warning", lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield site
    finally:
        server.should_exit = True
        await serving
        listener.close()


@pytest.mark.asyncio
async def test_a_shopper_plays_visits_and_asks_the_shop(site: Site) -> None:
    device = RecordingDevice()
    async with httpx.AsyncClient(base_url=site.url) as client:
        events = ShoppingEvents(1, "device")
        counts = await Shopper(events, device, client, SystemClock(), shopper_id="ann", page_visits=30).run()
    played = [event for _, event in device.events]
    assert [position for position, _ in device.events] == list(range(counts.events))
    assert played[-1].event_id == "page_exit"
    assert counts.exits == 30
    assert counts.last_position == counts.events - 1
    enters = sum(event.event_id == "page_enter" for event in played)
    adds = sum(event.contents.get("action") == "add_cart" for event in played)
    assert adds > 0
    assert counts.requests == len(site.asked) == enters + adds
    assert counts.failed == 0
    assert [path for method, path in site.asked if method == "POST"] == ["/shop/cart"] * adds
    assert site.profiles == {'{"d":"device"}'}
    assert device.answers == ["[]"] * counts.requests


@pytest.mark.asyncio
async def test_a_run_continues_where_the_device_left_off(site: Site) -> None:
    device, stream = RecordingDevice(), ShoppingEvents(1, "device")
    async with httpx.AsyncClient(base_url=site.url) as client:
        for start, visits in ((0, 2), (25, 3)):
            shopper = Shopper(
                stream.events_from(start), device, client, SystemClock(), shopper_id="ann", page_visits=visits
            )
            await shopper.run()
    positions = [position for position, _ in device.events]
    assert 25 in positions
    assert [event for position, event in device.events if position == 25] == [next(stream.events_from(25))[1]] * (
        positions.count(25)
    )


@pytest.mark.asyncio
async def test_failed_requests_are_counted_and_survived(site: Site) -> None:
    site.broken = True
    device = RecordingDevice()
    async with httpx.AsyncClient(base_url=site.url) as client:
        counts = await Shopper(
            ShoppingEvents(1, "device"), device, client, SystemClock(), shopper_id="ann", page_visits=5
        ).run()
    assert counts.exits == 5
    assert counts.failed == counts.requests >= 5


@pytest.mark.asyncio
async def test_a_shop_that_is_away_is_survived() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    device = RecordingDevice()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        counts = await Shopper(
            ShoppingEvents(1, "device"), device, client, SystemClock(), shopper_id="ann", page_visits=5
        ).run()
    assert counts.exits == 5
    assert counts.failed == counts.requests >= 5
    assert device.answers == []


@pytest.mark.asyncio
async def test_odd_item_ids_stay_one_part_of_the_path(site: Site) -> None:
    odd = Event("page_enter", "p", 1, {"item_id": "a/../b?c#d\x00é"})
    async with httpx.AsyncClient(base_url=site.url) as client:
        counts = await Shopper([(0, odd)], RecordingDevice(), client, SystemClock(), shopper_id="ann").run()
    assert (counts.requests, counts.failed) == (1, 0)  # an answer: the shop does not have the item
    assert site.asked == [("GET", "/shop/items/a/../b?c#d\x00é")]


@pytest.mark.asyncio
async def test_a_broken_device_ends_the_run(site: Site) -> None:
    device = RecordingDevice()
    device.fails_at = 10
    async with httpx.AsyncClient(base_url=site.url) as client:
        shopper = Shopper(ShoppingEvents(1, "device"), device, client, SystemClock(), shopper_id="ann")
        with pytest.raises(RuntimeError, match="the device is broken"):
            await shopper.run()
    assert shopper.counts.events == 10


@pytest.mark.asyncio
async def test_an_event_that_is_refused_is_counted_and_left_out(site: Site) -> None:
    device = RecordingDevice()
    device.fails_at, device.failure = 3, EventError("contents", "is enormous")
    async with httpx.AsyncClient(base_url=site.url) as client:
        shopper = Shopper(ShoppingEvents(1, "device"), device, client, SystemClock(), shopper_id="ann", page_visits=2)
        counts = await shopper.run()
    assert (counts.refused, counts.exits) == (1, 2)
    assert counts.last_position == counts.events


@pytest.mark.asyncio
async def test_events_come_at_their_pace_and_long_pauses_are_cut() -> None:
    clock, device = ManualClock(), RecordingDevice()
    events = [(n, Event("page_scroll", "p", ts_ms, {})) for n, ts_ms in enumerate((0, 1000, 4000, 10_000_000))]
    async with httpx.AsyncClient() as client:
        running = asyncio.create_task(Shopper(events, device, client, clock, shopper_id="ann", speed=10).run())
        await clock.advance(0.05)
        assert len(device.events) == 1
        await clock.advance(0.06)
        assert len(device.events) == 2
        await clock.advance(0.28)
        assert len(device.events) == 2
        await clock.advance(0.02)
        assert len(device.events) == 3
        await clock.advance(LONGEST_WAIT_S)
        assert (await running).events == 4


@pytest.mark.asyncio
async def test_stop_ends_a_wait() -> None:
    device = RecordingDevice()
    async with httpx.AsyncClient() as client:
        events = [(n, Event("page_scroll", "p", 1000 * n, {})) for n in range(2)]
        shopper = Shopper(events, device, client, ManualClock(), shopper_id="ann", speed=1)
        running = asyncio.create_task(shopper.run())
        await device.taken.wait()
        shopper.stop()
        assert (await running).events == 1


@pytest.mark.asyncio
async def test_stop_ends_a_run_without_end_and_cancelling_leaves_nothing(site: Site) -> None:
    async with httpx.AsyncClient(base_url=site.url) as client:
        for end in ("stop", "cancel"):
            device = RecordingDevice()
            shopper = Shopper(ShoppingEvents(1, "device"), device, client, SystemClock(), shopper_id="ann")
            before = asyncio.all_tasks()
            running = asyncio.create_task(shopper.run())
            await device.taken.wait()
            if end == "stop":
                shopper.stop()
                assert (await running).events >= 1
            else:
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            mine = {task for task in asyncio.all_tasks() - before if "Shopper" in repr(task.get_coro())}
            assert not mine


@pytest.mark.asyncio
async def test_senseless_settings_are_refused() -> None:
    async with httpx.AsyncClient() as client:
        with pytest.raises(ValueError, match="speed 0"):
            Shopper([], RecordingDevice(), client, SystemClock(), shopper_id="ann", speed=0)
        with pytest.raises(ValueError, match="page_visits 0"):
            Shopper([], RecordingDevice(), client, SystemClock(), shopper_id="ann", page_visits=0)
