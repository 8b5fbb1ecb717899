"""Counters of memory, flash and network of this process on Linux."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path


def written_bytes() -> int:
    """Return how many bytes this process has handed to disks, in whole pages.

    Raises:
        OSError: the system does not count them.
    """
    for line in Path("/proc/self/io").read_text().splitlines():
        name, _, value = line.partition(": ")
        if name == "write_bytes":
            return int(value)
    raise OSError("/proc/self/io does not count written bytes")


def peak_memory_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status does not name the peak of its memory")


def write_back(folder: Path) -> None:
    """Write the dirty pages of a folder's files to the disk, as the kernel does after a while."""
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                opened = os.open(path, os.O_RDONLY)
                try:
                    os.fdatasync(opened)
                finally:
                    os.close(opened)


@dataclasses.dataclass(slots=True)
class Relay:
    """A relay in front of a server's port, in a thread of its own, for use in `with`.

    It counts the bytes of each direction: those of TCP, with TLS, without the headers of TCP and IP. `cpu_s` is the CPU
    time of the thread.
    """

    to_port: int
    port: int = 0
    connections: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    cpu_s: float = 0.0
    _works: set[asyncio.Task[None]] = dataclasses.field(default_factory=set)

    @contextlib.contextmanager
    def open(self) -> Iterator["Relay"]:
        started = concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()
        thread = threading.Thread(target=lambda: asyncio.run(self._run(started)), name="relay")
        thread.start()
        loop, stop = started.result()
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()

    async def _run(self, started: "concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]") -> None:
        stop = asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
        server.close()
        for work in self._works:
            work.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.to_port)
        self._works.add(asyncio.create_task(self._carry(reader, far_writer, up=True)))
        self._works.add(asyncio.create_task(self._carry(far_reader, writer, up=False)))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        try:
            while data := await reader.read(1 << 16):
                if up:
                    self.up_bytes += len(data)
                else:
                    self.down_bytes += len(data)
                writer.write(data)
                self.cpu_s = time.thread_time()
        except OSError:
            pass
        finally:
            writer.transport.close()
