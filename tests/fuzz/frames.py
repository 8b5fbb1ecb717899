"""Fuzzing of the tunnel: mutated and random frames against the decoder, the server and the client.

    python -m tests.fuzz.frames --seconds 1800 --seed 1

Server and client run over real sockets and TLS. Allowed are a FrameError, a Refusal, the end of the connection, and
what a well-formed frame asks for. Afterwards, and between rounds, a good device must be served, and the memory of this
process must stay within MEMORY_BYTES of what it was after the first rounds.
"""

import argparse
import asyncio
import collections
import contextlib
import logging
import os
import random
import struct
import sys
import tempfile
import time
from pathlib import Path

import zstandard

from benchmarks.tunnel_authority import TunnelAuthority
from scripts.protocol_vectors import dictionary, read_vectors
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import RawDevice, running
from walle import protocol
from walle.pipeline.features.checksums import first_link
from walle.pipeline.tunnel.client.client import TunnelClient, TunnelClosedError, TunnelRefusedError
from walle.pipeline.tunnel.dictionaries import Dictionary
from walle.pipeline.tunnel.frames import Decoder, Encoder, FrameError
from walle.pipeline.tunnel.layouts import BY_NUMBER
from walle.pipeline.tunnel.server.server import ServerLimits

MEMORY_BYTES = 128 << 20
_WAIT_S = 10.0  # time within which a server or client must have answered
_LIMITS = ServerLimits(memory_bytes=16 << 20, device_bytes=9 << 20, linger_s=0.2, handlers=8)


class Mutator:
    """A source of byte strings that are nearly frames, from a seed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._frames = [bytes.fromhex(vector["frame"]) for vector in read_vectors() if "frame" in vector]

    def stream(self) -> bytes:
        """Return a few frames; at least one is changed, mostly."""
        return b"".join(self._frame() for _ in range(self.rng.randrange(1, 6)))

    def _frame(self) -> bytes:
        rng = self.rng
        choice = rng.random()
        if choice < 0.1:
            return rng.choice(self._frames)
        if choice < 0.2:
            return rng.randbytes(rng.randrange(1, 300))
        if choice < 0.4:
            return self._random_body()
        frame = bytearray(rng.choice(self._frames))
        for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
            self._change(frame)
        if rng.random() < 0.5 and len(frame) >= 8:  # the header fits again, so that the body is read
            frame[:4] = struct.pack(">I", len(frame) - 8)
        return bytes(frame)

    def _change(self, frame: bytearray) -> None:
        rng, at = self.rng, self.rng.randrange(len(frame)) if frame else 0
        match rng.randrange(6):
            case 0 if frame:
                frame[at] ^= 1 << rng.randrange(8)
            case 1 if frame:
                frame[at] = rng.choice((0, 1, 127, 128, 255))
            case 2:
                del frame[at : at + rng.randrange(1, 9)]
            case 3:
                frame[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                frame[at:at] = frame[at : at + rng.randrange(1, 64)]
            case _:
                numbers = (0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
                frame[at : at + 8] = struct.pack(">Q", rng.choice(numbers))

    def _random_body(self) -> bytes:
        rng = self.rng
        kind = rng.choice([*BY_NUMBER, rng.randrange(256)])
        body = rng.randbytes(rng.randrange(0, 200))
        flags = 0
        if rng.random() < 0.5:
            body = zstandard.compress(bytes(rng.choice((10, 1000, 100_000, 9 << 20))) if rng.random() < 0.2 else body)
            flags = 1
        return struct.pack(">IBBH", len(body), kind, flags, rng.choice((0, 0, 0, 1, 2, 65535))) + body


class Fuzzer:
    """One run: rounds of each kind in turn, with counts of what came of them."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._rng = random.Random(seed)
        self._mutator = Mutator(self._rng)
        self._authority = TunnelAuthority(folder / "authority")
        self._learned = Dictionary(dictionary())
        self._good_uploads = 0  # acknowledged uploads of the good device
        self.cloud = TunnelCloud(
            ssl_context=self._authority.server_context(), path=folder / "ingest.db", limits=_LIMITS
        )
        self.cloud.dictionaries = self._find

    async def _find(self, digest: str) -> bytes | None:
        return dictionary() if digest == self._learned.digest else None

    def decode(self) -> None:
        """Feed one stream to a decoder in random chunks."""
        decoder = Decoder()
        decoder.dictionaries = {1: self._learned}
        data, at = self._mutator.stream(), 0
        try:
            while at < len(data):
                end = at + self._rng.choice((1, 7, 100, 100_000))
                if self._rng.random() < 0.5:
                    self.counts["decoder: frames"] += len(decoder.feed(data[at:end]))
                else:
                    decoder.add(data[at:end])
                    self.counts["decoder: uploads"] += len(decoder.uploads(100, 1 << 20))
                    decoder.peek()
                at = end
        except FrameError:
            self.counts["decoder: refused"] += 1
        self.counts["decoder: streams"] += 1

    async def attack_server(self) -> None:
        """Send streams as a device, before or after its Hello, until the server has had enough."""
        async with RawDevice.connect(self._authority, self.cloud.server.port, 1) as device:
            if self._rng.random() < 0.8:
                hello = protocol.Hello(
                    "device-1", "fuzz", "", protocol=self._rng.choice((2, 3)), dictionaries=self._learned.digest
                )
                device.say(hello)
                assert isinstance(await device.hear(), protocol.Welcome | protocol.Refusal)
            with contextlib.suppress(ConnectionError):
                for _ in range(self._rng.randrange(1, 8)):
                    device.writer.write(self._mutator.stream())
                    await asyncio.wait_for(device.writer.drain(), _WAIT_S)
                if device.writer.can_write_eof():
                    device.writer.write_eof()
                device.writer.write(b"\xff" * 64)  # garbage in any state: the end is certain, once it is read
                await self._hear_to_the_end(device)
        self.counts["server: connections"] += 1

    async def _hear_to_the_end(self, device: RawDevice) -> None:
        try:
            async with asyncio.timeout(1.0):  # an unfinished frame swallows the bytes that end the connection
                while (frame := await device.hear()) is not None:
                    if isinstance(frame, protocol.Refusal):
                        self.counts[f"server: refused, {frame.code}"] += 1
        except TimeoutError:
            self.counts["server: waits for the rest of a frame"] += 1

    async def serve_a_good_device(self) -> None:
        """Upload and ask as a good device; the server must answer."""
        acked, self._good_uploads = self._good_uploads, self._good_uploads + 10
        async with asyncio.timeout(_WAIT_S), RawDevice.connect(self._authority, self.cloud.server.port, 2) as device:
            assert (await device.hello(2, "good")).acked == acked
            numbers = range(acked + 1, acked + 11)
            device.say(*(protocol.Upload(n, "t", b"x" * 100, n) for n in numbers), protocol.Request(1, "ask", b""))
            missing: set[protocol.Frame] = {protocol.Ack(acked + 10), protocol.Response(1, b"device-2 ask ")}
            while missing:
                heard = await device.hear()
                assert heard is not None
                missing.discard(heard)
        self.counts["server: good devices"] += 1

    async def attack_client(self) -> None:
        """Be a cloud that sends streams to a client, before or after its Welcome."""
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await reader.readexactly(8)
                if self._rng.random() < 0.8:
                    writer.write(Encoder().encode(protocol.Welcome(0, 10, first_link("epoch-1"))))
                for _ in range(self._rng.randrange(1, 8)):
                    writer.write(_without_addresses(self._mutator.stream()))
                    await writer.drain()
                writer.write(b"\xff" * 64)
            writer.close()
            self.counts["client: connections"] += 1
            ended.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=self._authority.server_context())
        outbox = MemoryOutbox()
        outbox.add("t", b"x" * 1000)
        client = TunnelClient(
            outbox,
            device_id="device-0",
            host="127.0.0.1",
            port=server.sockets[0].getsockname()[1],
            ssl_context=self._authority.device_context(),
            rng=random.Random(1),
            connect_s=0.5,
            backoff_s=0.001,
            backoff_max_s=0.002,
        )
        async with running(client) as task:
            asking = asyncio.create_task(client.request("ask", b"", timeout=0.2))
            async with asyncio.timeout(_WAIT_S):
                await ended.wait()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        if (error := task.exception()) is not None and not isinstance(error, TunnelRefusedError):
            raise error
        assert isinstance(client.last_error, TunnelClosedError | TunnelRefusedError | OSError | None)
        assert outbox.last_seq == 1 or outbox.epoch != "epoch-1"
        server.close()

    async def run(self, seconds: float) -> None:
        began_s, shown_s, base_bytes = time.monotonic(), time.monotonic(), 0
        async with self.cloud:
            while (now_s := time.monotonic()) < began_s + seconds:
                for _ in range(200):
                    self.decode()
                for _ in range(3):
                    await self.attack_server()
                await self.attack_client()
                await self.serve_a_good_device()
                if base_bytes == 0 and self.counts["server: good devices"] == 20:
                    base_bytes = _resident_bytes()
                grown_bytes = _resident_bytes() - base_bytes if base_bytes else 0
                assert grown_bytes < MEMORY_BYTES, f"{grown_bytes >> 20} MiB more than after the first rounds"
                if now_s > shown_s + 60:
                    shown_s = now_s
                    _show(f"{now_s - began_s:.0f} s: {dict(self.counts)}, {grown_bytes >> 20} MiB more")
            assert self.cloud.server.budget.requests == 0
            _show(f"{time.monotonic() - began_s:.0f} s: {grown_bytes >> 20} MiB more than after the first rounds")
        for name, count in sorted(self.counts.items()):
            _show(f"{count:>10,}  {name}")


def _without_addresses(data: bytes) -> bytes:
    """Replace names of other hosts, so that a fuzzed client stays on this machine."""
    return data.replace(b"tunnel-2.example", b"127.0.0.1.......")


def _show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Fuzz for a given time, and print the counts; end with an error at the first surprise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(Fuzzer(arguments.seed, Path(folder)).run(arguments.seconds))


if __name__ == "__main__":
    main()
