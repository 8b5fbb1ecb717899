"""A device of the cloud-only baseline: it sends frames as JPEG and sound as 16-bit PCM, and reads the decisions.

Frames that have not changed are chosen as in the app, and not sent.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterable
from pathlib import Path
from typing import Any

import numpy as np

from apps.livestream.frame_choice import Choice, FrameChooser
from apps.livestream.media import Frame, Item, Sound
from apps.livestream.player import Decision
from benchmarks.highlights.stream_server import FULL_SCALE, HEAD, Kind
from walle import cv
from walle.base.clock import Clock, SystemClock

JPEG_QUALITY = 85  # quality of the highlight task's


class StreamClient:
    """One stream to the server at `port`, whose certificate's authority is in `ca_path`.

    Sound travels with the next frame, but for the first of a second, with which the second before is complete. `paced`
    says that the source has a pace, so that a decision's delay means something.
    """

    def __init__(self, port: int, ca_path: Path, *, paced: bool, clock: Clock | None = None) -> None:
        self.sent_bytes = 0  # bytes of messages, before TLS
        self._port = port
        self._ca_path = ca_path
        self._paced = paced
        self._clock = clock or SystemClock()
        self._chooser = FrameChooser()
        self._started_s: float | None = None

    async def play(self, source: AsyncIterable[Item]) -> list[Decision]:
        """Send a stream to its end and return what was decided.

        Raises:
            OSError, MediaError: the connection or the source failed.
        """
        context = ssl.create_default_context(cafile=str(self._ca_path))
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=context)
        try:
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(self._listen(reader))
                group.create_task(self._send_all(source, writer))
            return listening.result()
        finally:
            writer.close()

    async def _send_all(self, source: AsyncIterable[Item], writer: asyncio.StreamWriter) -> None:
        sounds: list[Sound] = []
        heard_second = -1
        async for item in source:
            if self._started_s is None:
                self._started_s = self._clock.monotonic() - item.pts_ms / 1000
            if isinstance(item, Sound):
                is_first = item.pts_ms // 1000 != heard_second
                heard_second = item.pts_ms // 1000
                if is_first:
                    self._write_sound(sounds, writer)
                    self._write_sound([item], writer)
                else:
                    sounds.append(item)
                continue
            self._write_sound(sounds, writer)
            await self._write_frame(item, writer)
        self._write_sound(sounds, writer)
        self._write(Kind.END, 0, b"", writer)
        await writer.drain()

    def _write_sound(self, sounds: list[Sound], writer: asyncio.StreamWriter) -> None:
        """Send chunks that follow one another as one message, and forget them."""
        while sounds:
            count = 1
            while count < len(sounds) and sounds[count].pts_ms == _end_ms(sounds[count - 1]):
                count += 1
            samples = np.concatenate([np.asarray(sound.samples) for sound in sounds[:count]])
            pcm = np.clip(np.rint(samples * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1).astype("<i2")
            self._write(Kind.SOUND, sounds[0].pts_ms, pcm.tobytes(), writer)
            del sounds[:count]

    async def _write_frame(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        image = np.asarray(frame.image)
        if self._chooser.choose(frame.pts_ms, image) is not Choice.ANALYSED:
            self._write(Kind.SAME, frame.pts_ms, b"", writer)
            return
        _, data = await asyncio.to_thread(cv.imencode, ".jpg", image, [cv.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
        self._write(Kind.FRAME, frame.pts_ms, memoryview(data).tobytes(), writer)
        await writer.drain()

    def _write(self, kind: Kind, pts_ms: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD.pack(kind, len(body), pts_ms) + body)
        self.sent_bytes += HEAD.size + len(body)

    async def _listen(self, reader: asyncio.StreamReader) -> list[Decision]:
        found = []
        async for line in reader:
            output: dict[str, Any] = json.loads(line)
            delay_s = None
            if self._paced and self._started_s is not None:
                delay_s = self._clock.monotonic() - self._started_s - (output["second"] + 1)
            found.append(Decision(second=output["second"], output=output, delay_s=delay_s))
        return found


def _end_ms(sound: Sound) -> int:
    return sound.pts_ms + len(sound.samples) // 16
