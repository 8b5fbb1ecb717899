"""Log lines of task runs: bounds, escapes, and the ways to `logging` and into an outcome report.

A task's log is hostile input. The VM bounds it first (`walle.pipeline.stream.run_log`); the checks here also hold for a
task that has changed the runtime of its VM. Lines are counted and shortened, and control characters are escaped, so
that neither a terminal nor a log file interprets them.
"""

import collections
import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from walle.base.clock import Clock, SystemClock
from walle.protocol import Failure, printable, whole_characters

MAX_RUN_LINES = 201  # lines of one run: the VM keeps 200, and adds one that counts the rest
MAX_LINE_CHARS = 1_000
WINDOW_S = 60.0
MAX_LINES_PER_WINDOW = 1_000  # lines of one task
_MAX_TASKS = 1_000
_REPORT_LINES = 20

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_TASKS = logging.getLogger("walle.task")


class LogLine(NamedTuple):
    """One line that a run logged (`ctx.log`) or printed. `level` is a key of `_LEVELS`; `text` is printable."""

    level: str
    text: str


type OnLog = Callable[[Sequence[LogLine]], None]


def parse_lines(value: object) -> list[LogLine]:
    """Return the lines that a VM handed over as (level, text) pairs, bounded; what is malformed is counted."""
    if not isinstance(value, list | tuple):
        return [LogLine("warning", f"the run's log was dropped: it is a {type(value).__name__}")]
    lines = []
    malformed = 0
    for entry in value[:MAX_RUN_LINES]:
        match entry:
            case (str(level), str(text)) if level in _LEVELS:
                lines.append(LogLine(level, printable(text[:MAX_LINE_CHARS])))
            case _:
                malformed += 1
    dropped = malformed + max(0, len(value) - MAX_RUN_LINES)
    if dropped:
        lines.append(LogLine("warning", f"{dropped} lines were dropped: too many, or malformed"))
    return lines


def last_lines(lines: Sequence[LogLine]) -> str:
    """Return the end of a run's log as an outcome report carries it: one `level: text` a line."""
    text = "\n".join(f"{line.level}: {line.text}" for line in lines[-_REPORT_LINES:])
    if len(text) > Failure.MAX_LOG_CHARS:  # a line that is cut would lose its level
        text = text[-Failure.MAX_LOG_CHARS :]
        text = text[text.find("\n") + 1 :]
    return whole_characters(text)


@dataclasses.dataclass(slots=True)
class _Window:
    start_s: float
    lines: int = 0
    dropped: int = 0


class TaskLog:
    """A writer of task runs' lines to the logger `walle.task`, each with `owner`, task and version.

    One task gets MAX_LINES_PER_WINDOW lines in WINDOW_S seconds; what it logs beyond that is counted and reported.
    """

    def __init__(self, owner: str, clock: Clock | None = None) -> None:
        self._owner = owner
        self._clock = clock or SystemClock()
        self._windows: collections.OrderedDict[str, _Window] = collections.OrderedDict()

    def write(self, task: str, version: str, lines: Sequence[LogLine]) -> None:
        """Log the lines of one run."""
        if not lines:
            return
        window = self._window(task, version)
        room = MAX_LINES_PER_WINDOW - window.lines
        for line in lines[:room]:
            self._log(_LEVELS[line.level], task, version, line.text)
        window.lines += len(lines[:room])
        if len(lines) > room:
            if not window.dropped:
                what = f"logged more than {MAX_LINES_PER_WINDOW} lines in {WINDOW_S:g} s; what follows is dropped"
                self._log(logging.WARNING, task, version, what)
            window.dropped += len(lines) - room

    def _window(self, task: str, version: str) -> _Window:
        now_s = self._clock.monotonic()
        window = self._windows.get(task)
        if window is None or now_s - window.start_s >= WINDOW_S:
            if window is not None and window.dropped:
                self._log(logging.WARNING, task, version, f"{window.dropped} lines were dropped")
            window = self._windows[task] = _Window(now_s)
            self._windows.move_to_end(task)
            if len(self._windows) > _MAX_TASKS:
                self._windows.popitem(last=False)
        return window

    def _log(self, level: int, task: str, version: str, text: str) -> None:
        _TASKS.log(level, "%s: %s %s: %s", self._owner, task, version, text, extra={"task": task, "version": version})
