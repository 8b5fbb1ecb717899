"""CPU time and memory of the tunnel's server (§5.2): a whole upload, a bare acknowledgement, and a connection.

The server runs in a process of its own, over TLS 1.3 on loopback; its CPU time (user and system, all threads) and its
resident memory are read from the kernel. Devices are driven by this process, which encodes before it measures.

- upload: the full service (decompress, de-duplicate, store durably in SQLite, acknowledge) for IPV features of about
  1 KB from the app's generator and feature code. Each device keeps its window full, as one that comes back online.
- single: the same for 200 devices with one upload in flight each: a fleet that sends features as they arise.
- ack: the same 200 devices, acknowledged without being stored.
- bare: the peer of `ack` on the same event loop and transports: a protocol of 20 lines that answers each frame with the
  same bytes, and neither decompresses, nor checks, nor queues. `buffered` is the same as an asyncio.BufferedProtocol
  with one receive buffer for all connections, which is the fastest form of it.
- lone: the wall time of one durable upload of 30 KB, by a device that has no other under way.
- connection: memory of a connection that has sent its Hello and then waits.
- commit: the time of `Ingest.accept` of one upload, alone and while a query over many rows runs.

The transports are those of the event loops (asyncio, and uvloop where it is installed), and aiofastnet's on either
where that is installed. `c++` is a server of epoll and OpenSSL (`benchmarks/tunnel_peer`), built where a compiler and
OpenSSL's headers are: the limit of `bare` and, with an fdatasync for each turn of its loop, of `lone`.

Rounds of all of them alternate. Figures are medians.

    python benchmarks/tunnel.py [--rounds 3] [--uploads 20000] [--devices 50] [--connections 1000]
        [--rows 200000] [--lone 400] [--only lone,ack] [--json]
    python benchmarks/tunnel.py --link ...    # delays on an emulated mobile link: see `benchmarks/tunnel_delay.py`
"""

import argparse
import asyncio
import contextlib
import importlib
import importlib.util
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

from benchmarks.headline import print_headline
from benchmarks.tunnel_authority import TunnelAuthority
from walle import protocol
from walle.base import plain
from walle.cloud.http.malloc import map_tls_buffers
from walle.pipeline.features.checksums import first_link
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
from walle.pipeline.ingest.supervisor import PumpSupervisor
from walle.pipeline.tunnel.frames import Decoder, Encoder
from walle.pipeline.tunnel.received import Received, ResumePoint
from walle.pipeline.tunnel.server.listener import listen
from walle.pipeline.tunnel.server.ring import Ring, RingMember
from walle.pipeline.tunnel.server.server import ServerLimits, TunnelServer

WINDOW = 256
BATCH = 64
ACK_DEVICES = 200
LONE_BYTES = 30_000
PEER_SOURCE = Path(__file__).parent / "tunnel_peer" / "server.cpp"
CPP = "c++"
IPV_TASK = Path(__file__).parents[1] / "apps" / "ipv" / "task"
_SERVE = "--serve"
RING_NAME = "tunnel-0"
RING = Ring(1, [RingMember(f"tunnel-{number}", "127.0.0.1", 7443) for number in range(4)])  # a ring of kind "ring"


# --- the server's process ---------------------------------------------------------------------------------------------


async def _authenticate(credential: str) -> str | None:
    return credential


async def _nothing_acked(hello: protocol.Hello) -> ResumePoint:
    return ResumePoint(0, first_link(hello.epoch))


async def _echo(_device_id: str, _topic: str, payload: bytes) -> bytes:
    return payload


async def _acknowledge_all(server: TunnelServer) -> None:
    while batch := await server.arrived(1000):
        server.acknowledge_all({received[:2]: received.seq for received in batch})


_ACK_HEADER = Encoder().encode(protocol.Ack(0))[:8]


def encode_ack(seq: int) -> bytes:
    """Return the frame of an Ack, in the fastest way of Python."""
    return _ACK_HEADER + seq.to_bytes(8)


class BareServer(asyncio.Protocol):
    """Acknowledges each frame, and nothing else."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._buffer = bytearray()
        self._frames = 0

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 8 and len(self._buffer) >= (end := 8 + int.from_bytes(self._buffer[:4])):
            del self._buffer[:end]
            self._transport.write(self._welcome if self._frames == 0 else encode_ack(self._frames))
            self._frames += 1

    _welcome = Encoder().encode(protocol.Welcome(0, 1, first_link("epoch")))


class BareBufferedServer(asyncio.BufferedProtocol):
    """The same, with one receive buffer for all connections."""

    _shared = memoryview(bytearray(256 << 10))
    _welcome = BareServer._welcome
    connection_made = BareServer.connection_made
    _data_received = BareServer.data_received

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - it has the largest size
        return self._shared

    def buffer_updated(self, nbytes: int) -> None:
        self._data_received(self._shared[:nbytes])  # type: ignore[misc, arg-type]


async def serve_bare(folder: Path, *, fast: bool, buffered: bool) -> None:
    server = await listen(
        BareBufferedServer if buffered else BareServer,
        ("127.0.0.1", 0),
        ssl_context=TunnelAuthority(folder / "authority").server_context(),
        reuse_port=False,
        handshake_s=10.0,
        shutdown_s=2.0,
        fast=fast,
    )
    await _answer_state(server.sockets[0].getsockname()[1])


async def _answer_state(port: int) -> None:
    """Print the port; answer each line of stdin with the process's CPU seconds and resident bytes."""
    print(port, flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        # os.times counts in steps of 10 ms, half a microsecond of each of 20,000 uploads.
        print(json.dumps({"cpu_s": time.process_time(), "resident": _resident_bytes()}), flush=True)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def serve(folder: Path, *, fast: bool, stores: bool, ring: Ring | None = None) -> None:
    """Serve the tunnel until stdin ends; with a `ring`, as the server RING_NAME of it."""
    async with contextlib.AsyncExitStack() as undo:
        ingest = await undo.enter_async_context(Ingest(folder / "uploads.db"))
        server = TunnelServer(
            ssl_context=TunnelAuthority(folder / "authority").server_context(),
            resume=ingest.resume if stores else _nothing_acked,
            on_request=_echo,
            limits=ServerLimits(window=WINDOW),
            fast_transports=fast,
            name=RING_NAME,
        )
        if ring is not None:
            server.take_ring(ring, over_s=0.0)
        await undo.enter_async_context(server)
        work = PumpSupervisor(server, ingest).run() if stores else _acknowledge_all(server)
        consuming = asyncio.create_task(work)
        undo.callback(consuming.cancel)
        await _answer_state(server.port)


class ServerProcess:
    """The server, as its devices see it."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        self.authority = TunnelAuthority(folder / "authority")

    @classmethod
    @contextlib.contextmanager
    def start(cls, loop: str, kind: str, peer: Path | None = None) -> Any:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            authority = TunnelAuthority(folder / "authority")
            command = [sys.executable, __file__, _SERVE, name, loop, kind]
            if peer is not None:
                command = [str(peer), str(authority.server_path), BareServer._welcome.hex()]
                command += [str(folder / "uploads")] * (kind == "stores")
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
                try:
                    yield cls(process, folder)
                finally:
                    process.kill()

    def state(self) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        state: dict[str, float] = json.loads(self._process.stdout.readline())
        return state


# --- devices ----------------------------------------------------------------------------------------------------------


class BenchDevice(asyncio.Protocol):
    """A device that sends frames that were encoded before, at most `window` ahead of the acknowledgements."""

    def __init__(self, frames: list[bytes], window: int, batch: int) -> None:
        self.acked = 0
        self.welcomed = asyncio.Event()
        self.done = asyncio.Event()
        self._frames = frames
        self._window = window
        self._batch = batch
        self._sent = 0
        self._decoder = Decoder()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def hello(self, device_id: str) -> None:
        self._transport.write(Encoder().encode(protocol.Hello(device_id, "epoch", "")))

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            if isinstance(frame, protocol.Welcome):
                self.welcomed.set()
            elif isinstance(frame, protocol.Ack):
                self.acked = frame.seq
                self.send()
                if self.acked == len(self._frames):
                    self.done.set()
            else:
                raise SystemExit(f"the server answered {frame}")

    def send(self) -> None:
        while (upto := min(self.acked + self._window, len(self._frames), self._sent + self._batch)) > self._sent:
            self._transport.write(b"".join(self._frames[self._sent : upto]))
            self._sent = upto

    def close(self) -> None:
        self._transport.abort()


@contextlib.asynccontextmanager
async def connected(
    server: ServerProcess,
    frames: list[list[bytes]],
    window: int,
    batch: int,
    name: str = "device",
    belongs: Callable[[str], bool] = lambda _: True,
) -> AsyncIterator[list[BenchDevice]]:
    loop = asyncio.get_running_loop()
    devices: list[BenchDevice] = []
    try:
        ids = filter(belongs, (f"{name}-{number}" for number in itertools.count()))
        for own, device_id in zip(frames, ids, strict=False):
            device = BenchDevice(own, window, batch)
            context = server.authority.device_context(device_id)
            await loop.create_connection(lambda device=device: device, "127.0.0.1", server.port, ssl=context)  # type: ignore[misc]
            devices.append(device)
            device.hello(device_id)
        for device in devices:
            await device.welcomed.wait()
        yield devices
    finally:
        for device in devices:
            device.close()


async def cpu_us(
    server: ServerProcess,
    frames: list[list[bytes]],
    window: int,
    batch: int,
    belongs: Callable[[str], bool] = lambda _: True,
) -> dict[str, float]:
    """Return the server's CPU microseconds an upload, and uploads a second of wall time."""
    async with connected(server, frames, window, batch, belongs=belongs) as devices:
        before, began_s = server.state(), time.perf_counter()
        for device in devices:
            device.send()
        for device in devices:
            await device.done.wait()
        wall_s, after = time.perf_counter() - began_s, server.state()
    count = sum(map(len, frames))
    return {"cpu_us": (after["cpu_s"] - before["cpu_s"]) / count * 1e6, "per_s": count / wall_s}


class LoneDevice(BenchDevice):
    """A device with one upload under way, that notes how long each took."""

    def __init__(self, frames: list[bytes]) -> None:
        super().__init__(frames, 1, 1)
        self.delays_ms: list[float] = []
        self._began_s = 0.0

    def send(self) -> None:
        now_s = time.perf_counter()
        if self.acked:
            self.delays_ms.append((now_s - self._began_s) * 1000)
        self._began_s = now_s
        super().send()


async def lone_ms(server: ServerProcess, frames: list[bytes]) -> dict[str, float]:
    """Return the median and the 99th percentile of an upload's time; the first tenth warms up."""
    device, context = LoneDevice(frames), server.authority.device_context("lone")
    await asyncio.get_running_loop().create_connection(lambda: device, "127.0.0.1", server.port, ssl=context)
    device.hello("lone")
    await device.welcomed.wait()
    device.send()
    await device.done.wait()
    device.close()
    delays = sorted(device.delays_ms[len(frames) // 10 :])
    return {"p50_ms": statistics.median(delays), "p99_ms": delays[int(len(delays) * 0.99)]}


async def connection_kib(server: ServerProcess, count: int) -> dict[str, float]:
    async with connected(server, [[] for _ in range(50)], 1, 1, "early"):  # caches and pools of the first ones
        before = server.state()
        async with connected(server, [[] for _ in range(count)], 1, 1):
            after = server.state()
    return {"kib": (after["resident"] - before["resident"]) / count / 1024}


# --- what they send ---------------------------------------------------------------------------------------------------


def ipv_payloads(count: int) -> list[bytes]:
    """Return the outputs of the IPV task for page visits of the app's generator; the encoding is of random bytes."""
    sys.path.insert(0, str(IPV_TASK.parents[2]))
    from apps.ipv.generator import ShoppingEvents
    from walle.pipeline.stream.events import Events

    sys.path.insert(0, str(IPV_TASK))
    features = importlib.import_module("features")
    payloads: list[bytes] = []
    number = 0
    while True:
        visits: dict[str, list[Any]] = {}
        for position, event in ShoppingEvents(7, f"bench-{number}"):
            visit = visits.setdefault(event.page_id, [])
            visit.append(event)
            if event.event_id == "page_exit":
                output = {
                    "feature": features.ipv_feature(Events(visits.pop(event.page_id))),
                    "encoding": os.urandom(128),
                }
                payloads.append(plain.encode(output))
                if len(payloads) == count:
                    return payloads
            if position > 2_000:
                break
        number += 1


def upload_frames(payloads: list[bytes], devices: int, uploads: int) -> list[list[bytes]]:
    encoder = Encoder()
    own = uploads // devices
    return [
        [
            encoder.encode(
                protocol.Upload(seq, "ipv", payloads[(number * own + seq) % len(payloads)], 1_700_000_000_000)
            )
            for seq in range(1, own + 1)
        ]
        for number in range(devices)
    ]


# --- the store --------------------------------------------------------------------------------------------------------


async def commit_ms(rows: int) -> dict[str, float]:
    """Return milliseconds of a commit alone, and of the slowest while a query reads all rows of another topic."""
    with tempfile.TemporaryDirectory() as folder:
        async with Ingest(Path(folder) / "uploads.db") as ingest:
            payload = os.urandom(1000)
            for first in range(1, rows + 1, 1000):
                seqs = range(first, min(first + 1000, rows + 1))
                await ingest.accept([Received("d", "e", seq, "many", payload, 0, 0) for seq in seqs])
            seq = 0

            async def accept() -> float:
                nonlocal seq
                seq += 1
                began_s = time.perf_counter()
                await ingest.accept([Received("other", "e", seq, "one", payload, 0, 0)])
                return (time.perf_counter() - began_s) * 1000

            alone = [await accept() for _ in range(50)]

            async def read_all() -> int:
                read = after = 0
                while found := await ingest.query(topic="many", after=after, limit=rows):  # pages of bounded size
                    read, after = read + len(found), found[-1][0]
                return read

            reading = asyncio.create_task(read_all())
            await asyncio.sleep(0)
            beside = [await accept()]
            while not reading.done():
                beside.append(await accept())
            assert await reading == rows
    return {"alone_ms": statistics.median(alone), "beside_ms": statistics.median(beside), "worst_ms": max(beside)}


# --- the program ------------------------------------------------------------------------------------------------------


def build_peer(folder: Path) -> Path | None:
    """Compile the C++ server; return None, and say so, where that fails."""
    compiler = shutil.which("c++")
    if compiler is None:
        print("no C++ compiler: measured without the C++ server", file=sys.stderr)
        return None
    peer = folder / "tunnel_peer"
    command = [compiler, "-std=c++20", "-O2", str(PEER_SOURCE), "-o", str(peer), "-lssl", "-lcrypto"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        print(f"measured without the C++ server, which does not build:\n{built.stderr}", file=sys.stderr)
        return None
    return peer


def _loop_names() -> list[str]:
    loops = ["asyncio", *(["uvloop"] if importlib.util.find_spec("uvloop") else [])]
    return [*loops, *(f"{loop}+aiofastnet" for loop in loops if importlib.util.find_spec("aiofastnet"))]


def _run[T](loop: str, work: Coroutine[Any, Any, T], *, patched: bool = False) -> T:
    """Run in an event loop. The devices' loop is patched: their connections too have aiofastnet's transports."""
    name, _, transports = loop.partition("+")
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if name == "uvloop":
        factory = importlib.import_module("uvloop").new_event_loop
    if transports and patched:
        factory = importlib.import_module("aiofastnet").loop_factory(factory)
    return asyncio.run(work, loop_factory=factory)


type Work = Callable[[ServerProcess], Coroutine[Any, Any, dict[str, float]]]


WORKS = ("upload", "single", "ack", "bare", "buffered", "lone", "connection", "commit")


def _named_works(text: str) -> set[str]:
    names = set(text.split(","))
    if unknown := sorted(names - set(WORKS)):
        raise argparse.ArgumentTypeError(f"unknown work {unknown[0]!r}; choose from {','.join(WORKS)}")
    return names


def _works(options: argparse.Namespace, payloads: list[bytes]) -> list[tuple[str, str, Work]]:
    full = upload_frames(payloads, options.devices, options.uploads)
    single = upload_frames(payloads, ACK_DEVICES, options.uploads)
    large = b"".join(payloads[: LONE_BYTES // 900])[:LONE_BYTES]
    alone = upload_frames([large], 1, options.lone)[0]
    works: list[tuple[str, str, Work]] = [
        ("upload", "stores", lambda server: cpu_us(server, full, WINDOW, BATCH)),
        ("single", "stores", lambda server: cpu_us(server, single, 1, 1)),
        ("ack", "acknowledges", lambda server: cpu_us(server, single, 1, 1)),
        ("bare", "bare", lambda server: cpu_us(server, single, 1, 1)),
        ("buffered", "buffered", lambda server: cpu_us(server, single, 1, 1)),
        ("lone", "stores", lambda server: lone_ms(server, alone)),
        ("connection", "acknowledges", lambda server: connection_kib(server, options.connections)),
    ]
    return [work for work in works if work[0] in options.only]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    loops = _loop_names()
    payloads = ipv_payloads(2_000)
    works = _works(options, payloads)
    rounds: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        peer = build_peer(Path(folder))
        for _ in range(options.rounds):
            for name, kind, run in works:
                peers = [CPP] if peer is not None and name in ("bare", "lone", "connection") else []
                for loop in [*loops, *peers]:
                    with ServerProcess.start(loop, kind, peer if loop == CPP else None) as server:
                        found = _run(loops[-1], run(server), patched=True)
                    rounds.setdefault(loop, {}).setdefault(name, []).append(found)
    commit = _run(loops[0], commit_ms(options.rows)) if "commit" in options.only else {}
    return {
        "payload_bytes": round(statistics.mean(map(len, payloads))),
        "frame_bytes": round(statistics.mean(map(len, upload_frames(payloads, 1, len(payloads))[0]))),
        "commit": {key: round(value, 2) for key, value in commit.items()},
        "loops": {
            loop: {
                work: {key: round(statistics.median(one[key] for one in found), 2) for key in found[0]}
                for work, found in of_loop.items()
            }
            for loop, of_loop in rounds.items()
        },
    }


def main() -> None:
    if sys.argv[1:2] == [_SERVE]:
        _, _, folder, loop, kind = sys.argv
        map_tls_buffers()  # the programs do so too
        fast = "+" in loop
        if kind in ("bare", "buffered"):
            _run(loop, serve_bare(Path(folder), fast=fast, buffered=kind == "buffered"))
        else:
            _run(
                loop,
                serve(
                    Path(folder), fast=fast, stores=kind in ("stores", "ring"), ring=RING if kind == "ring" else None
                ),
            )
        return
    if "--link" in sys.argv:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from benchmarks import tunnel_delay

        tunnel_delay.main([argument for argument in sys.argv[1:] if argument != "--link"])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--uploads", type=int, default=20_000)
    parser.add_argument("--devices", type=int, default=50)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--lone", type=int, default=400, help="uploads of `lone`")
    parser.add_argument("--only", type=_named_works, default=set(WORKS), help=f"a list of {','.join(WORKS)}; all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options)
    if options.json:
        print(json.dumps(found))
        return
    print(f"payload {found['payload_bytes']} B, {found['frame_bytes']} B on the wire; commit: {found['commit']}")
    for loop, works in found["loops"].items():
        print(f"{loop:18}", "; ".join(_lines(works)))
    lone = {loop: works["lone"]["p99_ms"] for loop, works in found["loops"].items() if "lone" in works}
    if CPP in lone:
        print("lone p99 against C++:", ", ".join(f"{loop} {p99 / lone[CPP]:.2f} x" for loop, p99 in lone.items()))
    print_headlines(found["loops"])


def print_headlines(loops: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print the CPU time of an upload, and of a bare acknowledgement beside its peers, on the programs' event loop."""
    loop = [name for name in loops if name != CPP][-1]
    works = loops[loop]
    if "upload" in works:
        what = f"stored upload of about 1 KB, CPU time of the server ({loop})"
        print_headline(what, unit="µs", better="lower", ours=works["upload"]["cpu_us"])
    if "ack" in works:
        peers: dict[str, float | str] = {
            f"protocol of 20 lines that only answers, {name}": works[name]["cpu_us"]
            for name in ("bare", "buffered")
            if name in works
        }
        answers = loops.get(CPP, {}).get("bare")
        peers["C++ server that only answers"] = (
            answers["cpu_us"] if answers else "not measured: it needs a C++ compiler and OpenSSL's headers"
        )
        what = f"acknowledgement without a store, CPU time of the server ({loop})"
        print_headline(what, unit="µs", better="lower", ours=works["ack"]["cpu_us"], peers=peers)


def _lines(works: dict[str, dict[str, float]]) -> Iterator[str]:
    for name in ("upload", "single", "ack", "bare", "buffered"):
        if name in works:
            cpu = works[name]["cpu_us"]
            yield f"{name} {cpu:.1f} us CPU ({1e6 / max(cpu, 0.01):,.0f} a core-second)"
    if {"ack", "bare", "buffered"} <= works.keys():
        ack, bare, buffered = (works[name]["cpu_us"] for name in ("ack", "bare", "buffered"))
        yield f"ack is {ack / bare:.2f} x bare, {ack / buffered:.2f} x buffered"
    if "lone" in works:
        yield f"lone p50 {works['lone']['p50_ms']:.2f} ms, p99 {works['lone']['p99_ms']:.2f} ms"
    if "connection" in works:
        yield f"connection {works['connection']['kib']:.1f} KiB"


if __name__ == "__main__":
    main()
