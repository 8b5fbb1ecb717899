"""Choice of the frames that are worth the models: by what has changed in them, and by a budget of CPU time.

Frames are compared by thumbnails of 32 x 18 grey values. The measure of a change is the largest difference of a cell,
in grey levels of 255: a small object changes few cells by much, noise and compression all cells by little. The measure
of a cut is the mean difference from the frame before.
"""

import dataclasses
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from apps.livestream.cpu_budget import CpuBudget
from walle import cv

UNCHANGED = 16  # grey levels; with 0, 6 and 16 the highlights of the tuning clips are the same
CUT = 25.0  # grey levels; between two frames of a shot of the tuning clips there are up to 20
LONGEST_GAP_MS = 2_000  # longest gap between analysed frames of a stream that changes, whatever the budget
_WIDTH, _HEIGHT = 32, 18
_SIDE = 320  # pixels, to which a frame is scaled first: areas of full frames take four times as long
_FULL_CHANGE = 96.0  # grey levels from which a frame is worth the last of the budget

type Thumbnail = npt.NDArray[np.int16]


class Choice(Enum):
    """The choice about a frame: it is analysed, or why it is not."""

    ANALYSED = "analysed"
    UNCHANGED = "unchanged"
    BUDGET = "budget"


@dataclasses.dataclass(slots=True)
class _Running:
    """An analysed frame until all its tasks have ended."""

    reserved_s: float
    tasks: set[str]
    share_s: float  # part of the reserved time for one task
    cost_s: float = 0.0
    is_whole: bool = True  # the CPU time of each task is known


class FrameChooser:
    """Chooses frames of one stream, in order. `share` of a core is the budget of its models, None for any amount.

    - A frame like the last analysed one is not analysed again. One whose answers were lost has no frame like it.
    - With a budget, a frame that has changed is analysed if enough is saved: its expected cost, and the more beyond
      that the less it has changed. While everything moves, that gives frames at equal distances.
    - A cut is analysed at once, in advance of the budget; so is a frame that has changed after two seconds without
      one. Of a budget for less than that, the models take more: half the cost of a frame for each second.
    """

    def __init__(self, share: float | None = None, *, unchanged: int = UNCHANGED) -> None:
        self.counts = dict.fromkeys(Choice, 0)
        self.cpu_s: dict[str, float] = {}  # CPU time of all runs whose time is known, by task
        self._budget = None if share is None else CpuBudget(share)
        self._unchanged = unchanged
        self._before: Thumbnail | None = None  # thumbnail of the frame before
        self._analysed: tuple[list[int], Thumbnail] | None = None  # height and width, thumbnail; None: it was lost
        self._analysed_ms: int | None = None  # time of the last analysed frame, also if it was lost
        self._running: dict[int, _Running] = {}  # by pts_ms

    def choose(self, pts_ms: int, image: Any) -> Choice:
        """Return what is to be done with a frame, uint8 [height, width, 3] in BGR."""
        seen, before = thumbnail(image), self._before
        self._before = seen
        choice = self._choice(pts_ms, list(image.shape[:2]), seen, before)
        self.counts[choice] += 1
        if choice is Choice.ANALYSED:
            self._analysed, self._analysed_ms = (list(image.shape[:2]), seen), pts_ms
        return choice

    def _choice(self, pts_ms: int, size: list[int], seen: Thumbnail, before: Thumbnail | None) -> Choice:
        budget = self._budget
        if budget is not None:
            budget.advance(pts_ms)
        if self._analysed_ms is None or before is None:
            return Choice.ANALYSED
        size_before, last = self._analysed or (size, None)
        change = _FULL_CHANGE if last is None else largest_difference(seen, last)
        is_new_size = size != size_before
        if not is_new_size and change <= self._unchanged:
            return Choice.UNCHANGED
        if budget is None or pts_ms - self._analysed_ms >= LONGEST_GAP_MS:
            return Choice.ANALYSED
        if is_new_size or mean_difference(seen, before) >= CUT:
            return Choice.ANALYSED if budget.can_advance_frame() else Choice.BUDGET
        calm = 1 - min(1.0, change / _FULL_CHANGE)
        needed_s = budget.frame_cost_s + calm * max(0.0, budget.capacity_s - budget.frame_cost_s) / 2
        return Choice.ANALYSED if budget.saved_s >= needed_s else Choice.BUDGET

    @property
    def pending(self) -> int:
        """Analysed frames whose tasks have not all ended."""
        return len(self._running)

    # --- what the chosen frames cost ----------------------------------------------------------------------------------

    def begin(self, pts_ms: int, tasks: set[str]) -> None:
        """Note that a chosen frame went to tasks; each of them ends with `end`, `fail` or `drop`."""
        if tasks:
            reserved_s = self._budget.reserve() if self._budget is not None else 0.0
            self._running[pts_ms] = _Running(reserved_s, set(tasks), reserved_s / len(tasks))
        else:
            self._forget(pts_ms)

    def end(self, task: str, pts_ms: int, cpu_s: float | None) -> None:
        """Note the CPU time of a run that returned, None where it is not known."""
        self.spend(task, cpu_s, of_frame=pts_ms in self._running)
        if (running := self._running.get(pts_ms)) is not None:
            running.cost_s += cpu_s or 0.0
            running.is_whole &= cpu_s is not None
            self._end(task, pts_ms, running)

    def fail(self, task: str, pts_ms: int, cpu_s: float | None) -> None:
        """Note that a task failed on a frame, and the CPU time that this took: no later frame is like this one.

        A run whose time is not known, such as one whose VM ended, counts with its share of what is reserved.
        """
        self._forget(pts_ms)
        running = self._running.get(pts_ms)
        if cpu_s is None and running is not None:
            running.cost_s += running.share_s
        self.end(task, pts_ms, cpu_s)

    def drop(self, task: str, pts_ms: int) -> None:
        """Note that a task dropped a frame: no later frame is taken for one like it."""
        self._forget(pts_ms)
        if (running := self._running.get(pts_ms)) is not None:
            running.is_whole = False
            self._end(task, pts_ms, running)

    def spend(self, task: str, cpu_s: float | None, *, of_frame: bool = False) -> None:
        """Note the CPU time of a run that is not about a frame."""
        self.cpu_s[task] = self.cpu_s.get(task, 0.0) + (cpu_s or 0.0)
        if self._budget is not None and not of_frame:
            self._budget.spend(cpu_s or 0.0)

    def _end(self, task: str, pts_ms: int, running: _Running) -> None:
        running.tasks.discard(task)
        if not running.tasks:
            del self._running[pts_ms]
            if self._budget is not None:
                self._budget.settle(running.reserved_s, running.cost_s, is_whole=running.is_whole)

    def _forget(self, pts_ms: int) -> None:
        if self._analysed_ms == pts_ms:
            self._analysed = None


def thumbnail(image: Any) -> Thumbnail:
    """Return the grey values of an image as int16 [18, 32]: scaled to 320 pixels, and then by areas."""
    height, width = image.shape[:2]
    scale = _SIDE / max(height, width)
    if scale < 1:
        image = cv.resize(image, (max(1, round(width * scale)), max(1, round(height * scale))))
    grey = cv.cvtColor(cv.resize(image, (_WIDTH, _HEIGHT), interpolation=cv.INTER_AREA), cv.COLOR_BGR2GRAY)
    return np.asarray(grey).astype(np.int16)


def largest_difference(one: Thumbnail, other: Thumbnail) -> int:
    """Return the largest difference of a cell, 0 to 255."""
    return int(np.abs(one - other).max())


def mean_difference(one: Thumbnail, other: Thumbnail) -> float:
    """Return the mean difference of the cells, 0 to 255."""
    return float(np.abs(one - other).mean())
