"""Check of a trigger condition against events: whether they have the event ids and page ids that it names."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from walle.pipeline.events.event import BASIC_KINDS
from walle.pipeline.events.event_log import EventLog
from walle.protocol import TriggerCondition
from walle.task.check.event_names import nearest
from walle.task.check.finding import Finding, Level

_MAX_EVENTS = 100_000  # events of a log that are read
_MAX_IDS = 10_000  # event ids and page ids that are kept, each
_MAX_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class LogIds:
    """The event ids and page ids of a log, whether these are all, and the findings about its lines."""

    name: str
    event_ids: frozenset[str]
    page_ids: frozenset[str]
    is_whole: bool
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, log: EventLog, name: str, *, is_elsewhere: bool) -> Self:
        """Return those of a log's first events; `is_elsewhere` as in `Finding`. Raises ConfigError as the log."""
        event_ids: set[str] = set()
        page_ids: set[str] = set()
        records = log.records()
        for record in itertools.islice(records, _MAX_EVENTS):
            event_ids.add(record.event.event_id)
            page_ids.add(record.event.page_id)
            if max(len(event_ids), len(page_ids)) > _MAX_IDS:
                break
        is_whole = next(records, None) is None
        findings = tuple(_skipped(log, name, is_elsewhere=is_elsewhere))
        return cls(name, frozenset(event_ids), frozenset(page_ids - {""}), is_whole, findings)


def _skipped(log: EventLog, name: str, *, is_elsewhere: bool) -> Iterator[Finding]:
    for report in log.reports[:_MAX_SHOWN]:
        what = f"this line is skipped: {report.reason}"
        yield Finding(
            file=name, line=report.line, column=0, code="event-line", message=what, level="warning",
            is_elsewhere=is_elsewhere,
        )  # fmt: skip


def check_trigger(
    condition: TriggerCondition, file: str, places: Mapping[tuple[str, ...], tuple[int, int]], log: LogIds | None
) -> Iterator[Finding]:
    """Yield the findings about the trigger ids of a condition, whose keys stand at these places of `file`.

    With a log, an id that none of its events has is an error. Without one, or with one that was not read whole, an id
    that is similar to a basic kind of event, and is none, is a warning.
    """
    place = places.get(("trigger", "sequence"), (0, 0))
    yield from _check_ids(condition.trigger_ids, file, place, log)
    yield from _check_ids(condition.window_of, file, places.get(("trigger", "window_of"), (0, 0)), log)
    known = set() if log is None else log.event_ids | log.page_ids
    if (absent := condition.absent) and absent != TriggerCondition.WILDCARD and absent not in known:
        yield from _check_absent(absent, file, place, log)


def _check_ids(ids: Iterable[str], file: str, place: tuple[int, int], log: LogIds | None) -> Iterator[Finding]:
    known = set() if log is None else log.event_ids | log.page_ids
    for name in dict.fromkeys(one for one in ids if one != TriggerCondition.WILDCARD):
        if name in known:
            continue
        if log is None or not log.is_whole:
            if name not in BASIC_KINDS and (close := nearest(name, BASIC_KINDS)):
                what = f"{name!r} is not a basic kind of event; did you mean {close}?"
                yield _finding(file, place, what, "warning")
            continue
        shown = ", ".join(sorted(log.event_ids)[:_MAX_SHOWN])
        close = nearest(name, known)
        hint = f"did you mean {close}?" if close else f"its event ids are {shown}" if shown else "it has no events"
        what = f"no event of {log.name} has the event id or page id {name!r}; {hint}"
        yield _finding(file, place, what, "error")


def _check_absent(absent: str, file: str, place: tuple[int, int], log: LogIds | None) -> Iterator[Finding]:
    if log is None or not log.is_whole:
        if absent not in BASIC_KINDS and (close := nearest(absent, BASIC_KINDS)):
            what = f"{absent!r} is not a basic kind of event; did you mean {close}?"
            yield _finding(file, place, what, "warning")
        return
    close = nearest(absent, log.event_ids | log.page_ids)
    hint = f"did you mean {close}?" if close else "the task is triggered each time its sequence has matched"
    what = f"no event of {log.name} has the event id or page id {absent!r}, which must be absent; {hint}"
    yield _finding(file, place, what, "warning")


def _finding(file: str, place: tuple[int, int], message: str, level: Level) -> Finding:
    line, column = place
    return Finding(file=file, line=line, column=column, code="trigger-event", message=message, level=level)
