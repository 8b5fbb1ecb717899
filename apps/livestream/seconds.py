"""Seconds of a stream, put together from the tasks' answers about their frames and sound.

A second is complete once the stream has gone past it and every task has answered for each of its frames and
sounds: an answer, a failure, or that the trigger was dropped. Then the app hands it to the device as a `second` event.

A frame that was not analysed has the answers about the last one that was: where it has not changed, they are about it
too; where it has, they are the best guess, for a second that has nothing better.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

SOUND_TASK = "voice"
# The field of a frame's tasks' outputs that a `second` event has, under the same name.
ANSWERS = {"item": "items", "face": "faces", "palm": "palms", "article": "article"}
_LATEST_MS = 32  # a window of the voice model may begin in a second and end in the next one's first chunk


@dataclasses.dataclass(slots=True)
class _Frame:
    image: Any
    size: list[int]
    waiting: set[str]
    answers: dict[str, Any] = dataclasses.field(default_factory=dict)  # by the names in ANSWERS
    is_guess: bool = False  # the answers are about an earlier frame, which looked otherwise


@dataclasses.dataclass(slots=True)
class _Second:
    frames: dict[int, _Frame] = dataclasses.field(default_factory=dict)  # by pts_ms
    voice: float | None = None


@dataclasses.dataclass(slots=True)
class SecondCounts:
    """Outcomes of the frames and sounds: answers, failures and drops, by task."""

    answered: dict[str, int] = dataclasses.field(default_factory=dict)
    failed: dict[str, int] = dataclasses.field(default_factory=dict)
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)


class SecondBuilder:
    """Builds seconds in order, from 0 to the last one of the stream, those without a frame or sound included.

    `frame` and `sound` say what was given to the device, `answer`, `failure` and `drop` what became of it, in any
    order; `ready` returns the contents of the seconds that are complete now. `images` is how many of a second's frames
    keep their image for a closer look in the cloud: the best ones by the evidence of the item task come first.
    """

    def __init__(self, *, images: int = 2) -> None:
        self.counts = SecondCounts()
        self._images = images
        self._seconds: dict[int, _Second] = {}
        self._sounds: set[int] = set()  # pts_ms of chunks without an answer
        self._next = 0
        self._reached_ms = {"frame": 0, "sound": 0}
        self._ended: set[str] = set()
        self._analysed: _Frame | None = None  # the last one that went to the device

    # --- the stream ---------------------------------------------------------------------------------------------------

    def frame(self, pts_ms: int, image: Any, tasks: Iterable[str]) -> None:
        """Note a frame, uint8 [height, width, 3], that went to the device and triggered these tasks."""
        self._analysed = _Frame(image, list(image.shape[:2]), set(tasks))
        self._add(pts_ms, self._analysed)

    def reuse(self, pts_ms: int, image: Any, *, has_changed: bool) -> None:
        """Note a frame that did not go to the device: it has the answers about the last one of its size that did."""
        size, last = list(image.shape[:2]), self._analysed
        answers = last.answers if last is not None and last.size == size else {}
        self._add(pts_ms, _Frame(image, size, set(), answers, is_guess=has_changed))

    def sound(self, pts_ms: int, tasks: Iterable[str]) -> None:
        """Note a chunk of sound that went to the device and triggered these tasks."""
        if SOUND_TASK in tasks:
            self._sounds.add(pts_ms)
        self._second(pts_ms // 1000)
        self._reached_ms["sound"] = pts_ms

    def end(self, kind: str) -> None:
        """Note that no more of a kind comes, "frame" or "sound"; at once for a stream that has none."""
        self._ended.add(kind)

    # --- the tasks ----------------------------------------------------------------------------------------------------

    def answer(self, task: str, pts_ms: int, output: Mapping[str, Any]) -> None:
        """Take a task's output for the frame or sound at a time."""
        _count(self.counts.answered, task)
        if task == SOUND_TASK:
            for each in output["seconds"]:
                if each["second"] >= self._next:
                    self._second(each["second"]).voice = each["mean"]
        elif (frame := self._frame(pts_ms)) is not None:
            frame.answers[ANSWERS[task]] = output[ANSWERS[task]]
        self._done(task, pts_ms)

    def failure(self, task: str, pts_ms: int) -> None:
        """Note that a task failed on the frame or sound at a time."""
        _count(self.counts.failed, task)
        self._done(task, pts_ms)

    def drop(self, task: str, pts_ms: int) -> None:
        """Note that a task's queue dropped the frame or sound at a time."""
        _count(self.counts.dropped, task)
        self._done(task, pts_ms)

    # --- seconds ------------------------------------------------------------------------------------------------------

    def ready(self) -> list[dict[str, Any]]:
        """Return the contents of `second` events for those that are complete and were not returned before."""
        found = []
        while self._is_complete(self._next):
            found.append(self._contents(self._next, self._seconds.pop(self._next, _Second())))
            self._next += 1
        return found

    def _is_complete(self, second: int) -> bool:
        end_ms = (second + 1) * 1000
        if not self._ended >= {"frame", "sound"}:
            for kind in {"frame", "sound"} - self._ended:
                if self._reached_ms[kind] < end_ms:
                    return False
        elif second >= self._seconds_in_all():
            return False
        if any(pts_ms < end_ms + _LATEST_MS for pts_ms in self._sounds):
            return False
        found = self._seconds.get(second)
        return found is None or not any(frame.waiting for frame in found.frames.values())

    def _seconds_in_all(self) -> int:
        return max(self._seconds, default=self._next - 1) + 1

    def _contents(self, second: int, found: _Second) -> dict[str, Any]:
        frames = []
        in_order = [frame for _, frame in sorted(found.frames.items())]
        guesses = not any(frame.answers and not frame.is_guess for frame in in_order)
        for frame in in_order:
            known = frame.answers if guesses or not frame.is_guess else {}
            frames.append({"size": frame.size, **known})
        pictures = [frame.image for frame in in_order]
        for place in sorted(range(len(frames)), key=lambda k: (-_interest(frames[k]), k))[: self._images]:
            frames[place]["image"] = pictures[place]
        return {"second": second, "pts_ms": second * 1000, "voice": found.voice, "frames": frames}

    def _add(self, pts_ms: int, frame: _Frame) -> None:
        self._second(pts_ms // 1000).frames[pts_ms] = frame
        self._reached_ms["frame"] = pts_ms

    def _second(self, second: int) -> _Second:
        if second < self._next:
            return _Second()  # the second is gone: a sound of the second before came after a gap
        return self._seconds.setdefault(second, _Second())

    def _frame(self, pts_ms: int) -> _Frame | None:
        found = self._seconds.get(pts_ms // 1000)
        return None if found is None else found.frames.get(pts_ms)

    def _done(self, task: str, pts_ms: int) -> None:
        if task == SOUND_TASK:
            self._sounds.discard(pts_ms)
        elif (frame := self._frame(pts_ms)) is not None:
            frame.waiting.discard(task)


def best_picture(contents: Mapping[str, Any]) -> Any:
    """Return the image of a `second` event that shows most: a person and something else; None if it has no image."""
    frames = [frame for frame in contents["frames"] if "image" in frame]
    return max(frames, key=lambda frame: _interest(frame) + _person(frame))["image"] if frames else None


def _person(frame: Mapping[str, Any]) -> float:
    return max((item["score"] for item in frame.get("items", ()) if item["label"] == "person"), default=0.0)


def _interest(frame: Mapping[str, Any]) -> float:
    """Return how much there is to see in a frame: the best score of what is not a person."""
    return max((item["score"] for item in frame.get("items", ()) if item["label"] != "person"), default=0.0)


def _count(counts: dict[str, int], task: str) -> None:
    counts[task] = counts.get(task, 0) + 1
