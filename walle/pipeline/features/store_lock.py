"""The lock file of a feature store, and the mark of the store's latest transaction in it.

SQLite's own lock lasts one transaction; this one keeps others out between them. The mark is written after each commit
and not synchronised: it survives a killed process, and a power cut may leave an older one. So a mark that is newer than
the store's file shows that the file went back in time or lost the end of its write-ahead log, also while the device is
offline.
"""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import zlib
from typing import Self

_MARK_BYTES = 4096  # one page: a process that is killed has written all of it or nothing
_CHECKSUM_BYTES = 8  # length in hex digits
_FORMAT = "walle-3"  # a later format of the store must change it: the mark vouches for the format of the file

_NONE = "-"
_UNKNOWN = "?"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The state of the store's file after a transaction. `commits` counts the transactions of the file.

    `replay` is the text of the ReplayState, None if it is unknown: it was too long, or an older walle wrote the mark.
    """

    epoch: str
    origins: str  # origins in the text form of a Hello
    acked: int
    acked_chain: int
    last_seq: int
    last_chain: int
    position: int
    resume_from: int
    commits: int
    produced: int
    replay: str | None

    def encode(self) -> bytes:
        numbers = (
            f"{_FORMAT} {self.epoch} {self.origins or _NONE} {self.acked} {self.acked_chain} {self.last_seq}"
            f" {self.last_chain} {self.position} {self.resume_from} {self.commits} {self.produced}"
        )
        # A space of a JSON text is inside one of its strings.
        replay = _UNKNOWN if self.replay is None else self.replay.replace(" ", "\\u0020")
        text = f"{numbers} {replay}".encode()
        if len(text) > _MARK_BYTES - _CHECKSUM_BYTES:
            text = f"{numbers} {_UNKNOWN}".encode()
        return b"%08x%s" % (zlib.crc32(text), text)

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """Return the mark, None if the bytes are not one."""
        text = data[_CHECKSUM_BYTES:].rstrip(b"\0")
        if data[:_CHECKSUM_BYTES] != b"%08x" % zlib.crc32(text):
            return None
        names = [field.name for field in dataclasses.fields(cls)][2:-1]
        try:
            format_, epoch, origins, *values = text.decode().split(" ")
            origins = "" if origins == _NONE else origins
            replay = None if len(values) == len(names) else values.pop()  # an older walle wrote none
            numbers = dict(zip(names, map(int, values), strict=True))
        except (ValueError, IndexError):  # the file has another format
            return None
        if format_ != _FORMAT:
            return None
        return cls(epoch=epoch, origins=origins, **numbers, replay=None if replay == _UNKNOWN else replay)


class StoreLock:
    """The open and locked lock file, until `close`.

    Raises:
        BlockingIOError: another store has it locked.
        OSError: it cannot be opened.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.found = Mark.decode(os.pread(self._file, _MARK_BYTES, 0))  # mark of the store that had the file open
        except BaseException:
            os.close(self._file)
            raise

    def write(self, mark: Mark) -> None:
        # A mark that cannot be written stays older than the file, which raises no false alarm.
        with contextlib.suppress(OSError):
            os.pwrite(self._file, mark.encode().ljust(_MARK_BYTES, b"\0"), 0)

    def close(self) -> None:
        os.close(self._file)
