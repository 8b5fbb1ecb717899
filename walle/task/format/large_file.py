"""Large files of a task: Git LFS pointers in its tree, and the files that they stand for (page 174).

A pointer is a short text that git keeps in place of the file: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
Its oid is the sha256 by which manifests, devices and file stores name the file too, so that nothing is hashed again.
"""

import dataclasses
import hashlib
import re
from pathlib import Path

from walle.errors import DeployError

MAX_POINTER_BYTES = 1024  # the specification's limit is below that
MAX_LARGE_FILE_BYTES = 4 << 30
_VERSION_LINE = b"version https://git-lfs.github.com/spec/v1\n"
_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n"
    rb"oid sha256:([0-9a-f]{64})\nsize (0|[1-9][0-9]{0,14})\n"
)  # no extensions: they change the bytes on their way, and devices get those that the oid names


class PointerError(DeployError):
    """A file that begins as a Git LFS pointer and is not one."""


@dataclasses.dataclass(frozen=True)
class LargeFile:
    """A file that is not read into memory: its sha256 in hex, its length, and where it is, None for nowhere here."""

    sha256: str
    size_bytes: int
    path: Path | None = None

    @property
    def pointer(self) -> bytes:
        """The pointer that git keeps."""
        return _VERSION_LINE + f"oid sha256:{self.sha256}\nsize {self.size_bytes}\n".encode()

    @property
    def is_here(self) -> bool:
        """True where a file of this length is at `path`; its hash was checked when it came."""
        try:
            return self.path is not None and self.path.stat().st_size == self.size_bytes
        except FileNotFoundError:
            return False

    @classmethod
    def of(cls, path: Path) -> "LargeFile":
        """Return the file at `path`, hashed by chunks. Raises OSError where it cannot be read."""
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(sha256, file.tell(), path)


def parse_pointer(data: bytes) -> LargeFile | None:
    """Return the file that a pointer stands for, None where `data` does not begin as one.

    Raises:
        PointerError: it begins as a pointer, and the rest is not one.
    """
    if not data.startswith(_VERSION_LINE[:-1]):
        return None
    match = _POINTER.fullmatch(data)
    if match is None:
        raise PointerError("begins as a Git LFS pointer, which has the lines version, oid sha256:... and size alone")
    return LargeFile(match[1].decode(), int(match[2]))
