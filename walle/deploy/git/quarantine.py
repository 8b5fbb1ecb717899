"""Objects of a push that are not accepted yet: a folder beside the repository's own objects.

git's index-pack unpacks the pack here, with git's checks of every object. Only what is accepted moves to the
repository, by renames; the folder is removed whole. A process that is killed leaves a folder whose lock is free: the
next writer of the repository removes it.
"""

import contextlib
import fcntl
import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import IO, Self

from dulwich.object_store import DiskObjectStore
from dulwich.objects import ObjectID

from walle.base.durable_file import sync_file, sync_folder
from walle.deploy.git.git_process import GitLimits, GitProcessError, run_git
from walle.errors import DeployError
from walle.task.format.tree import MAX_TREE_BYTES

MAX_OBJECTS = 200_000  # objects in one push
MAX_OBJECT_BYTES = MAX_TREE_BYTES  # limit of one file: no task may have a larger one
_PREFIX = "incoming-"
_LOCK = "lock"
_NO_ANCESTOR = 1  # status of `git merge-base --is-ancestor`; of a failure, another
_HEADER = struct.Struct(">4sII")  # header of a pack: PACK, version, number of objects


class PackError(DeployError):
    """A pack that is refused. `why` is for the person who pushed it."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Quarantine:
    """The folder, within `with`. Its methods block the calling thread."""

    def __init__(self, repository: Path, limits: GitLimits) -> None:
        self._repository = repository
        self._limits = limits
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._repository / "objects"))
            undo.callback(shutil.rmtree, self._folder, ignore_errors=True)
            # The lock gets its name once it is held: a sweep leaves a folder without one alone.
            lock = undo.enter_context((self._folder / "new").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            (self._folder / "new").rename(self._folder / _LOCK)
            self._lock = lock.fileno()
            (self._folder / "pack").mkdir()
            self.store = undo.enter_context(contextlib.closing(DiskObjectStore(str(self._folder))))
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def unpack(self, pack: IO[bytes], max_bytes: int) -> None:
        """Unpack and check what `pack` has from its position on.

        Raises:
            PackError: the pack is damaged, has invalid objects, lacks some, or asks for more than it may.
        """
        start = pack.tell()
        try:
            magic, _, count = _HEADER.unpack(pack.read(_HEADER.size))
        except struct.error:
            raise PackError("it is cut short") from None
        if magic != b"PACK":
            raise PackError("it does not begin as a pack does")
        if count > MAX_OBJECTS:
            raise PackError(f"it has {count} objects; at most {MAX_OBJECTS} are accepted in one push")
        pack.seek(start)
        try:
            self._git("index-pack", "--stdin", "--fix-thin", "--strict", "--threads=1",
                      f"--max-input-size={max_bytes}", stdin=pack)  # fmt: skip
            sizes = run_git(
                self._repository, "cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objectsize)",
                limits=self._limits, objects=self._folder, sees_repository=False,
            ).split()  # fmt: skip
        except GitProcessError as error:
            raise PackError(error.why) from error
        largest = max(map(int, sizes), default=0)
        if largest > MAX_OBJECT_BYTES:
            raise PackError(
                f"it has a file of {largest} bytes; at most {MAX_OBJECT_BYTES} are accepted without Git LFS"
            )
        # From now on `store` shows the repository's objects too.
        self.store.add_alternate_path(str(self._repository / "objects"))

    def check_connected(self, new: ObjectID) -> None:
        """Check that all that `new` leads to is here or in the repository. Raises PackError."""
        try:
            self._git("rev-list", "--objects", "--quiet", "--stdin", "--not", "--all", stdin=new + b"\n")
        except GitProcessError as error:
            raise PackError(f"objects are missing from the push: {error.why}") from error

    def is_descendant(self, old: ObjectID, new: ObjectID) -> bool:
        """Return whether commit `new` has commit `old` in its history. Raises PackError where git cannot tell."""
        try:
            self._git("merge-base", "--is-ancestor", old.decode(), new.decode())
        except GitProcessError as error:
            if error.status == _NO_ANCESTOR:
                return False
            raise PackError(f"its history cannot be compared with the branch: {error.why}") from error
        return True

    @property
    def packs(self) -> Path:
        """The folder of the packs."""
        return self._folder / "pack"

    @property
    def lock(self) -> int:
        """The descriptor of the folder's lock, which a child process that writes here inherits."""
        return self._lock

    def sync(self) -> list[Path]:
        """Make the objects durable here, and return their files. Raises OSError."""
        files = list(self.packs.iterdir())
        for file in files:
            sync_file(file)
        return files

    def adopt(self) -> None:
        """Move the objects to the repository, durably. A pack is seen once its index is there: that moves last.

        The caller holds the repository's lock, and has called `sync`. Raises OSError.
        """
        target = self._repository / "objects" / "pack"
        for file in sorted(self.packs.iterdir(), key=lambda file: file.suffix == ".idx"):
            file.rename(target / file.name)
        sync_folder(target)

    def _git(self, *arguments: str, stdin: IO[bytes] | bytes = b"") -> None:
        run_git(
            self._repository, *arguments,
            limits=self._limits, stdin=stdin, objects=self._folder, keep_open=(self._lock,),
        )  # fmt: skip


def sweep_quarantines(repository: Path) -> None:
    """Remove folders whose process was killed: nothing holds their locks."""
    for folder in (repository / "objects").glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
