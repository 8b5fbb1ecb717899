"""Hand-over of a listening socket to the process that takes its owner's place, by a Unix socket of the cloud's folder.

When a socket with SO_REUSEPORT is closed, the connections in its queue are lost. So the successor gets the socket
itself, and the owner accepts no more once the successor says that it serves.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

_TIMEOUT_S = 30.0  # for the successor to serve
_TOKEN = b"L"
_SERVES = b"S"


@contextlib.asynccontextmanager
async def offering(path: Path, listener: socket.socket, on_taken: Callable[[], None]) -> AsyncIterator[None]:
    """Offer a listening socket at `path` within the block; `on_taken` is called once a successor serves on it.

    The file of a predecessor is replaced. Who may enter the folder may take the socket.

    Raises:
        OSError: the file cannot be made.
    """
    with socket.socket(socket.AF_UNIX) as door:
        inode = await asyncio.to_thread(_open, door, path)
        offer = asyncio.ensure_future(_offer(door, listener, on_taken))
        try:
            yield
        finally:
            offer.cancel()
            await asyncio.gather(offer, return_exceptions=True)
            await asyncio.to_thread(_remove, path, inode)


def _open(door: socket.socket, path: Path) -> int:
    path.unlink(missing_ok=True)
    door.bind(str(path))
    door.listen(4)
    door.setblocking(False)
    return path.stat().st_ino


def _remove(path: Path, inode: int) -> None:
    with contextlib.suppress(OSError):
        if path.stat().st_ino == inode:  # else it is the successor's
            path.unlink()


async def _offer(door: socket.socket, listener: socket.socket, on_taken: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        caller, _ = await loop.sock_accept(door)
        with caller:
            try:
                socket.send_fds(caller, [_TOKEN], [listener.fileno()])
                async with asyncio.timeout(_TIMEOUT_S):
                    said = await loop.sock_recv(caller, 1)
            except (OSError, TimeoutError):
                continue
        if said == _SERVES:
            on_taken()
            return


@contextlib.asynccontextmanager
async def taking(path: Path) -> AsyncIterator[socket.socket | None]:
    """Give the listening socket that is offered at `path`, None where nobody offers one.

    At the end of the block, which serves on the socket, its owner accepts no more; an error leaves it to the owner.
    """
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)
        try:
            await loop.sock_connect(caller, str(path))
            taken = await _receive(caller)
        except (OSError, TimeoutError):
            taken = None
        yield taken
        if taken is not None:
            with contextlib.suppress(OSError):
                await loop.sock_sendall(caller, _SERVES)


async def _receive(caller: socket.socket) -> socket.socket | None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(caller, lambda: None if readable.done() else readable.set_result(None))
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await readable
    finally:
        loop.remove_reader(caller)
    _, descriptors, _, _ = socket.recv_fds(caller, 1, 1)
    return socket.socket(fileno=descriptors[0]) if descriptors else None
