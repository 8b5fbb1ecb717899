"""The tables of a feature store's file, its state row, and the migration of older files."""

import dataclasses
import json
import secrets
import sqlite3
import zlib
from collections.abc import Mapping, Sequence

from walle.pipeline.features import checksums
from walle.pipeline.features.store_lock import Mark
from walle.protocol import Origin, ProtocolError, origins_from_text, origins_to_text

FORMAT = 3  # value of PRAGMA user_version; a walle without `add_versions` reads and writes a file with these columns
APPLICATION_ID = 0x57414C4C  # "WALL"
ROW_OVERHEAD_BYTES = 32  # size of a row without its topic and payload, about; the schema has it too

_STEPS = "@steps"  # no task has such a name
_encode = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps makes an encoder for each call

_STATE = """
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), epoch TEXT NOT NULL, origins TEXT NOT NULL,
    acked INTEGER NOT NULL, acked_chain INTEGER NOT NULL, last_seq INTEGER NOT NULL, last_chain INTEGER NOT NULL,
    position INTEGER NOT NULL, resume_from INTEGER NOT NULL, commits INTEGER NOT NULL, produced INTEGER NOT NULL,
    replay TEXT NOT NULL, checksum INTEGER NOT NULL)
"""
# Of the task that made the upload, "" if unknown; with its CRC-32, since the row's checksum is that of the chain.
_VERSIONS = ("version TEXT NOT NULL DEFAULT ''", "version_checksum INTEGER NOT NULL DEFAULT 0")
_SCHEMA = f"""
CREATE TABLE features (id INTEGER PRIMARY KEY, topic TEXT NOT NULL, ts_ms INTEGER NOT NULL, position INTEGER NOT NULL,
    payload BLOB NOT NULL, checksum INTEGER NOT NULL,
    size_bytes INTEGER AS (length(topic) + length(payload) + {ROW_OVERHEAD_BYTES}));
CREATE INDEX features_by_topic ON features (topic, id);
CREATE TABLE outbox (seq INTEGER PRIMARY KEY, topic TEXT NOT NULL, payload BLOB NOT NULL, created_ms INTEGER NOT NULL,
    checksum INTEGER NOT NULL, chain INTEGER NOT NULL,
    size_bytes INTEGER AS (length(topic) + length(payload) + {ROW_OVERHEAD_BYTES}), {", ".join(_VERSIONS)});
{_STATE}
"""


class DamageError(sqlite3.DatabaseError):
    """Contents of the file that no store wrote."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayState:
    """The state of a stream that a replay from `resume_from` cannot restore.

    `lagging`: the tasks that are behind the stream's position, each with the position up to which its outputs are put.
    `cut_visits`: `EventStream.cut_before` the position `cut_position`, None for the stream's next position.
    `cooldowns`: the tasks with a cool-down, each with the time of its latest trigger before that position.
    `steps`: of lagging tasks, the number of triggers at the next position whose outputs are put, if there are some.
    """

    lagging: Mapping[str, int] = dataclasses.field(default_factory=dict)
    cut_visits: Sequence[str] = ()
    cut_position: int | None = None
    cooldowns: Mapping[str, int] = dataclasses.field(default_factory=dict)
    steps: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def to_text(self) -> str:
        parts: list[object] = [dict(self.lagging), list(self.cut_visits), self.cut_position]
        if self.steps:
            # An older walle refuses a fifth part, and ignores the cool-down of an unknown task.
            parts.append({**self.cooldowns, _STEPS: dict(self.steps)})
        elif self.cooldowns:
            parts.append(dict(self.cooldowns))
        return _encode(parts)

    @classmethod
    def from_text(cls, text: str) -> "ReplayState":
        """Return the state that `to_text` wrote. Raises ValueError or TypeError for any other text."""
        lagging, cut_visits, cut_position, *rest = json.loads(text)
        (cooldowns,) = map(dict, rest or [{}])
        steps = dict(cooldowns.pop(_STEPS, {}))
        return cls(dict(lagging), tuple(cut_visits), cut_position, cooldowns, steps)


@dataclasses.dataclass(slots=True, kw_only=True)
class StoreState:
    """The file's state beside its rows.

    `acked_chain` and `last_chain` are the chain values at `acked` and `last_seq`.
    """

    epoch: str
    origins: tuple[Origin, ...] = ()
    acked: int = 0
    acked_chain: int
    last_seq: int = 0
    last_chain: int
    position: int = -1
    resume_from: int = 0
    commits: int = 0
    produced: int = 0  # uploads put since the file was made, over all epochs
    replay: ReplayState = dataclasses.field(default_factory=ReplayState)
    outbox_bytes: int = 0  # sum over the rows: the state row does not have it

    @classmethod
    def new(cls) -> "StoreState":
        epoch = secrets.token_hex(16)
        first = checksums.first_link(epoch)
        return cls(epoch=epoch, acked_chain=first, last_chain=first)

    @classmethod
    def from_mark(cls, mark: Mark) -> "StoreState":
        """Return the state that a mark describes.

        If the mark lacks the replay state, no position after `resume_from` counts as done: tasks may have been behind.
        """
        values = {field.name: getattr(mark, field.name) for field in dataclasses.fields(mark)}
        values["origins"] = origins_from_text(mark.origins)
        values["replay"] = ReplayState() if mark.replay is None else ReplayState.from_text(mark.replay)
        if mark.replay is None:
            values["position"] = min(mark.position, mark.resume_from - 1)
        return cls(**values)

    def mark(self) -> Mark:
        return Mark(
            epoch=self.epoch,
            origins=origins_to_text(self.origins),
            acked=self.acked,
            acked_chain=self.acked_chain,
            last_seq=self.last_seq,
            last_chain=self.last_chain,
            position=self.position,
            resume_from=self.resume_from,
            commits=self.commits,
            produced=self.produced,
            replay=self.replay.to_text(),
        )


def create(db: sqlite3.Connection, state: StoreState) -> None:
    """Create the tables in an empty file, in the open transaction."""
    for statement in _SCHEMA.split(";"):
        db.execute(statement)
    write_state(db, state)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {FORMAT}")


def write_state(db: sqlite3.Connection, state: StoreState) -> None:
    values = (
        state.epoch,
        origins_to_text(state.origins),
        state.acked,
        state.acked_chain,
        state.last_seq,
        state.last_chain,
        state.position,
        state.resume_from,
        state.commits,
        state.produced,
        state.replay.to_text(),
    )
    db.execute(
        "INSERT OR REPLACE INTO state VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*values, _state_checksum(values)),
    )


def read_state(db: sqlite3.Connection) -> StoreState:
    """Return the state. Raises DamageError if its row is missing or was altered."""
    row = db.execute(
        "SELECT epoch, origins, acked, acked_chain, last_seq, last_chain, position, resume_from, commits, produced,"
        " replay, checksum FROM state"
    ).fetchone()
    if row is None or _state_checksum(row[:-1]) != row[-1]:
        raise DamageError("the state row is missing or altered")
    epoch, origins, *numbers, replay = row[:-1]
    names = ("acked", "acked_chain", "last_seq", "last_chain", "position", "resume_from", "commits", "produced")
    try:
        state = StoreState(epoch=epoch, origins=origins_from_text(origins), **dict(zip(names, numbers, strict=True)))
        state.replay = ReplayState.from_text(replay)
    except (ProtocolError, ValueError, TypeError) as error:
        raise DamageError(str(error)) from error
    state.outbox_bytes = outbox_bytes(db)
    return state


def add_versions(db: sqlite3.Connection) -> None:
    """Add the columns of versions to an outbox that has none, in the open transaction."""
    if not any(row[1] == "version" for row in db.execute("PRAGMA table_info(outbox)")):
        for column in _VERSIONS:
            db.execute(f"ALTER TABLE outbox ADD COLUMN {column}")


def sound_version(version: object, checksum: object) -> str:
    """Return the version of an outbox row, "" if it is not what was written."""
    return version if isinstance(version, str) and zlib.crc32(version.encode()) == checksum else ""


def outbox_bytes(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(sum(size_bytes), 0) FROM outbox").fetchone()[0])


def _state_checksum(values: tuple[object, ...]) -> int:
    return zlib.crc32(repr(values).encode())


def is_sound(topic: object, payload: object, ts_ms: object, checksum: object) -> bool:
    """Return whether an outbox row is what was written."""
    return (
        type(topic) is str
        and type(payload) is bytes
        and type(ts_ms) is int
        and checksums.row_checksum(topic, payload, ts_ms) == checksum
    )


def is_sound_feature(topic: object, payload: object, ts_ms: object, position: object, checksum: object) -> bool:
    """Return whether a feature row is what was written."""
    return (
        type(topic) is str
        and type(payload) is bytes
        and type(ts_ms) is int
        and type(position) is int
        and checksums.feature_checksum(checksums.row_checksum(topic, payload, ts_ms), position) == checksum
    )


def migrate(db: sqlite3.Connection) -> StoreState:
    """Bring a file of format 1 or 2 to this format, in the open transaction, and return its state.

    The older formats kept no chain value at the last acknowledged number; the caller must start a new epoch.
    """
    db.create_function("row_checksum", 3, checksums.row_checksum, deterministic=True)
    db.create_function("feature_checksum", 2, checksums.feature_checksum, deterministic=True)
    epoch, last_seq, position, resume_from = db.execute(
        "SELECT epoch, last_seq, position, resume_from FROM state"
    ).fetchone()
    acked = db.execute("SELECT coalesce(min(seq) - 1, ?) FROM outbox", (last_seq,)).fetchone()[0]
    for table, value in (
        ("features", "feature_checksum(row_checksum(topic, payload, ts_ms), position)"),
        ("outbox", "row_checksum(topic, payload, created_ms)"),
    ):
        db.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0")
        db.execute(f"UPDATE {table} SET checksum = {value}")  # noqa: S608 - made of constants
    db.execute("ALTER TABLE outbox ADD COLUMN chain INTEGER NOT NULL DEFAULT 0")
    db.execute("DROP TABLE state")
    db.execute(_STATE)
    db.execute(f"PRAGMA user_version = {FORMAT}")
    state = StoreState(
        epoch=epoch,
        acked=acked,
        acked_chain=0,
        last_seq=last_seq,
        last_chain=0,
        position=position,
        resume_from=resume_from,
        produced=last_seq,
    )
    write_state(db, state)
    return state
