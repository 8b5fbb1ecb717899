"""Plays a source into a device: frames and sound as events, then each second with its tasks' answers, to a decision.

The tasks answer when they can, so a second is decided once all of them have answered for its frames and sound.
In real time a task that is behind drops frames by its `queue_full`; without a pace the player waits for the tasks, so
that nothing is dropped and the same file gives the same decisions, to the bit. With a budget of CPU time it does not:
which frames are analysed depends on what the ones before took.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

from apps.livestream.frame_choice import Choice, FrameChooser
from apps.livestream.media import Frame, Item, MediaError, Sound, Source
from apps.livestream.seconds import SOUND_TASK, SecondBuilder, best_picture
from walle.base.clock import Clock, SystemClock
from walle.device import Device
from walle.pipeline.events.event import Event
from walle.pipeline.trigger.task_results import TaskResult

SCENARIO = "livestream"
PARTS = ("item", "face", "voice")
OPTIONAL = ("palm", "article")  # tasks on devices that have them (task_files.py: tasks_of)
DECIDER = "highlight"
_AHEAD = 2  # frames without all their answers, without a pace


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of one second: the highlight task's output, None if its run failed or was dropped (`why` says it).

    `image` is the one that shows most, of the frames that could go to the cloud. `delay_s` is how long after the
    second's end in the stream it was decided, in real time only.
    """

    second: int
    output: Mapping[str, Any] | None
    why: str = ""
    image: Any = None
    delay_s: float | None = None


class Player:
    """Plays one source into one device whose livestream tasks are installed.

    `images` is how many frames of a second may go to the cloud. `paced` means that the source has its own pace.
    `budget` is the share of a core that the models may take, None for any; `chooser` has what came of it. `seconds` is
    how much of the source is played, None for all. `frames` counts the source's frames, those that were not analysed
    too.
    """

    def __init__(
        self,
        device: Device,
        source: Source,
        *,
        paced: bool,
        images: int = 2,
        budget: float | None = None,
        seconds: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.chooser = FrameChooser(budget)
        self.builder = SecondBuilder(images=images)
        self.frames = 0
        self.sound_s = 0.0
        self.was_ended = False  # true if `seconds` or `stop` ended the play, before the source's end
        self.refused = 0  # events that the device did not take
        self._device = device
        self._parts = (*PARTS, *(name for name in OPTIONAL if f"{SCENARIO}/{name}" in device.tasks))
        self._source = source
        self._paced = paced
        self._end_ms = None if seconds is None else seconds * 1000
        self._stopping = asyncio.Event()
        self._clock = clock or SystemClock()
        self._base_ms = int(self._clock.time() * 1000)
        self._started_s: float | None = None
        self._latest_ms = 0
        self._turn = asyncio.Lock()  # an answer waits until its event is noted
        self._played: dict[tuple[str, int], int] = {}  # pts_ms by task and position
        self._room = asyncio.Event()
        self._deciding: dict[int, tuple[int, Any]] = {}  # second and image, by position
        self._decided: asyncio.Queue[Decision | None] = asyncio.Queue()
        self._fault: MediaError | None = None  # what ended the source

    async def decisions(self) -> AsyncGenerator[Decision]:
        """Play the source to its end and yield what was decided, second by second, in order.

        They end with the source, after `seconds` of it, or after `stop`. All that was read until then is decided.

        Raises:
            MediaError: the source cannot be read on; what it gave before that is decided first.
        """
        async with contextlib.AsyncExitStack() as undo:
            listening = [
                asyncio.create_task(self._listen(undo.enter_context(self._device.results(f"{SCENARIO}/{name}")), name))
                for name in (*self._parts, DECIDER)
            ]
            playing = asyncio.create_task(self._play())
            undo.push_async_callback(_cancelled, [playing, *listening])
            waiting: asyncio.Task[Decision | None] | None = None
            try:
                while True:
                    waiting = waiting or asyncio.create_task(self._decided.get())
                    watched = {waiting, playing, *listening} - ({playing} if playing.done() else set())
                    done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                    for task in done - {waiting}:
                        task.result()  # raises what went wrong
                    if waiting in done:
                        decision = waiting.result()
                        waiting = None
                        if decision is None:
                            if self._fault is not None:
                                raise self._fault
                            return
                        yield decision
            finally:
                if waiting is not None:
                    await _cancelled([waiting])

    def stop(self) -> None:
        """Read no more of the source."""
        self._stopping.set()

    # --- the stream into the device -----------------------------------------------------------------------------------

    async def _play(self) -> None:
        try:
            await self._send_all()
        except MediaError as error:
            self._fault = error
        async with self._turn:
            self.builder.end("frame")
            self.builder.end("sound")
            await self._decide()
        await self._finish()

    async def _send_all(self) -> None:
        info = self._source.info
        if not info.has_video:
            self.builder.end("frame")
        if not info.has_sound:
            self.builder.end("sound")
        async for item in self._items():
            if self._started_s is None:
                self._started_s = self._clock.monotonic() - item.pts_ms / 1000
            match item:
                case Frame(pts_ms, image):
                    while not self._paced and self.chooser.pending >= _AHEAD:
                        self._room.clear()
                        await self._room.wait()
                    await self._take_frame(pts_ms, image)
                case Sound(pts_ms, samples):
                    await self._send_sound(pts_ms, samples)

    async def _items(self) -> AsyncGenerator[Item]:
        """Yield the source's items until its end, or what ends it for the player, also while nothing comes."""
        items = aiter(self._source)
        ending: list[asyncio.Task[Any]] = [asyncio.create_task(self._stopping.wait())]
        if self._end_ms is not None and self._source.info.live:
            ending.append(asyncio.create_task(self._clock.sleep(self._end_ms / 1000)))
        reading: asyncio.Task[Item] | None = None
        try:
            while True:
                reading = asyncio.ensure_future(anext(items))
                await asyncio.wait([reading, *ending], return_when=asyncio.FIRST_COMPLETED)
                if any(task.done() for task in ending):
                    self.was_ended = True
                    return
                try:
                    item = reading.result()
                except StopAsyncIteration:
                    return
                if self._end_ms is not None and item.pts_ms >= self._end_ms:
                    self.was_ended = True
                    return
                yield item
        finally:
            await _cancelled([*ending, *([] if reading is None else [reading])])

    async def _take_frame(self, pts_ms: int, image: Any) -> None:
        async with self._turn:
            self.frames += 1
            choice = self.chooser.choose(pts_ms, image)
            if choice is Choice.ANALYSED:
                await self._send_frame(pts_ms, image)
            else:
                self.builder.reuse(pts_ms, image, has_changed=choice is Choice.BUDGET)
            await self._decide()

    async def _send_frame(self, pts_ms: int, image: Any) -> None:
        tasks = await self._send("frame", pts_ms, {"image": image, "second": pts_ms // 1000, "pts_ms": pts_ms})
        self.builder.frame(pts_ms, image, tasks)
        self.chooser.begin(pts_ms, tasks)

    async def _send_sound(self, pts_ms: int, samples: Any) -> None:
        async with self._turn:
            tasks = await self._send("sound", pts_ms, {"samples": samples, "pts_ms": pts_ms})
            self.sound_s += len(samples) / 16_000
            self.builder.sound(pts_ms, tasks)
            await self._decide()

    async def _send(self, event_id: str, pts_ms: int, contents: dict[str, Any]) -> set[str]:
        """Give the device an event; return the parts of the app that it triggered."""
        self._latest_ms = max(self._latest_ms, self._base_ms + pts_ms)
        taken = await self._device.on_event(
            Event(event_id, "", self._base_ms + pts_ms, contents), can_wait=not self._paced
        )
        if taken is None:
            self.refused += 1
            return set()
        # One that came to the device after the stream began has nobody who listens to it.
        names = {name for name in self._parts if f"{SCENARIO}/{name}" in taken.tasks}
        for name in names:
            self._played[name, taken.position] = pts_ms
        return names

    async def _decide(self) -> None:
        """Hand complete seconds to the device."""
        for contents in self.builder.ready():
            image = best_picture(contents)
            taken = await self._device.on_event(Event("second", "", self._latest_ms, contents), can_wait=True)
            if taken is None or f"{SCENARIO}/{DECIDER}" not in taken.tasks:
                why = "the device did not accept the second" if taken is None else "the highlight task is not installed"
                self._decided.put_nowait(Decision(second=contents["second"], output=None, why=why, image=image))
            else:
                self._deciding[taken.position] = contents["second"], image

    async def _finish(self) -> None:
        """Wait until every second is decided, and end the decisions."""
        while not await self._is_finished():
            await self._room.wait()
        self._decided.put_nowait(None)

    async def _is_finished(self) -> bool:
        async with self._turn:  # an answer is taken and the second that it completes is sent in one turn
            self._room.clear()
            return not self._played and not self._deciding

    # --- the tasks' answers -------------------------------------------------------------------------------------------

    async def _listen(self, results: AsyncIterator[TaskResult], name: str) -> None:
        async for result in results:
            async with self._turn:
                if name == DECIDER:
                    self._take_decision(result)
                else:
                    self._take_answer(name, result)
                    await self._decide()
            self._room.set()
        raise RuntimeError(f"the results of {name} ended before the stream did")

    def _take_answer(self, name: str, result: TaskResult) -> None:
        pts_ms = self._played.pop((name, result.position), None)
        if pts_ms is None:
            return  # somebody else's event
        if result.dropped:
            self.builder.drop(name, pts_ms)
        elif result.failure is not None:
            self.builder.failure(name, pts_ms)
        else:
            self.builder.answer(name, pts_ms, result.output)
        if name == SOUND_TASK:
            self.chooser.spend(name, result.cpu_s)
            return
        if result.dropped:
            self.chooser.drop(name, pts_ms)
        elif result.failure is not None:
            self.chooser.fail(name, pts_ms, result.cpu_s)
        else:
            self.chooser.end(name, pts_ms, result.cpu_s)

    def _take_decision(self, result: TaskResult) -> None:
        second, image = self._deciding.pop(result.position, (None, None))
        if second is None:
            return
        why = "its trigger was dropped: the highlight task is behind" if result.dropped else ""
        if result.failure is not None:
            why = result.failure.error
        delay_s = None
        if self._paced and self._started_s is not None:
            delay_s = self._clock.monotonic() - self._started_s - (second + 1)
        counts = self.builder.counts
        part = counts.dropped if result.dropped else counts.failed if result.failure else counts.answered
        part[DECIDER] = part.get(DECIDER, 0) + 1
        self.chooser.spend(DECIDER, result.cpu_s)
        output = None if why else result.output
        self._decided.put_nowait(Decision(second=second, output=output, why=why, image=image, delay_s=delay_s))


async def _cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
