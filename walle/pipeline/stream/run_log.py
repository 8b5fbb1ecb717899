"""The log of a run inside its VM: what a task logs and prints, bounded, until the device takes it."""

from __future__ import annotations

from walle.engine_ext.vm import dispatch

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from typing import Any

MAX_LOG_LINES = 200  # limit of one run; further lines are counted
MAX_LOG_CHARS = 1_000  # limit of one line
MAX_KEPT_LINES = 1_000  # limit for all failed runs with logs for `take_failure`; above, the oldest lose their lines
MAX_KEPT_LOGS = 1_000  # beyond it the oldest are removed
_MAX_RETURNED = 8  # runs of other calls may come between a run's return and the question for its log

# By run, oldest first: of the present run, and of failed ones until `take_failure`.
_logs: dict[int, Log] = {}
# Of the latest runs that returned, oldest first: their result may be refused after that.
_returned: dict[int, Log] = {}


class Log:
    """`ctx.log("...")`, `ctx.log.warning("...")`: bounded lines that go back with the result, or by `take_failure`.

    What a task prints is in it too, as info. A run that logs and prints more than the task's log_kb is stopped.
    """

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.dropped = 0
        self.phase = ""  # phase that runs, or ran last
        self.cpu_s: float | None = None  # CPU time of the run, once its phases have ended

    def __call__(self, text: object, level: str = "info") -> None:
        line = str(text)
        dispatch.output.spend(len(line))
        self.add(line, level)

    def add(self, line: str, level: str = "info") -> None:
        """Keep a line without counting its characters: printed text is counted as it is written."""
        if len(self.lines) >= MAX_LOG_LINES:
            self.dropped += 1
            return
        line = line[:MAX_LOG_CHARS]
        if not line.isascii():  # lone surrogates do not cross; the run's output is not refused for them
            line = line.encode(errors="backslashreplace").decode()
        self.lines.append((level, line))

    def debug(self, text: object) -> None:
        self(text, "debug")

    def info(self, text: object) -> None:
        self(text, "info")

    def warning(self, text: object) -> None:
        self(text, "warning")

    def error(self, text: object) -> None:
        self(text, "error")

    def drop_lines(self) -> None:
        """Drop the lines so far, and count them."""
        self.dropped += len(self.lines)
        self.lines = []

    def to_plain(self) -> list[tuple[str, str]]:
        """Return (level, text) of each line, and one more that counts those dropped."""
        if not self.dropped:
            return self.lines
        more = "more " if self.lines else ""
        return [*self.lines, ("warning", f"{self.dropped} {more}lines were dropped")]


def open_log(run_id: int) -> Log:
    """Return a new log, which takes what the task prints from now on."""
    dispatch.output.end_line()  # a call may have left a line without an end
    _logs.pop(run_id, None)
    kept = sum(len(log.lines) for log in _logs.values())
    for log in _logs.values():
        if kept <= MAX_KEPT_LINES:
            break
        kept -= len(log.lines)
        log.drop_lines()
    while len(_logs) >= MAX_KEPT_LOGS:
        del _logs[next(iter(_logs))]
    log = _logs[run_id] = Log()
    dispatch.output.line = log.add
    return log


def close_log(run_id: int) -> list[tuple[str, str]]:
    """Return (level, text) of each line of a run that returns."""
    dispatch.output.end_line()
    log = _logs.pop(run_id)
    _returned[run_id] = log
    if len(_returned) > _MAX_RETURNED:
        del _returned[next(iter(_returned))]
    return log.to_plain()


def take_failure(run_id: int = 0) -> dict[str, Any]:
    """Return {"log", "place": "file:line in phase", "cpu_s"} of the failed run with this id, and forget it.

    The log is [(level, text)], `cpu_s` the run's CPU time, None of a call that was no `run`.
    `load`, `run` and `phase` hand their log over with their result. What they logged before they failed stays for this
    call, within MAX_KEPT_LINES and MAX_KEPT_LOGS. The place is the first line of the phase that ran last, "" if none
    did: an error that has no place, such as a result that is not plain data, belongs to it.
    """
    dispatch.output.end_line()
    log = _logs.pop(run_id, None) or _returned.pop(run_id, None)
    if log is None:
        return {"log": [], "place": "", "cpu_s": None}
    code = getattr(getattr(dispatch.task().main(), log.phase, None), "__code__", None) if log.phase else None
    place = "" if code is None else f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"
    return {"log": log.to_plain(), "place": place, "cpu_s": log.cpu_s}
