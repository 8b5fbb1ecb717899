"""A source of frames and sound for asyncio: decoding in a thread, bounded hand-over, real-time pace."""

import asyncio
import collections
import concurrent.futures
import dataclasses
import math
import os
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Literal, Self

import av

from apps.livestream.media.address import Address
from apps.livestream.media.decoder import Decoder, DecoderSettings
from apps.livestream.media.errors import ConnectionLostError, MediaError
from apps.livestream.media.items import SAMPLE_RATE, Allocate, Frame, Item, Sound
from apps.livestream.media.limits import MediaLimits
from apps.livestream.media.report import Gap, SourceReport
from apps.livestream.media.sampling import FrameSampler
from apps.livestream.media.sound import SoundFormat
from apps.livestream.media.stop import StopSignal
from walle.base.clock import Clock, SystemClock
from walle.errors import ConfigError

WhenBehind = Literal["wait", "drop"]
_MAX_FRAMES_PER_SECOND = 1_000
_BATCH = 4  # frames of a file that one change of threads moves


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceInfo:
    """An opened source. Sizes are the coded ones; `duration_ms` is the container's, None for a live source."""

    has_video: bool
    has_sound: bool
    live: bool
    width: int | None
    height: int | None
    duration_ms: int | None
    container: str


def open_source(
    where: str | os.PathLike[str],
    *,
    frames_per_second: float | Fraction | None = None,
    max_side: int | None = None,
    sound_ms: int = 100,
    pace: float | None = None,
    when_behind: WhenBehind | None = None,
    queue_frames: int = 4,
    allocate: Allocate | None = None,
    limits: MediaLimits | None = None,
    decoder_threads: int = 1,
    clock: Clock | None = None,
) -> "Source":
    """Return a source of frames and sound; `async with` opens it, `async for` reads it.

    `where` is a file, "webcam" or "webcam:/dev/videoN", or an http://, https:// or rtsp:// address.
    `frames_per_second` chooses the nearest frame to each 1/n second, None all; `max_side` bounds an image's sides in
    pixels. Chunks of sound have `sound_ms` milliseconds. `pace` 1 delivers in real time, 2 twice as fast, None as fast
    as the consumer reads; a live source has its own pace. A consumer that is behind lets a file wait, and makes a live
    source drop the oldest queued frame of `queue_frames`; `when_behind` chooses otherwise. Sound is never dropped.
    `allocate` gives the buffers of images and samples, into which they are copied; it is called in the decoding thread.
    Without it they are NumPy arrays, of the scaler's own memory where that is contiguous.

    Raises:
        ConfigError: a setting is out of range.
    """
    _check("frames_per_second", frames_per_second, 0, _MAX_FRAMES_PER_SECOND)
    _check("max_side", max_side, 0, 1 << 16)
    _check("sound_ms", sound_ms, 0, 10_000)
    _check("pace", pace, 0, 1_000_000)
    _check("queue_frames", queue_frames, 0, 10_000)
    settings = DecoderSettings(
        frames_per_second=None if frames_per_second is None else Fraction(frames_per_second).limit_denominator(100_000),
        max_side=max_side,
        sound=SoundFormat(chunk=sound_ms * SAMPLE_RATE // 1000),
        allocate=allocate,
        limits=limits or MediaLimits(),
        threads=decoder_threads,
    )
    return Source(where, settings, pace, when_behind, queue_frames, clock or SystemClock())


class Source:
    """Frames and sound of one source, for one consumer. Made by `open_source`.

    Leaving the `async with` block, or cancelling its task, ends the decoding thread: at once for a file or HTTP, within
    `MediaLimits.stall_s` for RTSP and while connecting.
    """

    def __init__(
        self,
        where: str | os.PathLike[str],
        settings: DecoderSettings,
        pace: float | None,
        when_behind: WhenBehind | None,
        queue_frames: int,
        clock: Clock,
    ) -> None:
        self._where = where
        self._settings = settings
        self._pace = pace
        self._when_behind = when_behind
        self._queue_frames = queue_frames
        self._queue_sound_ms = 0.0
        self._clock = clock
        self._queue: collections.deque[Item] = collections.deque()
        self._changed = asyncio.Event()  # an item or the end is there
        self._room = asyncio.Event()  # an item was taken
        self._stop = StopSignal()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="media")
        self._decoder: Decoder | None = None
        self._pump_task: asyncio.Task[None] | None = None
        self._ended = False
        self._failure: BaseException | None = None
        self._raised: Exception | None = None  # error of the decoder, behind items that are delivered first
        self._pace_start: tuple[float, int] | None = None
        self._sampler = FrameSampler[av.VideoFrame](settings.frames_per_second)
        self.report = SourceReport(where=os.fspath(where))
        self._info: SourceInfo | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def info(self) -> SourceInfo:
        assert self._info is not None, "the source is not open: use `async with`"
        return self._info

    async def start(self) -> None:
        """Open the source and begin to decode.

        Raises:
            MediaError: it cannot be read; each kind of reason has its class.
        """
        address = Address.parse(self._where)
        self.report.where = address.shown
        try:
            decoder = await self._open(address, 0)
        except BaseException:
            await self.close()
            raise
        media = decoder.media
        live = media.live
        duration = None if live or media.end_ns is None else (media.end_ns - (media.start_ns or 0)) // 1_000_000
        self._info = SourceInfo(
            has_video=media.video is not None,
            has_sound=media.sound is not None,
            live=live,
            width=None if media.video is None else media.video.codec_context.width,
            height=None if media.video is None else media.video.codec_context.height,
            duration_ms=duration,
            container=media.format,
        )
        if self._when_behind is None:
            self._when_behind = "drop" if live else "wait"
        self._queue_sound_ms = 1000 * self._settings.limits.sound_queue_s
        if self._when_behind == "wait":
            self._queue_sound_ms = min(self._queue_sound_ms, 2_000)
        self._pump_task = asyncio.create_task(self._pump(address), name=f"media {self.report.where}")

    async def close(self) -> None:
        """End the decoding and close the source. What was decoded and not delivered is counted in the report."""
        self._stop.set()
        if self._pump_task is not None:
            self._pump_task.cancel()
            await asyncio.gather(self._pump_task, return_exceptions=True)
        await self._finish_thread()
        if not self.report.end:
            self.report.end = "closed by the consumer"
        for item in self._queue:
            self._count_undelivered(item)
        self._queue.clear()
        self._ended = True
        self._changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        """Return the next frame or chunk of sound.

        Raises:
            MediaError: the source failed; all that was decoded before has been delivered.
        """
        assert self._pump_task is not None, "the source is not open: use `async with`"
        while not self._queue:
            if self._ended:
                if self._failure is not None:
                    raise self._failure
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        item = self._queue.popleft()
        self._room.set()
        if isinstance(item, Frame):
            self.report.frames.delivered += 1
        else:
            self.report.sound.delivered += len(item.samples)
        return item

    async def _pump(self, address: Address) -> None:
        """Move items from the decoding thread to the consumer's queue."""
        attempt = 0
        try:
            while True:
                try:
                    items = await self._call(self._next)
                except ConnectionLostError as error:
                    attempt = await self._reconnect(address, error, attempt)
                    continue
                if not items:
                    break
                attempt = 0
                await self._deliver_all(items)
        except Exception as error:  # noqa: BLE001 - the consumer raises it
            self._failure = error
            if not self.info.live:
                self.report.complete = False
            self.report.end = self.report.end or str(error)
        finally:
            self._ended = True
            self._changed.set()

    async def _deliver(self, item: Item) -> None:
        try:
            await self._wait_for_its_time(item)
            await self._wait_for_room(item)
        except asyncio.CancelledError:
            self._count_undelivered(item)
            raise
        self._queue.append(item)
        self._changed.set()

    async def _deliver_all(self, items: list[Item]) -> None:
        remaining = collections.deque(items)
        try:
            while remaining:
                await self._deliver(remaining.popleft())
        finally:
            for item in remaining:
                self._count_undelivered(item)

    async def _wait_for_its_time(self, item: Item) -> None:
        if self._pace is None or self.info.live:
            return
        now = self._clock.monotonic()
        if self._pace_start is None:
            self._pace_start = (now, item.pts_ms)
        start_s, start_ms = self._pace_start
        due_s = start_s + (item.pts_ms - start_ms) / 1000 / self._pace
        if due_s > now:
            await self._clock.sleep(due_s - now)

    async def _wait_for_room(self, item: Item) -> None:
        while True:
            if isinstance(item, Frame):
                if self._count(Frame) < self._queue_frames:
                    return
                if self._when_behind == "drop":
                    del self._queue[next(at for at, queued in enumerate(self._queue) if isinstance(queued, Frame))]
                    self.report.frames.dropped += 1
                    return
            elif self._count(Sound) * 1000 * len(item.samples) / SAMPLE_RATE < self._queue_sound_ms:
                return
            self._room.clear()
            await self._room.wait()

    def _count(self, kind: type[Item]) -> int:
        return sum(isinstance(item, kind) for item in self._queue)

    async def _reconnect(self, address: Address, lost: MediaError, attempt: int) -> int:
        """Open a live source again after a loss; return the number of attempts since the last item.

        Raises:
            ConnectionLostError: it did not come back.
        """
        assert self._decoder is not None
        decoder, limits = self._decoder, self._settings.limits
        lost_s = self._clock.monotonic()
        await self._deliver_all(await self._call(decoder.drain))
        if not decoder.media.live:
            raise lost
        end_ns = decoder.end_ns
        await self._call(decoder.close)
        while attempt < limits.reconnects:
            await self._clock.sleep(limits.backoff(attempt))
            attempt += 1
            gap_ns = int((self._clock.monotonic() - lost_s) * 1e9)
            try:
                await self._open(address, end_ns + gap_ns)
            except MediaError as error:  # a server that starts may refuse at first
                lost = error
                continue
            self.report.reconnects += 1
            self.report.add_gap(Gap(end_ns // 1_000_000, (end_ns + gap_ns) // 1_000_000, str(lost)))
            return attempt
        raise ConnectionLostError(
            self.report.where, f"the stream did not come back after {attempt} attempts ({lost})", end_ns // 1_000_000
        )

    async def _open(self, address: Address, shift_ns: int) -> Decoder:
        self._decoder = await self._call(
            lambda: Decoder(address, self._settings, self.report, self._stop, sampler=self._sampler, shift_ns=shift_ns)
        )
        return self._decoder

    def _next(self) -> list[Item]:
        """Return the next item, of a file some at once, or none at the end. An error waits for the items before it."""
        assert self._decoder is not None
        if self._raised is not None:
            raise self._raised
        items: list[Item] = []
        most = 1 if self._decoder.media.live else min(self._queue_frames, _BATCH)
        frames = 0
        try:
            while frames < most and len(items) < 4 * most and (item := self._decoder.next()) is not None:
                items.append(item)
                frames += isinstance(item, Frame)
                if most == 1:
                    break
        except Exception as error:
            if not items:
                raise
            self._raised = error
        return items

    async def _call[T](self, function: Callable[[], T]) -> T:
        """Return what the function returns in the decoding thread; a cancelled item is counted."""
        future = self._thread.submit(function)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._count_abandoned)
            raise

    def _count_abandoned(self, future: concurrent.futures.Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None:
            result = future.result()
            for item in result if isinstance(result, list) else [result]:
                if isinstance(item, Frame | Sound):
                    self._count_undelivered(item)
                elif isinstance(item, Decoder):
                    item.close()

    def _count_undelivered(self, item: Item) -> None:
        if isinstance(item, Frame):
            self.report.frames.undelivered += 1
        else:
            self.report.sound.undelivered += len(item.samples)

    async def _finish_thread(self) -> None:
        """Close the decoder in its thread, and wait until that has ended."""
        decoder, self._decoder = self._decoder, None
        try:
            future = self._thread.submit(decoder.close if decoder is not None else lambda: None)
        except RuntimeError:  # closed before
            return
        await asyncio.shield(asyncio.wrap_future(future))
        self._thread.shutdown()  # waits for the last instructions only: the thread's last call is done


def _check(name: str, value: float | Fraction | None, low: float, high: float) -> None:
    if value is not None and not (math.isfinite(value) and low < value <= high):
        raise ConfigError(f"{name} is {value}; give a number above {low:g} and up to {high:g}")
