"""Clips behind one another as one stream without an end: frames and sound at one rate, and the clip of each second.

Each clip begins at a whole second, so that its seconds are those of its labels. Where a clip has no sound, or less of
it than pictures, silence is played: a second is only decided once the stream's sound is past it.
"""

import bisect
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from apps.livestream.media import Frame, Item, Sound, open_source
from apps.livestream.quality.labels import Clip
from walle.base.clock import Clock, SystemClock
from walle.vm import shared_empty

FRAMES_PER_SECOND = 4
MAX_SIDE = 1280  # size of the frames, equal to the demo's
CHUNK_MS = 100  # length of a piece of sound
LATE_S = 0.5  # a later frame is dropped at a pace, like in a camera's queue
_RATE = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Info:
    """Properties that a player asks a source for."""

    has_video: bool = True
    has_sound: bool = True
    live: bool = True


class ClipLoop:
    """A source that plays clips in the order of `order` until `seconds` of them are through; for one consumer.

    `pace` 1 is real time, from the first item on; None is as fast as the consumer reads. `clips` whose files are in
    `folder`. `played` says which clip's second each second of the stream is.

    Raises, while it is read:
        MediaError: a clip cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        order: Iterable[Clip],
        *,
        seconds: float,
        pace: float | None,
        clock: Clock | None = None,
    ) -> None:
        self.info = Info()
        self._begins: list[int] = []  # begins of the clips played so far, in seconds of the stream
        self._names: list[str] = []
        self.late_frames = 0
        self.frames = 0  # delivered
        self._folder = folder
        self._order = iter(order)
        self._seconds = seconds
        self._pace = pace
        self._clock = clock or SystemClock()
        self._started_s: float | None = None

    def __aiter__(self) -> AsyncIterator[Item]:
        return self._items()

    def where(self, second: int) -> tuple[str, int]:
        """Return the clip that a second of the stream is of, and which second of it."""
        place = bisect.bisect_right(self._begins, second) - 1
        return self._names[place], second - self._begins[place]

    async def _items(self) -> AsyncGenerator[Item]:
        base = 0
        for clip in self._order:
            if base >= self._seconds:
                return
            self._begins.append(base)
            self._names.append(clip.name)
            end_ms = round(1000 * min(self._seconds, base + clip.seconds))
            async with contextlib.aclosing(self._clip(clip, 1000 * base, end_ms)) as items:
                async for item in items:
                    await self._wait_for(item)
                    if isinstance(item, Frame):
                        if self._lateness_s(item) > LATE_S:
                            self.late_frames += 1
                            continue
                        self.frames += 1
                    yield item
            base += clip.seconds

    async def _clip(self, clip: Clip, base_ms: int, end_ms: int) -> AsyncGenerator[Item]:
        """Yield a clip's items before `end_ms`, moved to `base_ms`, with silence where it has no sound."""
        heard_ms = base_ms
        source = open_source(
            self._folder / clip.file,
            frames_per_second=Fraction(FRAMES_PER_SECOND),
            max_side=MAX_SIDE,
            sound_ms=CHUNK_MS,
            allocate=shared_empty,
        )
        async with source:
            has_sound = source.info.has_sound
            async for item in source:
                pts_ms = base_ms + item.pts_ms
                if pts_ms >= end_ms:
                    break
                if isinstance(item, Sound):
                    yield Sound(pts_ms, item.samples)
                    heard_ms = pts_ms + len(item.samples) // _RATE
                else:
                    while not has_sound and heard_ms + CHUNK_MS <= pts_ms:
                        yield _silence(heard_ms)
                        heard_ms += CHUNK_MS
                    yield Frame(pts_ms, item.image)
        while heard_ms < end_ms:
            yield _silence(heard_ms)
            heard_ms += CHUNK_MS

    async def _wait_for(self, item: Item) -> None:
        if self._pace is None:
            return
        if self._started_s is None:
            self._started_s = self._clock.monotonic() - item.pts_ms / 1000 / self._pace
        if (wait_s := -self._lateness_s(item)) > 0:
            await self._clock.sleep(wait_s)

    def _lateness_s(self, item: Item) -> float:
        if self._pace is None or self._started_s is None:
            return 0.0
        return self._clock.monotonic() - self._started_s - item.pts_ms / 1000 / self._pace


def _silence(pts_ms: int) -> Sound:
    samples: Any = shared_empty((CHUNK_MS * _RATE,), "float32")
    memoryview(samples).cast("B")[:] = bytes(4 * CHUNK_MS * _RATE)
    return Sound(pts_ms, samples)


def present(clips: Sequence[Clip], folder: Path) -> list[Clip]:
    """Return the project's first clips whose files are in the folder; pictures and crops are no streams."""
    return [clip for clip in clips if not clip.source and clip.crop is None and (folder / clip.file).is_file()]
