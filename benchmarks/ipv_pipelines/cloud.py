"""The cloud-only baseline: raw events of all users in one table, joined by user and page in micro-batches.

The join, its CPU time and its results are real (SQLite). The clock is simulated, and so are the delays before an event
arrives: an SDK sends a batch at most `flush_s` after its first event; a batch travels for a log-normal time (median
80 ms); a share of them is late by an exponential time, as from a device in a lift or with the app in the background.
Each `tick_s` the cloud inserts what has arrived, and joins the page exits that came at least `lateness_s` ago. An event
that arrives after that is missing in its feature: the error that the paper counts (0.7 %).
"""

import dataclasses
import heapq
import json
import math
import random
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.ipv.training_data import task_module
from walle.pipeline.events.event import PAGE_ENTER, PAGE_EXIT, Event
from walle.pipeline.stream.events import Events

LONGEST_PAUSE_MS = 60_000  # longer pauses are cut, so that the users of a log overlap
_TRAVEL_MEDIAN_MS, _TRAVEL_SIGMA = 80.0, 0.6
_SCHEMA = """
CREATE TABLE events (user TEXT, page TEXT, seq INTEGER, kind TEXT, ts_ms INTEGER, contents TEXT);
CREATE INDEX by_page ON events (user, page, seq);
CREATE INDEX by_enter ON events (user, page, seq) WHERE kind = 'page_enter';
CREATE TEMP TABLE due (number INTEGER PRIMARY KEY, user TEXT, page TEXT, seq INTEGER);
"""
_JOIN = """
SELECT due.number, events.kind, events.ts_ms, events.contents FROM due JOIN events
ON events.user = due.user AND events.page = due.page AND events.seq <= due.seq AND events.seq >= (
    SELECT max(seq) FROM events AS enter
    WHERE enter.user = due.user AND enter.page = due.page AND enter.seq <= due.seq AND enter.kind = 'page_enter')
ORDER BY due.number, events.seq
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Settings of the baseline: the SDK's, the cloud's, and the share and mean of late batches."""

    name: str
    flush_s: float
    at_exit: bool  # the SDK sends at each page exit too
    tick_s: float
    lateness_s: float
    late_share: float = 0.02
    late_mean_s: float = 60.0


PLANS = (
    Plan("eager", flush_s=10, at_exit=True, tick_s=1, lateness_s=0),
    Plan("patient", flush_s=10, at_exit=False, tick_s=10, lateness_s=60),
)


@dataclasses.dataclass(kw_only=True)
class CloudRun:
    """Measures of the baseline. A feature is wrong if it differs from the one of the whole visit in its order."""

    visits: int = 0
    missing: int = 0
    wrong: int = 0
    cpu_s: float = 0.0
    feature_ms: list[float] = dataclasses.field(default_factory=list)  # page exit to feature, on the simulated clock


def overlapping(events: Mapping[str, Sequence[Event]], rng: random.Random) -> dict[str, list[Event]]:
    """Return the events with long pauses cut and each user's start within the first minute."""
    shifted = {}
    for user, theirs in events.items():
        now_ms, before_ms, found = rng.randrange(LONGEST_PAUSE_MS), theirs[0].ts_ms, []
        for event in theirs:
            now_ms += min(LONGEST_PAUSE_MS, max(0, event.ts_ms - before_ms))
            before_ms = event.ts_ms
            found.append(Event(event.event_id, event.page_id, now_ms, event.contents))
        shifted[user] = found
    return shifted


def sdk_batches(events: Sequence[Event], plan: Plan) -> Iterator[tuple[int, int, list[Event]]]:
    """Yield the batches that the SDK sends: time, number of the first event, events."""
    batch: list[Event] = []
    for number, event in enumerate(events):
        if batch and event.ts_ms - batch[0].ts_ms >= plan.flush_s * 1000:
            yield round(batch[0].ts_ms + plan.flush_s * 1000), number - len(batch), batch
            batch = []
        batch.append(event)
        if plan.at_exit and event.event_id == PAGE_EXIT:
            yield event.ts_ms, number + 1 - len(batch), batch
            batch = []
    if batch:
        yield round(batch[0].ts_ms + plan.flush_s * 1000), len(events) - len(batch), batch


def run_cloud(events: Mapping[str, Sequence[Event]], plan: Plan, folder: Path, seed: int) -> CloudRun:
    """Run the baseline over the events of all users, which overlap in time."""
    ipv_feature = task_module("features").ipv_feature
    rng = random.Random(f"{seed}/{plan.name}")
    measures = CloudRun()
    wanted: dict[tuple[str, int], Any] = {}
    arrivals = []
    for user, theirs in events.items():
        for number, visit in _visits(theirs):
            wanted[user, number] = ipv_feature(Events(visit))
        for sent_ms, first, batch in sdk_batches(theirs, plan):
            late_ms = rng.expovariate(1 / plan.late_mean_s) * 1000 if rng.random() < plan.late_share else 0.0
            travel_ms = rng.lognormvariate(math.log(_TRAVEL_MEDIAN_MS), _TRAVEL_SIGMA)
            rows = [_row(user, number, event) for number, event in enumerate(batch, first)]
            arrivals.append((sent_ms + travel_ms + late_ms, user, first, rows))
    arrivals.sort(key=lambda arrival: arrival[:3])
    measures.visits = len(wanted)
    database = sqlite3.connect(folder / f"{plan.name}.db", isolation_level=None)
    database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + _SCHEMA)
    waiting: list[tuple[float, str, str, int, int]] = []  # due time, user, page, seq, time of the exit
    tick_ms, next_arrival = plan.tick_s * 1000, 0
    now_ms = 0.0
    while next_arrival < len(arrivals) or waiting:
        upcoming = [arrivals[next_arrival][0]] if next_arrival < len(arrivals) else []
        upcoming += [waiting[0][0]] if waiting else []
        now_ms = max(now_ms + tick_ms, math.ceil(min(upcoming) / tick_ms) * tick_ms)
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        database.execute("BEGIN")
        while next_arrival < len(arrivals) and arrivals[next_arrival][0] <= now_ms:
            arrived_ms, user, _, rows = arrivals[next_arrival]
            database.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
            for row in rows:
                if row[3] == PAGE_EXIT:
                    heapq.heappush(waiting, (arrived_ms + plan.lateness_s * 1000, user, row[1], row[2], row[4]))
            next_arrival += 1
        due = []
        while waiting and waiting[0][0] <= now_ms:
            due.append(heapq.heappop(waiting))
        found = _joined(database, due, ipv_feature) if due else {}
        database.execute("COMMIT")
        measures.cpu_s += time.process_time() - started_cpu_s
        took_ms = (time.perf_counter() - started_s) * 1000
        for number, (_, user, _, seq, exit_ms) in enumerate(due):
            if (user, seq) not in wanted:
                continue  # an exit without an enter
            if number not in found:
                measures.missing += 1
                continue
            measures.wrong += found[number] != wanted[user, seq]
            measures.feature_ms.append(now_ms + took_ms - exit_ms)
    database.close()
    return measures


def _row(user: str, seq: int, event: Event) -> tuple[str, str, int, str, int, str]:
    contents = json.dumps(dict(event.contents), separators=(",", ":"))
    return user, event.page_id, seq, event.event_id, event.ts_ms, contents


def _joined(
    database: sqlite3.Connection, due: Sequence[tuple[float, str, str, int, int]], ipv_feature: Any
) -> dict[int, Any]:
    """Return the feature of each due exit whose enter has arrived, by its place in `due`."""
    database.execute("DELETE FROM due")
    rows = [(number, user, page, seq) for number, (_, user, page, seq, _) in enumerate(due)]
    database.executemany("INSERT INTO due VALUES (?, ?, ?, ?)", rows)
    events: dict[int, list[Event]] = {}
    for number, kind, ts_ms, contents in database.execute(_JOIN):
        events.setdefault(number, []).append(Event(kind, due[number][2], ts_ms, json.loads(contents)))
    return {number: ipv_feature(Events(theirs)) for number, theirs in events.items()}


def _visits(events: Sequence[Event]) -> Iterator[tuple[int, list[Event]]]:
    """Yield each visit with the number of its exit: the events of its page from the latest enter on."""
    opened: dict[str, list[Event]] = {}
    for number, event in enumerate(events):
        if event.event_id == PAGE_ENTER:
            opened[event.page_id] = []
        if event.page_id in opened:
            opened[event.page_id].append(event)
            if event.event_id == PAGE_EXIT:
                yield number, opened.pop(event.page_id)
