"""Device actor: devices in a separate process, each with a driver that plays its user."""

import asyncio
import contextlib
import importlib
import os
from collections.abc import Sequence
from typing import Any, Protocol

from walle.actors.node import returns_errors
from walle.device import Device, DeviceConfig, DeviceSummary


class Driver(Protocol):
    """Player of a device's user: made by a factory(device, options), runs until it is done or `finish` is called."""

    async def run(self) -> None: ...
    def finish(self) -> None: ...
    def counts(self) -> dict[str, Any]: ...


class DeviceActor:
    """Hosts devices. `driver` names the factory of drivers, `package.module:function`; `options` go to it as is."""

    def __init__(self, configs: Sequence[DeviceConfig], driver: str, options: dict[str, Any]) -> None:
        self._configs = configs
        self._driver = driver
        self._options = options
        self._undo = contextlib.AsyncExitStack()
        self._devices: list[Device] = []
        self._drivers: list[Driver] = []
        self._playing: list[asyncio.Task[None]] = []

    @returns_errors
    async def start(self) -> int:
        """Start the devices and their drivers; return the process's id."""
        module, _, function = self._driver.partition(":")
        make_driver = getattr(importlib.import_module(module), function)
        for config in self._configs:
            self._devices.append(await self._undo.enter_async_context(Device(config)))
        self._drivers = [make_driver(device, self._options) for device in self._devices]
        self._playing = [asyncio.create_task(driver.run()) for driver in self._drivers]
        return os.getpid()

    @returns_errors
    async def settle(self) -> None:
        """Let the drivers come to an end, and everything that was produced reach the cloud."""
        for driver in self._drivers:
            driver.finish()
        await asyncio.gather(*self._playing)
        for device in self._devices:
            await device.settled()

    @returns_errors
    async def summaries(self) -> list[tuple[DeviceSummary, dict[str, Any]]]:
        """Return each device as it is, and its driver's counts. A driver that failed fails here."""
        for playing in self._playing:
            if playing.done():
                playing.result()  # raises what a driver raised
        both = zip(self._devices, self._drivers, strict=True)
        return [(await device.summary(), driver.counts()) for device, driver in both]

    @returns_errors
    async def close(self) -> None:
        for playing in self._playing:
            playing.cancel()
        await asyncio.gather(*self._playing, return_exceptions=True)
        await self._undo.aclose()
