"""Ring of tunnel servers: shares, moves at a change, and devices that reach a server that is not theirs."""

import asyncio
import contextlib
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.postgres_server import PostgresServer
from tests.sim.tunnel_cloud import echo
from tests.sim.tunnel_rig import KeepingOutbox, MakeClient, RawDevice, bare_server, fill, running, until
from walle import protocol
from walle.base.clock import SystemClock
from walle.pipeline.ingest.service import TunnelService
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.server.ring import Ring, RingError, RingMember, RingPlace

DEVICES = [f"device-{number}" for number in range(2000)]
NAMES = st.lists(st.text("abcdef0123456789-", min_size=1, max_size=12), min_size=1, max_size=12, unique=True)


def ring_of(*names: str, generation: int = 1) -> Ring:
    return Ring(generation, [RingMember(name, f"{number}.example", 7443) for number, name in enumerate(sorted(names))])


def owners(ring: Ring) -> dict[str, str]:
    found = {device: ring.owner(device) for device in DEVICES}
    return {device: owner.name for device, owner in found.items() if owner is not None}


class SteppedClock(SystemClock):
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@given(NAMES)
def test_each_server_has_its_share(names: list[str]) -> None:
    found = list(owners(ring_of(*names)).values())
    share = len(DEVICES) / len(names)
    assert all(abs(found.count(name) - share) < 6 * share**0.5 for name in names)  # six standard deviations


@given(NAMES, st.data())
def test_only_the_devices_of_a_changed_server_move(names: list[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(names))
    before, after = owners(ring_of(*names)), owners(ring_of(*(name for name in names if name != gone)))
    assert {device: name for device, name in before.items() if name != gone}.items() <= after.items()
    assert all(after[device] != gone for device in after)


def test_another_process_finds_the_same_owners() -> None:
    ring = ring_of("a", "b", "c")
    code = (
        "import ast, sys; from walle.pipeline.tunnel.server.ring import Ring;"
        "ring = Ring.from_plain(ast.literal_eval(sys.argv[1]));"
        "print({f'device-{n}': ring.owner(f'device-{n}').name for n in range(2000)})"
    )
    command = [sys.executable, "-c", code, repr(ring.to_plain())]
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert output.strip() == repr(owners(ring))


def test_a_ring_that_cannot_be_is_refused() -> None:
    with pytest.raises(RingError, match="one name"):
        Ring(1, [RingMember("a", "x.example", 1), RingMember("a", "y.example", 1)])
    for host, port in (("", 7443), ("x.example", 0), ("a b", 7443)):
        with pytest.raises(RingError, match="no address"):
            Ring(1, [RingMember("a", host, port)])
    with pytest.raises(RingError, match="cannot be read"):
        Ring.from_plain({"generation": 1, "members": [["a"]]})


def test_a_server_sends_a_device_on_once_and_takes_it_when_it_comes_back() -> None:
    clock = SteppedClock()
    place = RingPlace("a", clock)
    assert place.send_on("device-1") is None  # the ring is empty
    assert place.take(ring_of("b"))
    owner = place.send_on("device-1")
    assert owner is not None
    assert owner.name == "b"
    assert place.send_on("device-1") is None
    clock.now_s = 31.0
    assert place.send_on("device-1") is not None
    assert not place.take(ring_of("a", generation=1))  # an older table is refused
    assert place.take(ring_of("a", generation=2))
    assert place.send_on("device-2") is None


@pytest.mark.asyncio
async def test_a_device_of_protocol_2_stays_where_it_is(authority: TunnelAuthority) -> None:
    async with bare_server(authority, name="a") as server, RawDevice.connect(authority, server.port) as old:
        server.take_ring(ring_of("b"), over_s=0.0)
        old.say_version = 2
        old.say(protocol.Hello("device-0", "e", "", protocol=2))
        assert isinstance(await old.hear(), protocol.Welcome)


@pytest.mark.asyncio
async def test_a_hello_is_sent_on_and_a_ring_in_which_each_names_the_other_makes_no_loop(
    authority: TunnelAuthority, make_client: MakeClient
) -> None:
    async with bare_server(authority, name="a") as a, bare_server(authority, name="b") as b, asyncio.timeout(20):
        a.take_ring(Ring(2, [RingMember("b", "127.0.0.1", b.port)]), over_s=0.0)
        b.take_ring(Ring(1, [RingMember("a", "127.0.0.1", a.port)]), over_s=0.0)
        async with running(client := make_client(MemoryOutbox(), a.port)):
            await until(lambda: client.connected)
            assert (a.counts.refusals["elsewhere"], b.counts.refusals["elsewhere"]) == (1, 1)
            assert (a.counts.open, b.counts.open) == (1, 0)
            b.take_ring(Ring(3, [RingMember("b", "127.0.0.1", b.port)]), over_s=0.0)
            a.take_ring(b.ring.ring, over_s=0.01)
            await until(lambda: b.counts.open == 1 and client.connected)


@pytest.mark.asyncio
async def test_a_device_whose_server_does_not_answer_is_taken(
    authority: TunnelAuthority, make_client: MakeClient
) -> None:
    async with bare_server(authority, name="a") as server, asyncio.timeout(20):
        server.take_ring(Ring(1, [RingMember("b", "127.0.0.1", 1)]), over_s=0.0)
        async with running(client := make_client(MemoryOutbox(), server.port)):
            await until(lambda: client.connected)
        assert server.counts.refusals["elsewhere"] == 1


def service(authority: TunnelAuthority, store: UploadStore, name: str) -> TunnelService:
    context = authority.server_context()
    return TunnelService(store, ssl_context=context, on_request=echo, host="127.0.0.1", port=0, name=name)


def member(name: str, of: TunnelService) -> RingMember:
    return RingMember(name, "127.0.0.1", of.port)


@pytest.mark.asyncio
async def test_one_device_that_flaps_between_two_servers_loses_and_doubles_nothing(
    authority: TunnelAuthority, make_client: MakeClient, postgres: PostgresServer
) -> None:
    """Both servers have their own connections to one database; the ring changes while uploads are in flight."""
    location = postgres.make_database()
    outbox = KeepingOutbox()
    async with (
        asyncio.timeout(60),
        open_uploads(location, create=True) as one,
        open_uploads(location, create=True) as other,
        service(authority, one, "a") as a,
        service(authority, other, "b") as b,
        running(client := make_client(outbox, a.port)),
    ):
        servers = {"a": a, "b": b}
        for generation in range(1, 21):
            fill(outbox, 100, seed=generation)
            name = "ab"[generation % 2]
            ring = Ring(generation, [member(name, servers[name])])
            for each in (a, b):
                each.server.take_ring(ring, over_s=0.0)
            await until(lambda name=name: servers[name].server.counts.open == 1 and client.connected)  # type: ignore[misc]
            if generation % 5 == 0:  # cut, with uploads in flight
                for connection in list(servers[name].server._connections):
                    connection.abort()
        await client.drained()
        rows = await one.query(device_id="device-0", limit=100_000)
        assert [(row.seq, row.topic, row.payload) for _, row in rows] == outbox.sent
        assert a.server.counts.connections + b.server.counts.connections >= 20
        assert all(total.reports == 0 for total in (await one.loss_totals()).values())


@pytest.mark.asyncio
async def test_a_drain_sends_each_device_to_the_server_of_its_place(
    authority: TunnelAuthority, make_client: MakeClient, postgres: PostgresServer
) -> None:
    location = postgres.make_database()
    outboxes = [MemoryOutbox() for _ in range(8)]
    async with asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_uploads(location, create=True))
        tunnels = {name: await stack.enter_async_context(service(authority, store, name)) for name in "abc"}
        clients = []
        for number, outbox in enumerate(outboxes):
            rng = random.Random(number)
            clients.append(make_client(outbox, tunnels["a"].port, device=number, rng=rng))
            await stack.enter_async_context(running(clients[-1]))
        await until(lambda: all(client.connected for client in clients))
        ring = Ring(1, [member(name, tunnels[name]) for name in "bc"])
        for outbox in outboxes:
            fill(outbox, 100)
        tunnels["a"].server.take_ring(ring, over_s=0.2)
        await tunnels["a"].server.drain(over_s=0.2)
        await asyncio.gather(*(client.drained() for client in clients))
        owned = [owner.name for n in range(8) if (owner := ring.owner(f"device-{n}")) is not None]
        shares = {name: owned.count(name) for name in "bc"}
        await until(lambda: shares == {name: tunnels[name].server.counts.open for name in "bc"})
        assert set(owned) == {"b", "c"}
        assert await store.count() == 800
