"""Check of a trigger condition against events: whether they have the event ids and page ids that it names."""

import difflib
import itertools
from collections.abc import Collection, Iterator

from walle.pipeline.event_log import EventLog
from walle.pipeline.events import BASIC_KINDS
from walle.protocol import TriggerCondition
from walle.task_check.finding import Finding, Level

_MAX_EVENTS = 100_000  # of a log that are read
_MAX_IDS = 10_000  # event ids and page ids that are kept, each
_MAX_SHOWN = 5
_SIMILAR = 0.75


def check_trigger(
    condition: TriggerCondition, file: str, place: tuple[int, int], log: EventLog | None, log_name: str
) -> Iterator[Finding]:
    """Yield the findings about the trigger ids of a condition, which stands at `place` of `file`.

    With a log, an id that none of its events has is an error. Without one, an id that is similar to a basic kind of
    event, and is none, is a warning.
    """
    ids = list(dict.fromkeys(one for one in condition.trigger_ids if one != TriggerCondition.WILDCARD))
    if log is None:
        for name in [*ids, condition.absent] if condition.absent else ids:
            if name not in BASIC_KINDS and (close := _close(name, BASIC_KINDS)):
                what = f"{name!r} is not a basic kind of event; did you mean {close}?"
                yield _finding(file, place, what, "warning")
        return
    event_ids, page_ids, is_whole = _ids_of(log)
    for name in ids:
        if is_whole and name not in event_ids and name not in page_ids:
            known = [*event_ids, *page_ids]
            shown = ", ".join(sorted(event_ids)[:_MAX_SHOWN])
            close = _close(name, known)
            hint = f"did you mean {close}?" if close else f"its event ids are {shown}" if shown else "it has no events"
            what = f"no event of {log_name} has the event id or page id {name!r}; {hint}"
            yield _finding(file, place, what, "error")
    absent = condition.absent
    if absent and absent != TriggerCondition.WILDCARD and is_whole and absent not in event_ids | page_ids:
        close = _close(absent, [*event_ids, *page_ids])
        hint = f"did you mean {close}?" if close else "the task is triggered each time its sequence has matched"
        what = f"no event of {log_name} has the event id or page id {absent!r}, which must be absent; {hint}"
        yield _finding(file, place, what, "warning")
    yield from _check_lines(log, log_name)


def _ids_of(log: EventLog) -> tuple[set[str], set[str], bool]:
    """Return the event ids and page ids of a log, and whether these are all."""
    event_ids: set[str] = set()
    page_ids: set[str] = set()
    records = log.records()
    for record in itertools.islice(records, _MAX_EVENTS):
        event_ids.add(record.event.event_id)
        page_ids.add(record.event.page_id)
        if max(len(event_ids), len(page_ids)) > _MAX_IDS:
            return event_ids, page_ids, False
    return event_ids, page_ids - {""}, next(records, None) is None


def _check_lines(log: EventLog, log_name: str) -> Iterator[Finding]:
    for report in log.reports[:_MAX_SHOWN]:
        what = f"this line is skipped: {report.reason}"
        yield Finding(file=log_name, line=report.line, column=0, code="event-line", message=what, level="warning")


def _close(name: str, known: Collection[str]) -> str:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=_SIMILAR)), "")


def _finding(file: str, place: tuple[int, int], message: str, level: Level) -> Finding:
    line, column = place
    return Finding(file=file, line=line, column=column, code="trigger-event", message=message, level=level)
