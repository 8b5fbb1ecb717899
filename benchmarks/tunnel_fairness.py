"""Fairness of the tunnel's server under overload (§5.2): delays of light devices, shares of equal ones, cut-offs.

The server (receive, store durably in SQLite, acknowledge) runs in a process of its own, over TLS 1.3 on loopback.
Devices are driven by this process:

- heavy: keep their window of unacknowledged uploads full, as devices that come back after an outage.
- light: send one upload each 0.1 s, and wait for its acknowledgement before the next one.

Printed for each run, without its first two seconds:

- light p50, p99 and worst: seconds to an acknowledgement; one that has not come by the end counts as the time waited.
- queue: mean seconds of all uploads from their receipt until the pump took them.
- ratio: light p99 over queue.
- Jain: Jain's index of the bytes acknowledged to the heavy devices: 1 if all got equally much, 1/n if one got all.
- cut off: connections that the server closed, by the reason.
- uploads a second of wall time, and of the server's CPU time (user and system, all threads); its peak resident memory.

    python -m benchmarks.tunnel_fairness [--heavy 50] [--light 20] [--seconds 12] [--bytes 1024] [--runs 1] [--json]
"""

import argparse
import asyncio
import collections
import contextlib
import importlib
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, cast

from benchmarks.headline import print_headline
from benchmarks.tunnel_authority import TunnelAuthority
from walle import protocol
from walle.cloud.http.malloc import map_tls_buffers
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
from walle.pipeline.ingest.supervisor import PumpSupervisor
from walle.pipeline.tunnel.frames import Decoder, Encoder
from walle.pipeline.tunnel.received import Received
from walle.pipeline.tunnel.server.server import ServerLimits, TunnelServer

_SERVE = "--serve"
_WARM_UP_S = 2.0
_LIGHT_EVERY_S = 0.1
_WRITE_UPLOADS = 64  # uploads that a heavy device writes at once


# --- the server's process ---------------------------------------------------------------------------------------------


class TimedServer(TunnelServer):
    """A server that sums how long uploads waited for the pump."""

    taken = 0
    queued_ms = 0

    async def arrived(self, limit: int) -> list[Received]:
        batch = await super().arrived(limit)
        now_ms = int(time.time() * 1000)
        self.taken += len(batch)
        self.queued_ms += sum(now_ms - received.received_ms for received in batch)
        return batch


async def _echo(_device_id: str, _topic: str, payload: bytes) -> bytes:
    return payload


async def _serve(folder: Path) -> None:
    """Serve until stdin ends: print the port, and answer each line with counts so far."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as undo:
        ingest = await undo.enter_async_context(Ingest(folder / "uploads.db"))
        server = TimedServer(
            ssl_context=TunnelAuthority(folder / "authority").server_context(),
            resume=ingest.resume,
            on_request=_echo,
            limits=ServerLimits(),
        )
        await undo.enter_async_context(server)
        pumping = asyncio.create_task(PumpSupervisor(server, ingest).run())
        undo.callback(pumping.cancel)
        print(server.port, flush=True)
        while await loop.run_in_executor(None, sys.stdin.readline):
            state = {
                "cpu_s": time.process_time(),
                "taken": server.taken,
                "queued_ms": server.queued_ms,
                "refusals": dict(server.counts.refusals),
                "pauses": server.counts.pauses,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
            print(json.dumps(state), flush=True)


class ServerProcess:
    """The server's process, as its devices see it."""

    def __init__(self, process: subprocess.Popen[str], authority: TunnelAuthority) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self.port = int(self._stdout.readline())
        self.authority = authority

    @classmethod
    @contextlib.contextmanager
    def start(cls) -> Iterator[Self]:
        with tempfile.TemporaryDirectory() as name:
            authority = TunnelAuthority(Path(name) / "authority")
            command = [sys.executable, "-m", "benchmarks.tunnel_fairness", _SERVE, name]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
                try:
                    yield cls(process, authority)
                finally:
                    process.kill()

    def state(self) -> dict[str, Any]:
        self._stdin.write("\n")
        self._stdin.flush()
        return cast("dict[str, Any]", json.loads(self._stdout.readline()))


# --- devices ----------------------------------------------------------------------------------------------------------


class UploadTemplate:
    """Frames of uploads that differ in their number only; the payload does not compress."""

    def __init__(self, size_bytes: int) -> None:
        frame = Encoder().encode(protocol.Upload(1, "t", os.urandom(size_bytes), 0))
        self._head, self._tail = frame[:8], frame[16:]
        assert frame == self.frame(1)

    def frame(self, seq: int) -> bytes:
        return self._head + seq.to_bytes(8) + self._tail


class Device(asyncio.Protocol):
    """A device that keeps `window` uploads unacknowledged."""

    def __init__(self, template: UploadTemplate, window: int) -> None:
        self.acked = 0
        self.cut_off = ""
        self.welcomed = asyncio.Event()
        self.acknowledged = asyncio.Event()
        self._template = template
        self._window = window
        self._sent = 0
        self._decoder = Decoder()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.cut_off = self.cut_off or f"lost: {exc}"
        self.welcomed.set()
        self.acknowledged.set()

    def hello(self, device_id: str) -> None:
        self._transport.write(Encoder().encode(protocol.Hello(device_id, "epoch", "")))

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            if isinstance(frame, protocol.Ack):
                self.acked = max(self.acked, frame.seq)
                self.acknowledged.set()
                if self._window > 1:
                    self.fill_window()
            elif isinstance(frame, protocol.Refusal):
                self.cut_off = frame.code
            else:
                self.welcomed.set()

    def fill_window(self) -> None:
        while (first := self._sent + 1) <= self.acked + self._window:
            last = min(self._sent + _WRITE_UPLOADS, self.acked + self._window)
            self._transport.write(b"".join(map(self._template.frame, range(first, last + 1))))
            self._sent = last

    async def send_lightly(self, delays: list[tuple[float, float]], end_s: float) -> None:
        """Send one upload each 0.1 s until `end_s`; append (time of sending, seconds to its acknowledgement)."""
        while (sent_s := time.perf_counter()) < end_s and not self.cut_off:
            self.acknowledged.clear()
            self.fill_window()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(end_s - sent_s):
                    while self.acked < self._sent and not self.cut_off:
                        await self.acknowledged.wait()
                        self.acknowledged.clear()
            delays.append((sent_s, time.perf_counter() - sent_s))
            await asyncio.sleep(max(0.0, sent_s + _LIGHT_EVERY_S - time.perf_counter()))

    def close(self) -> None:
        self._transport.abort()


@contextlib.asynccontextmanager
async def _connected(
    server: ServerProcess, count: int, name: str, size_bytes: int, window: int
) -> AsyncIterator[list[Device]]:
    devices: list[Device] = []
    try:
        for number in range(count):
            device = Device(UploadTemplate(size_bytes), window)
            context = server.authority.device_context(f"{name}-{number}")
            make = asyncio.get_running_loop().create_connection
            await make(lambda device=device: device, "127.0.0.1", server.port, ssl=context)  # type: ignore[misc]
            device.hello(f"{name}-{number}")
            devices.append(device)
        for device in devices:
            await device.welcomed.wait()
        yield devices
    finally:
        for device in devices:
            device.close()


def _device_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the maker of the devices' event loop, with aiofastnet's transports where it is installed."""
    if importlib.util.find_spec("aiofastnet") is None:
        return asyncio.new_event_loop
    made: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("aiofastnet").loop_factory(
        asyncio.new_event_loop
    )
    return made


async def run(server: ServerProcess, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one run."""
    async with (
        _connected(server, options.heavy, "heavy", options.bytes, 256) as heavy,
        _connected(server, options.light, "light", 1024, 1) as light,
    ):
        began_s = time.perf_counter()
        delays: list[tuple[float, float]] = []
        works = [asyncio.create_task(device.send_lightly(delays, began_s + options.seconds)) for device in light]
        for device in heavy:
            device.fill_window()
        await asyncio.sleep(_WARM_UP_S)
        before, before_s, acked = server.state(), time.perf_counter(), [device.acked for device in heavy]
        await asyncio.sleep(options.seconds - _WARM_UP_S)
        after, wall_s = server.state(), time.perf_counter() - before_s
        shares = [device.acked - was for device, was in zip(heavy, acked, strict=True)]
        cut_off = collections.Counter(device.cut_off for device in [*heavy, *light] if device.cut_off)
        await asyncio.gather(*works)
    taken = after["taken"] - before["taken"]
    late = sorted(delay_s for sent_s, delay_s in delays if sent_s + delay_s >= before_s)
    figures = {
        "queue_s": (after["queued_ms"] - before["queued_ms"]) / max(1, taken) / 1000,
        "jain": _jain(shares),
        "cut_off": dict(cut_off),
        "per_s": taken / wall_s,
        "per_core_s": taken / (after["cpu_s"] - before["cpu_s"]),
        "peak_mb": after["peak_mb"],
    }
    if late:
        p99_s = late[min(len(late) - 1, int(len(late) * 0.99))]
        figures |= {"p50_s": statistics.median(late), "p99_s": p99_s, "worst_s": late[-1]}
        figures["ratio"] = p99_s / max(1e-3, cast("float", figures["queue_s"]))
    return figures


def _jain(shares: list[int]) -> float:
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def _line(figures: Mapping[str, Any]) -> str:
    light = (
        "light p50 {p50_s:.3f} p99 {p99_s:.3f} worst {worst_s:.3f} s, ratio {ratio:.2f}; " if "p50_s" in figures else ""
    )
    rest = (
        "queue {queue_s:.3f} s; Jain {jain:.4f}; cut off {cut_off}; {per_s:,.0f} uploads/s, "
        "{per_core_s:,.0f} a core-second; peak {peak_mb:.0f} MB"
    )
    return (light + rest).format(**figures)


def main() -> None:
    if sys.argv[1:2] == [_SERVE]:
        map_tls_buffers()  # the programs do so too
        asyncio.run(_serve(Path(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heavy", type=int, default=50)
    parser.add_argument("--light", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=12.0, help="of one run; more than 2")
    parser.add_argument("--bytes", type=int, default=1024, help="of an upload of a heavy device")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs = []
    for _ in range(options.runs):
        with ServerProcess.start() as server:
            figures = asyncio.run(run(server, options), loop_factory=_device_loop())
        print(json.dumps(figures) if options.json else _line(figures), flush=True)
        runs.append(figures)
    if options.json:
        return
    if all("p99_s" in figures for figures in runs):
        what = f"acknowledgement of a light device beside {options.heavy} with full windows, p99"
        p99_s = statistics.median(figures["p99_s"] for figures in runs)
        print_headline(what, unit="s", better="lower", ours=p99_s)
    what = f"Jain's index of fairness among {options.heavy} devices with full windows"
    jain = statistics.median(figures["jain"] for figures in runs)
    print_headline(what, unit="of 1", better="higher", ours=jain)


if __name__ == "__main__":
    main()
