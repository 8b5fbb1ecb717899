"""The asyncio side of a process of devices: executes the commands of locust's users (`loadtest.device_process`)."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol


class CommandedDevice(Protocol):
    """A device of a load test. Its commands are methods by name; `finish` says what it did, once all is done."""

    calls: asyncio.Lock  # one call at a time; the last one may be under way when locust ends

    @property
    def commands(self) -> Mapping[str, Callable[..., Awaitable[Any]]]: ...

    async def finish(self) -> dict[str, Any]: ...


class Commands:
    """Executes the users' commands. A device is made by the first command that names it."""

    def __init__(self, make: Callable[[str], CommandedDevice]) -> None:
        self._make = make
        self._devices: dict[str, CommandedDevice] = {}

    async def execute(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return the result: milliseconds, and an error if it failed."""
        began_s = time.perf_counter()
        answer: dict[str, Any] = {"id": command["id"], "error": ""}
        try:
            answer["result"] = await self._call(command)
        except Exception as error:  # noqa: BLE001 - a call that failed is a wrong result; one without an answer hangs
            answer["error"] = f"{type(error).__name__}: {error}"
        return answer | {"ms": (time.perf_counter() - began_s) * 1000}

    async def _call(self, command: dict[str, Any]) -> Any:
        if command["call"] == "ready":
            return None
        if command["call"] == "finish":
            found = await asyncio.gather(*(device.finish() for device in self._devices.values()))
            return dict(zip(self._devices, found, strict=True))
        device_id = command["device"]
        if device_id not in self._devices:
            self._devices[device_id] = self._make(device_id)
        device = self._devices[device_id]
        async with device.calls:
            return await device.commands[command["call"]](**command["arguments"])


async def serve(connection: socket.socket, commands: Commands) -> None:
    """Execute commands until the other side closes."""
    reader, writer = await asyncio.open_connection(sock=connection)
    tasks = set[asyncio.Task[None]]()

    async def execute(line: bytes) -> None:
        answer = await commands.execute(json.loads(line))
        writer.write(json.dumps(answer).encode() + b"\n")

    while line := await reader.readline():
        task = asyncio.create_task(execute(line))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
