"""Audit log in a folder: segments of records, appended by one process at a time.

Several processes may append to one folder: each holds its lock, and reads what others have appended.
"""

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Unpack

from walle.access.audit import (
    FIRST,
    HEAD_EVERY,
    HEAD_FILE,
    AuditError,
    AuditFields,
    AuditHead,
    AuditRecord,
    OwingLog,
    SignHead,
    Verification,
    make_record,
    read_records,
    segments_of,
    verify,
)
from walle.base.clock import Clock
from walle.base.durable_file import make_folders, sync_folder, write_all, write_file

SEGMENT_BYTES = 4 << 20
MAX_SEGMENTS = 64  # 256 MiB with SEGMENT_BYTES
_LOG = logging.getLogger(__name__)


class AuditLog(OwingLog):
    """The log in a folder, which is made where it is missing. May be used from any thread.

    Segments have `segment_bytes` each; the oldest of more than `max_segments` is removed, which a record says.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        sign: SignHead,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        max_segments: int = MAX_SEGMENTS,
    ) -> None:
        super().__init__()
        self.folder = folder
        self._clock = clock
        self._sign = sign
        self._segment_bytes = segment_bytes
        self._max_segments = max_segments
        self._number, self._hash = 0, FIRST  # number and hash of the last record
        self._segment: Path | None = None
        self._size_bytes = 0  # size of that segment, as far as this process has read it
        self._is_head_due = False

    def append(self, action: str, **fields: Unpack[AuditFields]) -> AuditRecord:
        """Append a record and return it once it is durable; blocks.

        Raises:
            AuditError: it is not durable, or the log's end is not that of a log.
        """
        with self._appending():
            while self._owed:
                late_action, late = self._owed[0]
                self._append(late_action, {**late, "details": {**(late.get("details") or {}), "late": True}})
                self._owed.popleft()
            if self._owed_lost:
                self._append("audit.lost", {"who": "audit", "details": {"records": self._owed_lost}})
                self._owed_lost = 0
            self._append(action, fields)
            assert self._last is not None
            return self._last

    def head(self) -> AuditHead:
        """Return the signed head of what the folder has now, and put it beside the segments; blocks.

        Raises:
            AuditError: the log cannot be read, or the head not written.
        """
        with self._appending():
            return self._write_head()

    def last_head(self) -> AuditHead | None:
        path = self.folder / HEAD_FILE
        return AuditHead.load(path) if path.exists() else None

    def records(self, *, after: int = 0, limit: int = 1000) -> list[AuditRecord]:
        """Return records, as `read_records`."""
        return read_records(self.folder, after=after, limit=limit)

    def verified(self, *, heads: tuple[AuditHead, ...] = (), public_key: bytes | None = None) -> Verification:
        """Check the log, as `verify`."""
        return verify(self.folder, heads=heads, public_key=public_key)

    # --- one process at a time ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _appending(self) -> Iterator[None]:
        """Hold the folder's lock, with the last segment open and what other processes have appended to it read."""
        try:
            make_folders(self.folder, mode=0o700)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._last: AuditRecord | None = None
            self._handle = self._opened()
            try:
                yield
            finally:
                os.close(self._handle)
        except OSError as error:
            self._segment = None  # what is on the disk is read again
            raise _unwritable(self.folder, error) from error
        finally:
            os.close(lock)

    def _opened(self) -> int:
        """Open the last segment for appending; read what this process has not seen of it."""
        segments = segments_of(self.folder)
        if not segments:
            self._number, self._hash = 0, FIRST
            return self._begin_segment()
        last = segments[-1]
        handle = os.open(last, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            size_bytes = os.fstat(handle).st_size
            if last != self._segment or size_bytes != self._size_bytes:
                self._read_end(handle, last, size_bytes)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _read_end(self, handle: int, path: Path, size_bytes: int) -> None:
        data = os.pread(handle, size_bytes, 0)
        whole, _, torn = data.rpartition(b"\n")
        lines = whole.split(b"\n") if whole else []
        if torn:  # a process was killed before its record was durable, and did not act
            _LOG.warning("%s: %d bytes of a record that was not finished are removed", path, len(torn))
            os.ftruncate(handle, len(data) - len(torn))
            os.fsync(handle)
        try:
            if lines:
                record = AuditRecord.from_line(lines[-1])
                self._number, self._hash = record.number, record.hash
            else:  # a segment without a record yet: its name says the number, the one before it the hash
                before = [one for one in segments_of(self.folder) if one != path]
                self._number = int(path.stem) - 1
                self._hash = FIRST
                if before:
                    last_line = before[-1].read_bytes().rstrip(b"\n").rpartition(b"\n")[2]
                    self._hash = AuditRecord.from_line(last_line).hash
        except ValueError as error:
            raise AuditError(path, f"its last line is not a record ({error}); see: walle audit verify") from error
        self._segment, self._size_bytes = path, len(data) - len(torn)

    def _begin_segment(self) -> int:
        path = self.folder / f"{self._number + 1:012d}.jsonl"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            sync_folder(self.folder)
        except BaseException:
            os.close(handle)
            raise
        self._segment, self._size_bytes = path, 0
        return handle

    def _append(self, action: str, fields: AuditFields) -> None:
        """Append a record, in a new segment where the present one is full."""
        if self._size_bytes >= self._segment_bytes:
            full, self._handle = self._handle, self._begin_segment()
            os.close(full)
            self._retain()
        self._write_record(action, fields)

    def _retain(self) -> None:
        segments = segments_of(self.folder)
        for oldest in segments[: max(0, len(segments) - self._max_segments)]:
            data = oldest.read_bytes()
            last = AuditRecord.from_line(data.rstrip(b"\n").rpartition(b"\n")[2])
            details = {"first": int(oldest.stem), "last": last.number, "hash": last.hash}
            self._write_record("audit.remove", {"who": "audit", "subject": oldest.name, "details": details})
            oldest.unlink()

    def _write_record(self, action: str, fields: AuditFields) -> None:
        record = make_record(self._number + 1, self._hash, self._clock.time(), action, fields)
        line = record.to_line()
        try:
            write_all(self._handle, line)
            os.fsync(self._handle)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, self._size_bytes)
            raise
        self._number, self._hash, self._last = record.number, record.hash, record
        self._size_bytes += len(line)
        self._is_head_due |= record.number % HEAD_EVERY == 0
        if self._is_head_due:
            try:
                self._write_head()
            except OSError as error:  # the record is durable all the same, and its caller may act
                _LOG.warning("%s: the signed head is renewed with the next record: %s", self.folder, error)
            else:
                self._is_head_due = False

    def _write_head(self) -> AuditHead:
        head = AuditHead.signed(self._sign, self._number, self._hash, self._clock.time())
        write_file(self.folder / HEAD_FILE, head.to_json())
        return head


def _unwritable(folder: Path, error: OSError) -> AuditError:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    make_room = "; make room on its disk" if is_full else ""
    why = f"{error.strerror}; nothing that needs a record is done until it can be written{make_room}"
    return AuditError(folder, why, is_full=is_full)
