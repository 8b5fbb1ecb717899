"""The link emulator: delays, losses, rate and order of packets, and real TCP between two namespaces."""

import asyncio
import itertools
import json
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import tunnel, tunnel_delay
from benchmarks.fig12.bench_link import BenchLink
from benchmarks.fig12.device import BenchDevice, CloudAddress
from benchmarks.links.forward import Path as LinkPath
from benchmarks.links.shape import Direction, LinkShape
from benchmarks.links.tun import NoTunError, TunLink

_EXACT = LinkShape(delay_ms=40, jitter_ms=0, loss=0.0, bits_per_s=8e6, queue_bytes=3_500)


def test_a_packet_takes_its_time_on_the_link_and_the_delay() -> None:
    direction = Direction(_EXACT, random.Random(1))
    assert direction.send(1_000, 5.0) == pytest.approx(5.041)
    assert direction.send(1_000, 5.0) == pytest.approx(5.042)  # the link is busy for the first millisecond
    assert direction.send(1_000, 6.0) == pytest.approx(6.041)


def test_packets_beyond_the_queue_are_dropped() -> None:
    direction = Direction(_EXACT, random.Random(1))
    arrivals = [direction.send(1_000, 5.0) for _ in range(10)]
    assert [arrival is not None for arrival in arrivals] == [True] * 4 + [False] * 6
    assert direction.counts() == {"packets": 10, "lost": 0, "overflowed": 6}
    assert direction.send(1_000, 5.002) is not None


def test_jitter_keeps_order_and_a_seed_repeats_everything() -> None:
    shape = LinkShape(delay_ms=50, jitter_ms=20, loss=0.1)
    runs = []
    for _ in range(2):
        direction = Direction(shape, random.Random(3))
        runs.append([direction.send(100, number / 100) for number in range(5_000)])
        assert 400 < direction.lost < 600
    assert runs[0] == runs[1]
    arrivals = [arrival for arrival in runs[0] if arrival is not None]
    assert arrivals == sorted(arrivals)
    delays = [arrival - number / 100 for number, arrival in enumerate(runs[0]) if arrival is not None]
    assert 0.030 <= min(delays) < 0.032
    assert 0.068 < max(delays) <= 0.0702


@pytest.mark.parametrize("each", [False, True])
def test_connections_share_a_link_or_have_one_each(each: bool) -> None:
    shape = LinkShape(delay_ms=40, jitter_ms=0, loss=0.0, bits_per_s=80_000)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, far:
        far.setblocking(False)
        path = LinkPath(far.fileno(), far.fileno(), shape, "1", 0 if each else None)
        for port in (5_000, 5_001, 5_000):
            near.send(bytes([0x45, *bytes(19)]) + port.to_bytes(2, "big") + bytes(978))  # IPv4 and TCP, 1,000 bytes
        path.read()
    arrivals = [arrives_s for arrives_s, _, _ in sorted(path.on_the_way)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    assert gaps == pytest.approx([0.0, 0.1] if each else [0.1, 0.1], abs=0.05)  # 1,000 bytes take 0.1 s
    assert path.counts() == {"packets": 3, "lost": 0, "overflowed": 0}


@pytest.mark.night
def test_requests_are_timed_while_uploads_continue(tmp_path: Path) -> None:
    async def ask(address: CloudAddress) -> None:
        async with BenchDevice.connected("asking", tmp_path, address, 1) as device, asyncio.timeout(60):
            asking = asyncio.create_task(device.request_beside_uploads(1_000_000))
            while device.acked < 300:  # noqa: ASYNC110 - several times what waits at once; sets no event
                await asyncio.sleep(0.02)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    shape = LinkShape(delay_ms=1, jitter_ms=0, loss=0.0, bits_per_s=1e9)
    (tmp_path / "cloud").mkdir()
    with BenchLink.open(tmp_path / "cloud", shape, 1, proxy=True) as link:
        link.run(ask)


@pytest.mark.parametrize(
    ("requests", "devices", "each", "counts"),
    [(20, 32, True, [3, 3, 3, 3, 2, 2, 2, 2]), (5, 2, True, [3, 2]), (5, 8, False, [5]), (3, 9, True, [1] * 3)]
    + [(0, 8, each, []) for each in (True, False)],
)
def test_requests_are_divided_among_devices_with_a_link_each(
    requests: int, devices: int, each: bool, counts: list[int]
) -> None:
    assert tunnel_delay.divide_requests(requests, devices, each=each) == counts


@pytest.fixture
def lossy() -> Iterator[TunLink]:
    try:
        with TunLink.open(
            LinkShape(delay_ms=10, jitter_ms=2, loss=0.05), seed=5, sysctls={"net.ipv4.tcp_syn_retries": "9"}
        ) as link:
            yield link
    except NoTunError as error:
        pytest.skip(str(error))


def test_real_tcp_crosses_the_link_whole_and_late(lossy: TunLink) -> None:
    listener = lossy.cloud.run(lambda: socket.create_server((lossy.cloud.host, 0))).result()
    sent = random.Random(1).randbytes(300_000)
    received = bytearray()

    def receive() -> None:
        connection, _ = listener.accept()
        with connection, listener:
            while data := connection.recv(65_536):
                received.extend(data)

    receiving = threading.Thread(target=receive)
    receiving.start()

    def send() -> float:
        began_s = time.monotonic()
        with socket.create_connection(listener.getsockname(), timeout=30.0) as connection:
            took_s = time.monotonic() - began_s
            connection.sendall(sent)
        return took_s

    assert lossy.device.run(send).result() >= 0.016
    receiving.join(60.0)
    assert bytes(received) == sent
    assert not any(name.startswith("link0") for _, name in socket.if_nameindex())  # nothing in this namespace


def test_counts_of_packets_are_known_once_the_link_is_closed() -> None:
    try:
        with TunLink.open(LinkShape(loss=1.0), seed=1) as link:

            def knock() -> None:
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                    for _ in range(5):
                        sender.sendto(b"x", (link.cloud.host, 9))

            link.device.run(knock).result()
    except NoTunError as error:
        pytest.skip(str(error))
    assert link.counts["up"] == {"packets": 5, "lost": 5, "overflowed": 0}


@pytest.mark.night
@pytest.mark.parametrize("model", ["tun", "proxy"])
def test_figure_12_measures_every_upload(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--link", "--delay=20", "--jitter=5", "--uploads=12", "--devices=6", "--requests=3", "--json"]
    options += [f"--out={tmp_path}", *(["--proxy"] * (model == "proxy"))]
    monkeypatch.setattr(sys, "argv", ["tunnel.py", *options])
    tunnel.main()
    found = json.loads(capsys.readouterr().out)
    assert ("proxy" in found["model"]) == (model == "proxy") or "no TUN device" in found["model"]
    assert sum(row["acknowledged_ms"]["count"] for row in found["sizes"]) == 12
    assert [row["size_bytes"] for row in found["sizes"]] == [1_000, 3_000, 10_000, 30_000, 100_000]
    for row in found["sizes"]:  # the least is two delays without jitter, or one
        assert row["acknowledged_ms"]["p50"] >= 30
        assert row["acknowledged_ms"]["p50"] > row["arrived_ms"]["p50"] >= 14
    assert found["requests_ms"]["count"] == 3
    assert found["uploaded_kb_per_s"] >= 0
    assert {file.name for file in tmp_path.iterdir()} == {f"tunnel_delay.{kind}" for kind in ("json", "png", "html")}


def test_asyncio_runs_at_either_side(lossy: TunLink) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(3))
        await writer.drain()
        writer.close()

    async def serve(ports: list[int], stop: threading.Event) -> None:
        async with await asyncio.start_server(echo, lossy.cloud.host, 0) as server:
            ports.append(server.sockets[0].getsockname()[1])
            await asyncio.to_thread(stop.wait)

    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection(lossy.cloud.host, port)
        writer.write(b"abc")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    ports: list[int] = []
    stop = threading.Event()
    serving = lossy.cloud.run(lambda: asyncio.run(serve(ports, stop)))
    while not ports:
        time.sleep(0.01)
    try:
        assert lossy.device.run(lambda: asyncio.run(ask(ports[0]))).result() == b"abc"
    finally:
        stop.set()
    serving.result()
