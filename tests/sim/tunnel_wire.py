"""A tunnel link of a device without a network: the test is the cloud, and moves the clock."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from walle import protocol
from walle.base.clock import ManualClock
from walle.pipeline.tunnel.client.link import Link
from walle.pipeline.tunnel.frames import Decoder, Encoder


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def abort(self) -> None:
        pass


class TunnelWire:
    """A link after its Welcome, which came `round_trip_s` after the Hello."""

    def __init__(self, clock: ManualClock, round_trip_s: float | None) -> None:
        self.clock = clock
        self.link = Link(clock)
        self.encoder = Encoder()
        self._decoder = Decoder()
        self._transport = _Transport()
        self.link.connection_made(self._transport)
        self.link.accept(protocol.Welcome(0, 256, 0, window_bytes=1 << 20), [])
        if round_trip_s is not None:
            self.link.round_trip.note(round_trip_s, clock.monotonic())

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, round_trip_s: float | None) -> AsyncIterator["TunnelWire"]:
        wire = cls(ManualClock(), round_trip_s)
        probing = asyncio.create_task(wire.link.probe_tails(wire.encoder.encode))
        try:
            yield wire
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)

    def upload(self, seq: int, size_bytes: int = 100) -> None:
        upload = protocol.Upload(seq, "t", b"x" * size_bytes, 0)
        self.link.send([upload], self.encoder.encode(upload))

    def hear(self) -> list[protocol.Frame]:
        """Return what the device has written since the last call."""
        written, self._transport.written = self._transport.written, []
        return [frame for data in written for frame in self._decoder.feed(data)]

    def say(self, frame: protocol.Frame) -> None:
        self.link.data_received(self.encoder.encode(frame))
