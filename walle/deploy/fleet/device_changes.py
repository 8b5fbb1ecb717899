"""Changes of the registry of devices: by a profile that was sent, and by a report of outcomes."""

import dataclasses
import hashlib
import json
import math
import sqlite3
from collections.abc import Collection
from typing import Any, Protocol

from walle.protocol import Failure, Outcome, OutcomeBatch, OutcomeKind, Profile, ProtocolError, whole_characters

MAX_DEVICE_TASKS = 400  # §7.1 has 348 active tasks; a row has about 100 bytes on the disk
MAX_SIGHTING_BYTES = 32 << 10  # limit of a profile with all of its tasks, as the gateway passes it on
MAX_DEVICE_FAILURES = 20
_MAX_APP_VERSION = 100  # characters
_MAX_ATTRIBUTES = 2_000  # characters of JSON
_MAX_TASK = 300  # characters
# Tasks that may make room for others of their device. Anyone may send profiles: they remove nothing that was reported.
_REMOVED_BY_PROFILES = "active = '' AND reported_s IS NULL"
_REMOVED_BY_REPORTS = "(active = '' OR reported_s IS NULL)"


class Change(Protocol):
    """A change of what is known of `device_id`, made in the tables of `walle.deploy.fleet.sqlite_registry`."""

    @property
    def device_id(self) -> str: ...

    def __call__(self, db: sqlite3.Connection) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Sighting:
    """A device that sent a profile. One that it sent before is not read again."""

    device_id: str
    header: bytes
    now_s: float

    def __call__(self, db: sqlite3.Connection) -> None:
        digest = hashlib.blake2b(self.header, digest_size=16).digest()
        same = "UPDATE devices SET last_seen_s = ? WHERE device_id = ? AND profile = ?"
        if db.execute(same, (self.now_s, self.device_id, digest)).rowcount:
            return
        try:
            profile = Profile.from_header(self.header.decode(), max_bytes=MAX_SIGHTING_BYTES)
        except (ProtocolError, UnicodeDecodeError):
            return
        app_version = whole_characters(profile.app_version[:_MAX_APP_VERSION])
        db.execute(
            "INSERT INTO devices VALUES (?, ?, ?, ?, ?, ?, NULL) ON CONFLICT (device_id) DO UPDATE SET"
            " profile = excluded.profile, app_version = excluded.app_version, attributes = excluded.attributes,"
            " last_seen_s = excluded.last_seen_s",
            (self.device_id, digest, app_version, _attributes(profile), self.now_s, self.now_s),
        )
        active = {
            whole_characters(task[:_MAX_TASK]): whole_characters(version[:_MAX_APP_VERSION])
            for task, version in profile.tasks.items()
        }
        known = _known_tasks(db, self.device_id)
        gone = [(self.device_id, task) for task in known - active.keys()]
        db.executemany("UPDATE tasks SET active = '' WHERE device_id = ? AND task = ?", gone)
        _make_room(db, self.device_id, known, active.keys(), by=_REMOVED_BY_PROFILES)
        rows = []
        for task, version in active.items():
            if task in known or len(known) < MAX_DEVICE_TASKS:
                known.add(task)
                rows.append((self.device_id, task, version))
        db.executemany(
            "INSERT INTO tasks VALUES (?, ?, ?, '', '', '', NULL, 0, 0)"
            " ON CONFLICT (device_id, task) DO UPDATE SET active = excluded.active WHERE active != excluded.active",
            rows,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """A report of outcomes."""

    batch: OutcomeBatch
    now_s: float

    @property
    def device_id(self) -> str:
        return self.batch.device_id

    @property
    def weight(self) -> int:
        """Weight of the change while it waits in memory."""
        return 1 + len(self.batch.outcomes) + 8 * sum(len(_failures(outcome)) for outcome in self.batch.outcomes)

    def __call__(self, db: sqlite3.Connection) -> None:
        device_id, now_s = self.batch.device_id, self.now_s
        db.execute(
            "INSERT INTO devices VALUES (?, x'', '', '{}', ?, ?, ?) ON CONFLICT (device_id) DO UPDATE SET"
            " last_seen_s = excluded.last_seen_s, reported_s = excluded.reported_s",
            (device_id, now_s, now_s, now_s),
        )
        known = _known_tasks(db, device_id)
        wanted = {outcome.task[:_MAX_TASK] for outcome in self.batch.outcomes}
        _make_room(db, device_id, known, wanted, by=_REMOVED_BY_REPORTS)
        has_failures = False
        for outcome in self.batch.outcomes:
            task = outcome.task[:_MAX_TASK]
            if task not in known and len(known) >= MAX_DEVICE_TASKS:
                continue
            known.add(task)
            self._note_standing(db, task, outcome)
            for failure in _failures(outcome):
                has_failures = True
                db.execute(
                    "INSERT INTO failures (device_id, task, version, release, kind, at_s, failure)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        device_id,
                        task,
                        outcome.version[:_MAX_APP_VERSION],
                        outcome.release[:_MAX_TASK],
                        outcome.kind.value,
                        now_s,
                        json.dumps(dataclasses.asdict(failure)),
                    ),
                )
        if has_failures:
            db.execute(
                "DELETE FROM failures WHERE device_id = ? AND number <= (SELECT number FROM failures"
                " WHERE device_id = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
                (device_id, device_id, MAX_DEVICE_FAILURES),
            )

    def _note_standing(self, db: sqlite3.Connection, task: str, outcome: Outcome) -> None:
        version, is_run = outcome.version[:_MAX_APP_VERSION], outcome.kind is OutcomeKind.RUN
        # Counts begin again with another version; a run does not change the state of the version.
        db.execute(
            "INSERT INTO tasks VALUES (?, ?, '', ?, ?, ?, ?, ?, ?) ON CONFLICT (device_id, task) DO UPDATE SET"
            " ok = min(1000000000000000, excluded.ok + (version = excluded.version) * ok),"
            " failed = min(1000000000000000, excluded.failed + (version = excluded.version) * failed),"
            " state = CASE WHEN ? AND version = excluded.version THEN state ELSE excluded.state END,"
            " version = excluded.version, release = excluded.release, reported_s = excluded.reported_s",
            (
                self.batch.device_id,
                task,
                version,
                outcome.kind.value,
                outcome.release[:_MAX_TASK],
                self.now_s,
                outcome.ok,
                outcome.failed,
                is_run,
            ),
        )


def _known_tasks(db: sqlite3.Connection, device_id: str) -> set[str]:
    return {task for (task,) in db.execute("SELECT task FROM tasks WHERE device_id = ?", (device_id,)).fetchall()}


def _make_room(db: sqlite3.Connection, device_id: str, known: set[str], wanted: Collection[str], *, by: str) -> None:
    """Remove the device's tasks that `by` allows, where those that are wanted make too many."""
    excess = len(known.union(wanted)) - MAX_DEVICE_TASKS
    if excess <= 0:
        return
    query = (
        f"SELECT task FROM tasks WHERE device_id = ? AND {by} ORDER BY reported_s IS NOT NULL, active != '', reported_s"  # noqa: S608 - ours
    )
    removable = [task for (task,) in db.execute(query, (device_id,)) if task not in wanted]
    for task in removable[:excess]:
        db.execute("DELETE FROM tasks WHERE device_id = ? AND task = ?", (device_id, task))
        known.discard(task)


def _failures(outcome: Outcome) -> tuple[Failure, ...]:
    if outcome.failures or not outcome.error:
        return outcome.failures
    count = max(1, outcome.failed)  # the device does not describe its failures, or they are not of task code
    return (Failure(error_type="", error=outcome.error, place=outcome.place, log=outcome.log, count=count),)


def _attributes(profile: Profile) -> str:
    """Return a profile's attributes as JSON: the first ones that fit, without numbers that JSON lacks."""
    kept: dict[str, Any] = {}
    size = 2
    for name, value in profile.attributes.items():
        if isinstance(value, float) and not math.isfinite(value):
            continue
        clean = whole_characters(value) if isinstance(value, str) else value
        size += len(json.dumps({name: clean}))
        if size > _MAX_ATTRIBUTES:
            break
        kept[whole_characters(name)] = clean
    return json.dumps(kept)
