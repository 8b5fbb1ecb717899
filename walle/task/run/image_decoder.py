"""Decoder of images that events of others name, in a VM with a separate process, within the layers of a VM host.

For the cloud's simulation and a device's smoke run. libjpeg and libpng are C: what a broken or hostile file makes them
do ends, or takes over, that process alone.
"""

import asyncio
import contextlib
import tempfile
from pathlib import Path

from walle.engine_ext import _core
from walle.engine_ext.vm.host import VmHost
from walle.engine_ext.vm.vm import VM
from walle.errors import VMError
from walle.pipeline.events.event import Event
from walle.pipeline.events.event_files import EventFiles
from walle.pipeline.events.transient_events import MAX_ARRAY_BYTES

_PROGRAM = """\
from walle import cv

def decode(data):
    return cv.imdecode(data)
"""
_DEADLINE_S = 20.0


class ImageDecoder:
    """A decoder whose process starts with the first image, and again after one has ended it. For one event loop.

    An image has at most `max_bytes` of pixels.
    """

    def __init__(self, host: VmHost, *, max_bytes: int = MAX_ARRAY_BYTES) -> None:
        self._host = host
        # An image and what decoding it takes beside.
        self._limits = {"memory_mb": max(24, 3 * max_bytes >> 20), "output_kb": (max_bytes >> 10) + 1024}
        self._vm: VM | None = None

    async def decode(self, data: bytes) -> _core.ndarray:
        """Return the image of a JPEG or PNG file: uint8 [height, width, 3], BGR.

        Raises:
            ValueError: it is not such a file, is damaged or too large, or has ended the process.
        """
        vm = self._vm
        if vm is None:
            vm = self._vm = await asyncio.to_thread(self._start)
        try:
            found = await vm.call("decode", data, deadline=_DEADLINE_S)
        except VMError as error:
            self.close()
            raise ValueError(f"cannot be decoded: {error}") from error
        if found is None:
            raise ValueError("is not a JPEG or PNG image, or is damaged")
        if not isinstance(found, _core.ndarray) or found.dtype != "uint8" or found.ndim != 3 or found.shape[2] != 3:
            self.close()
            raise ValueError("cannot be decoded: its process gave something else than an image")
        return found

    def _start(self) -> VM:
        with tempfile.TemporaryDirectory(prefix="walle-images-") as folder:
            (Path(folder) / "main.py").write_text(_PROGRAM)
            return VM(Path(folder), name="images", limits=self._limits, host=self._host, alone=True)

    def close(self) -> None:
        """End the process, if there is one."""
        if self._vm is not None:
            with contextlib.suppress(VMError):
                self._vm.close()
            self._vm = None


async def resolve_apart(
    files: EventFiles, event: Event, images: ImageDecoder | None, *, max_bytes: int = MAX_ARRAY_BYTES
) -> Event:
    """Return the event with arrays in the place of the files that it names, of at most `max_bytes` together.

    Images are decoded by `images`, without it in this process.

    Raises:
        EventError: as `EventFiles.resolved`.
    """
    if not files.has_any(event):
        return event
    if images is None:
        return await asyncio.to_thread(files.resolved, event, max_bytes=max_bytes)
    loop = asyncio.get_running_loop()

    def decode_image(data: bytes) -> _core.ndarray:
        return asyncio.run_coroutine_threadsafe(images.decode(data), loop).result()

    return await asyncio.to_thread(files.resolved, event, decode_image, max_bytes=max_bytes)
