"""A small disk of its own for one process, which can be filled up and freed: a tmpfs, or a limit on file sizes.

A tmpfs gives a real ENOSPC and needs a mount namespace. Elsewhere the kernel's limit on the size of a file
(RLIMIT_FSIZE) is put on the running process, whose writes then fail with EFBIG.
"""

import contextlib
import os
import resource
import subprocess
from pathlib import Path
from typing import Self

_SIZE_MIB = 96
_LEAST_BYTES = 4096


def enter_mount_namespace() -> bool:
    """Let this process mount file systems that no other process sees; return whether it may.

    Call it before the process has threads and starts others, which then share the namespace.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        if uid:
            os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNS)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
            Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        else:
            os.unshare(os.CLONE_NEWNS)
        _mount("--make-rprivate", "/")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


class SmallDisk:
    """A folder that can run out of room, within `with`."""

    def __init__(self, folder: Path, *, can_mount: bool) -> None:
        self.folder = folder
        self._can_mount = can_mount
        self._balloon = folder / "balloon"

    def __enter__(self) -> Self:
        self.folder.mkdir()
        if self._can_mount:
            _mount("-t", "tmpfs", "-o", f"size={_SIZE_MIB}m", "walle-faults", str(self.folder))
        return self

    def __exit__(self, *_: object) -> None:
        if self._can_mount:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True, capture_output=True)

    def fill(self, pid: int) -> None:
        """Leave no room; `pid` is the process that then fails to write."""
        if not self._can_mount:
            sizes = [file.stat().st_size for file in self.folder.iterdir() if file.is_file()]
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (min(sizes, default=0), resource.RLIM_INFINITY))
            return
        size_bytes = _SIZE_MIB << 20
        with self._balloon.open("wb") as file:
            while size_bytes >= _LEAST_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size_bytes)
                except OSError:
                    size_bytes //= 2

    def free(self, pid: int | None) -> None:
        """Make room again."""
        self._balloon.unlink(missing_ok=True)
        if not self._can_mount and pid is not None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
