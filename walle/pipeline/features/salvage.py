"""Salvage of a damaged feature store: every row that can still be read and whose checksum holds goes into a new file.

The steps can be interrupted at any point: the new file is complete under another name before the damaged one is moved
aside, and `finish` ends what an earlier process began.
"""

import contextlib
import dataclasses
import glob
import logging
import os
import pathlib
import sqlite3
from collections.abc import Iterator

from walle.pipeline.features import epochs, store_schema, task_states
from walle.pipeline.features.checksums import next_link
from walle.pipeline.features.losses import Loss, LossCause
from walle.pipeline.features.store_schema import StoreState, is_sound, is_sound_feature

_LOG = logging.getLogger(__name__)

_MAX_ID = 1 << 62
_MAX_FAILURES = 20_000  # queries of a table that fail, before the rest of it is left
_BATCH = 500
_KEPT_ASIDE = 3  # damaged files
_UNREADABLE = (sqlite3.Error, UnicodeDecodeError)  # the latter if an error message quotes damaged text

type _Row = tuple[object, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Salvage:
    """The result: where the damaged file is now, and the rows of the new one.

    Events from `runs_again_from` on run again, although outputs of them may be stored: it is not known any more which
    tasks were done with them. None if that is known.
    """

    set_aside: pathlib.Path
    features: int
    uploads: int
    losses: list[Loss]
    runs_again_from: int | None = None
    lost_states: int = 0  # tasks whose state is lost; one if the table cannot be read


def finish(path: pathlib.Path) -> None:
    """Put the new file of an interrupted salvage in its place, or remove one that is incomplete."""
    new = _new_file(path)
    if path.exists():
        for file in (new, *_side_files(new)):
            file.unlink(missing_ok=True)
    elif new.exists():
        for file in _side_files(path):  # another database must not read the damaged file's logs
            file.unlink(missing_ok=True)
        new.rename(path)


def salvage(path: pathlib.Path, known: StoreState | None, now_ms: int, *, is_replay_known: bool = True) -> Salvage:
    """Set the damaged file aside, with its write-ahead log, and put a new one with its readable rows in its place.

    The new file has a new epoch, with the reports of uploads that could not be read. `known` is the state after the
    latest transaction, as far as it is known; `is_replay_known` says if that includes its replay state.

    Of the damaged files that were set aside, the latest three stay.

    Raises:
        sqlite3.Error, OSError: the new file cannot be written. The damaged file is where it was.
    """
    finish(path)
    new = _new_file(path)
    features = uploads = lost_states = 0
    with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        store_schema.create(db, StoreState.new())
        state = known
        runs_again_from = None if known is None or is_replay_known else known.resume_from
        with _damaged(path) as old:
            if old is not None:
                features = _copy_features(old, db)
                uploads = _copy_outbox(old, db)
                lost_states = _copy_task_states(old, db)
                # The state row is older than the known one if the end of the write-ahead log is lost.
                with contextlib.suppress(*_UNREADABLE):
                    found = store_schema.read_state(old)
                    if state is None or found.commits >= state.commits:
                        state, runs_again_from = found, None
        if state is None:
            state = _state_of_rows(db)
            runs_again_from = 0
        # Where neither a state row nor a mark says how far the numbers went, the end of the loss is open.
        unknown = [] if known else [Loss(state.epoch, state.last_seq + 1, None, LossCause.DAMAGED)]
        state, losses = epochs.start_epoch(db, state, unknown, now_ms)
        db.execute("COMMIT")
    _sync_file(new)
    aside = _free_name(path, now_ms)
    for suffix in ("", "-wal"):  # once the file is gone, `finish` takes the new one for complete
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    finish(path)
    _remove_oldest(path, aside)
    _sync_file(path.parent)
    return Salvage(aside, features, uploads, losses, runs_again_from, lost_states)


def _free_name(path: pathlib.Path, now_ms: int) -> pathlib.Path:
    """Return the name for a damaged file; a clock that is set back must not replace an earlier one."""
    while (aside := path.with_name(f"{path.name}.damaged-{now_ms}")).exists():
        now_ms += 1
    return aside


def _remove_oldest(path: pathlib.Path, newest: pathlib.Path) -> None:
    """Remove the damaged files before the latest few, so that a bad disk is not filled by them."""
    found = [file for file in path.parent.glob(f"{glob.escape(path.name)}.damaged-*") if not file.name.endswith("-wal")]
    found = sorted((file for file in found if file != newest), key=lambda file: file.stat().st_mtime_ns)
    for old in found[: max(0, len(found) - _KEPT_ASIDE + 1)]:
        _LOG.warning("%s, an earlier damaged feature store, is removed: the latest %d are kept", old, _KEPT_ASIDE)
        for suffix in ("-wal", ""):
            old.with_name(old.name + suffix).unlink(missing_ok=True)


def _new_file(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.name}.salvaged")


def _side_files(path: pathlib.Path) -> list[pathlib.Path]:
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal")]


def _sync_file(path: pathlib.Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextlib.contextmanager
def _damaged(path: pathlib.Path) -> Iterator[sqlite3.Connection | None]:
    """Open the damaged file for reading, which changes neither it nor its log; None if SQLite cannot read any of it."""
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        db.text_factory = lambda data: data.decode("utf-8", "replace")
        try:
            db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except _UNREADABLE:
            yield None
        else:
            yield db


def _copy_features(old: sqlite3.Connection, new: sqlite3.Connection) -> int:
    insert = "INSERT OR IGNORE INTO features (id, topic, ts_ms, position, payload, checksum) VALUES (?, ?, ?, ?, ?, ?)"
    before = new.total_changes
    for rows in _read(old, "features", "id", "id, topic, ts_ms, position, payload, checksum"):
        new.executemany(insert, [row for row in rows if is_sound_feature(row[1], row[4], row[2], row[3], row[5])])
    return new.total_changes - before


def _copy_outbox(old: sqlite3.Connection, new: sqlite3.Connection) -> int:
    # Damage to a number makes one occur twice. The chain tells the number of a row that follows the one before; what is
    # missing in the end is reported as a loss.
    columns = "seq, topic, payload, created_ms, checksum, chain"
    with contextlib.suppress(*_UNREADABLE):
        if any(row[1] == "version" for row in old.execute("PRAGMA table_info(outbox)")):
            columns += ", version, version_checksum"
    marks = ", ".join("?" * len(columns.split(", ")))
    insert = f"INSERT OR IGNORE INTO outbox ({columns}) VALUES ({marks})"  # noqa: S608 - made of constants
    before = new.total_changes
    last: tuple[int, int] | None = None  # number and chain value of the row before
    for rows in _read(old, "outbox", "seq", columns):
        for read_seq, *row in rows:
            if not is_sound(*row[:4]):
                continue
            checksum, chain = row[3:5]
            follows = last is not None and isinstance(checksum, int) and chain == next_link(last[1], checksum)
            seq = last[0] + 1 if last is not None and follows else read_seq
            new.execute(insert, (seq, *row))
            last = (seq, chain) if isinstance(seq, int) and isinstance(chain, int) else None
    return new.total_changes - before


def _copy_task_states(old: sqlite3.Connection, new: sqlite3.Connection) -> int:
    """Copy the states that can be read; return how many cannot."""
    try:
        states, damaged = task_states.read_states(old)
    except _UNREADABLE:
        try:  # entries whose times cannot be read get new ones
            states, damaged = task_states.read_states(old, with_times=False)
        except _UNREADABLE:
            return 1
    if states:
        task_states.write_states(new, {state.key: state for state in states})
    return damaged


def _read(db: sqlite3.Connection, table: str, key: str, columns: str) -> Iterator[list[_Row]]:
    """Yield the readable rows in the order of their keys.

    A query that meets a damaged page fails; its range is then halved around the damage, down to single rows.
    """
    query = f"SELECT {columns} FROM {table} NOT INDEXED WHERE {key} BETWEEN ? AND ? ORDER BY {key} LIMIT {_BATCH}"  # noqa: S608 - made of constants
    ranges, failures = [(0, _MAX_ID)], 0
    while ranges and failures < _MAX_FAILURES:
        first, last = ranges.pop()
        rows: list[_Row] = []
        whole = True
        try:
            rows.extend(db.execute(query, (first, last)))
        except _UNREADABLE:
            whole = False
            failures += 1
        if rows:
            yield rows
            if not whole or len(rows) == _BATCH:
                first = int(str(rows[-1][0])) + 1
                ranges += [(first, last)] * (first <= last)
        elif not whole and first < last:
            middle = (first + last) // 2
            ranges += [(middle + 1, last), (first, middle)]


def _state_of_rows(db: sqlite3.Connection) -> StoreState:
    """Return a state that fits the salvaged outbox. The stream starts again at its first event."""
    state = StoreState.new()
    first, last = db.execute("SELECT min(seq), max(seq) FROM outbox").fetchone()
    if first is not None:
        db.execute("UPDATE outbox SET seq = seq - ?", (first - 1,))
        state.last_seq = last - first + 1
    return state
