"""One listening socket for all edge gateways of a node, each a process: who starts gets it from one that runs.

So a connection that waits to be accepted is lost with none of them: of sockets that each process opened for itself
(SO_REUSEPORT), the queue of one ends with its process. The socket goes through a Unix socket of each process, in a
folder that only this user may enter.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator
from pathlib import Path

_TIMEOUT_S = 5.0
_BACKLOG = 2048
_GIVEN = b"L"
_KIND = ".listener"  # ending of the files
_LOG = logging.getLogger(__name__)


class SharedListener:
    """The listening socket, offered to others that start until `leave`."""

    def __init__(self, socket_: socket.socket, folder: Path, offer: Path, offering: asyncio.Task[None]) -> None:
        self.socket = socket_
        self._folder = folder
        self._offer = offer
        self._offering = offering

    async def leave(self) -> bool:
        """Offer it no more; return whether another process continues to accept from the socket."""
        self._offering.cancel()
        await asyncio.gather(self._offering, return_exceptions=True)
        self._offer.unlink(missing_ok=True)
        taken = await _take(self._folder, self.socket.getsockname()[1])
        if taken is None:
            return False
        taken.close()
        return True


@contextlib.asynccontextmanager
async def shared_listener(folder: Path, host: str, port: int) -> AsyncIterator[SharedListener]:
    """Give the node's socket that listens on this port, made if no process in `folder` has it; the caller closes it.

    Raises:
        OSError: the port is taken by another program, or the folder cannot be used.
    """
    async with _locked(folder):
        listening = await _take(folder, port)
        if listening is None:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            # Shared with a process that is about to end, and gives its socket to nobody.
            listening = socket.create_server((host, port), family=family, backlog=_BACKLOG, reuse_port=True)
        path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{_KIND}"
        door = socket.socket(socket.AF_UNIX)
        try:
            door.bind(str(path))
            door.listen(16)
            door.setblocking(False)
        except OSError:
            door.close()
            listening.close()
            raise
        offering = asyncio.ensure_future(_give(door, listening))
    try:
        yield SharedListener(listening, folder, path, offering)
    finally:
        offering.cancel()
        await asyncio.gather(offering, return_exceptions=True)
        door.close()
        path.unlink(missing_ok=True)


def free_port(host: str, port: int) -> int:
    """Return the port, or one that the system chooses for 0.

    Raises:
        OSError: it is in use, also by another cloud: sockets with SO_REUSEPORT would share it without an error.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as probe:
        return int(probe.getsockname()[1])


async def _give(door: socket.socket, listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        caller, _ = await loop.sock_accept(door)
        with caller, contextlib.suppress(OSError):
            socket.send_fds(caller, [_GIVEN], [listening.fileno()])


async def _take(folder: Path, port: int) -> socket.socket | None:
    """Return the socket that a process in the folder gives, None where none does; files of dead ones are removed."""
    for path in await asyncio.to_thread(lambda: sorted(folder.glob(f"*{_KIND}"))):
        taken = await _take_from(path)
        if taken is not None and taken.getsockname()[1] == port:
            return taken
        if taken is not None:
            taken.close()
    return None


async def _take_from(path: Path) -> socket.socket | None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await loop.sock_connect(caller, str(path))
                loop.add_reader(caller, lambda: None if readable.done() else readable.set_result(None))
                try:
                    await readable
                finally:
                    loop.remove_reader(caller)
                _, descriptors, _, _ = socket.recv_fds(caller, 1, 1)
        except ConnectionRefusedError:
            await asyncio.to_thread(path.unlink, missing_ok=True)  # the process has ended
            return None
        except (OSError, TimeoutError) as error:
            why = str(error) or f"it does not answer within {_TIMEOUT_S:g} s"
            _LOG.warning("the process of %s does not give its socket: %s", path, why)
            return None
    return socket.socket(fileno=descriptors[0]) if descriptors else None


@contextlib.asynccontextmanager
async def _locked(folder: Path) -> AsyncIterator[None]:
    """Let one process at a time look for the socket and offer it; the lock goes with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        await asyncio.to_thread(fcntl.flock, descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
