"""Removal of objects from a task repository to which no branch and no version leads any more.

The packs that one token pushed become one pack with what refs lead to; so each pack still has one owner. The new pack
is made beside the others while pushes and fetches continue, and takes their place under the repository's lock, once no
push is between the check of its objects and its refs, and only if no ref has changed since, not even back. A process
that is killed leaves the packs of before, or both, or the new one: each is whole. Versions are refs, and stay.
"""

import contextlib
import dataclasses
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from dulwich.objects import ObjectID
from dulwich.refs import Ref

from walle.base.durable_file import sync_folder
from walle.deploy.git.git_process import GitLimits, run_git
from walle.deploy.git.git_use import forget_garbage, garbage_note, packs_of, read_owners, write_owners
from walle.deploy.git.quarantine import Quarantine
from walle.deploy.git.repo import TaskRepos
from walle.store.disk_space import DiskSpace

_LIMITS = GitLimits(memory_bytes=1 << 30, cpu_s=1800, wall_s=3600.0, file_bytes=64 << 30)
_WORTH_BYTES = 1 << 20  # bytes that a new pack must save, or a tenth: else the old objects stay
_MANY_PACKS = 50  # packs of a token that are worth one new pack
_PUSHES = "walle-pushes.lock"  # shared by pushes from the check of their objects to their refs
_ONE = "walle-repack.lock"
_WAIT_S = 30.0  # time for pushes to end
_POLL_S = 0.05
_LEFT_S = 3600.0  # age at which an unfinished file of git's belongs to a killed process


@dataclasses.dataclass(frozen=True)
class Repacked:
    """Bytes of all packs before and after. `is_done` is False where pushes were in the way: there may be more."""

    before_bytes: int
    after_bytes: int
    is_done: bool


@contextlib.contextmanager
def pushing(repository: Path) -> Iterator[None]:
    """Keep objects from being removed while a push checks that they are here and sets its refs. Several may at once."""
    with _locked(repository / _PUSHES, fcntl.LOCK_SH):
        yield


def repack(repos: TaskRepos, scenario: str, space: DiskSpace | None = None) -> Repacked | None:
    """Remove what no ref leads to; return what that gave, None where there is nothing to do or another process does it.

    Blocks for as long as git takes to read the history.

    Raises:
        RepoError: the scenario does not exist.
        GitProcessError: git cannot read the repository, or took more than it may; it is unchanged.
        DiskFullError: there is no room for the new packs beside the old ones.
    """
    with repos.open(scenario) as repo, contextlib.ExitStack() as undo:
        repository = Path(repo.path)
        if (note := garbage_note(repository)) is None:
            return None
        try:
            undo.enter_context(_locked(repository / _ONE, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            return None
        refs = repo.get_refs()
        before_bytes = sum(packs_of(repository).values())
        owners = read_owners(repository)
        for owner in sorted({owners.get(name, "") for name in packs_of(repository)}):
            if not _repack_owner(repos, scenario, owner, refs, note, space):
                return Repacked(before_bytes, sum(packs_of(repository).values()), is_done=False)
        with repos.writing(scenario) as current:
            _sweep(repository)
            is_done = current.get_refs() == refs and garbage_note(repository) == note
            if is_done:
                known = packs_of(repository)
                write_owners(repository, {name: one for name, one in read_owners(repository).items() if name in known})
                forget_garbage(repository)
        return Repacked(before_bytes, sum(packs_of(repository).values()), is_done=is_done)


def _repack_owner(
    repos: TaskRepos,
    scenario: str,
    owner: str,
    refs: Mapping[Ref, ObjectID],
    note: tuple[int, int],
    space: DiskSpace | None,
) -> bool:
    """Put one pack in place of those of an owner, "" for nobody, if it is worth it; return False where it must wait.

    `refs` are those before the pack is made, `note` is the garbage note before that. A branch that is removed and
    pushed again meanwhile leaves the refs unchanged, but not the note.
    """
    with repos.open(scenario) as repo:
        repository = Path(repo.path)
    all_packs, owners = packs_of(repository), read_owners(repository)
    own = [name for name in all_packs if owners.get(name, "") == owner]
    own_bytes = sum(all_packs[name] for name in own)
    if space is not None:
        space.check(own_bytes)
    with Quarantine(repository, _LIMITS) as folder:
        kept = [f"--keep-pack={name}.pack" for name in all_packs if name not in own]
        run_git(
            repository, "pack-objects", "--all", "--non-empty", "--delta-base-offset", "--threads=1", "-q", *kept,
            str(folder.packs / "pack"), limits=_LIMITS, keep_open=(folder.lock,),
        )  # fmt: skip
        made = folder.sync()
        new_bytes = sum(path.stat().st_size for path in made)
        saved = own_bytes - new_bytes
        if saved < min(_WORTH_BYTES, own_bytes // 10 + 1) and len(own) <= _MANY_PACKS:
            return True
        with _alone(repository) as is_alone, repos.writing(scenario) as current:
            if not is_alone or current.get_refs() != refs or garbage_note(repository) != note:
                return False
            names = {path.stem for path in made}
            write_owners(repository, {**read_owners(repository), **(dict.fromkeys(names, owner) if owner else {})})
            folder.adopt()
            _remove(repository, [name for name in own if name not in names])
    return True


@contextlib.contextmanager
def _alone(repository: Path) -> Iterator[bool]:
    """Give whether no push is under way, and none begins within the block; wait for those that are."""
    end_s = time.monotonic() + _WAIT_S
    with contextlib.ExitStack() as undo:
        while True:
            try:
                undo.enter_context(_locked(repository / _PUSHES, fcntl.LOCK_EX | fcntl.LOCK_NB))
            except BlockingIOError:
                if time.monotonic() > end_s:
                    yield False
                    return
                time.sleep(_POLL_S)
            else:
                yield True
                return


def _remove(repository: Path, names: list[str]) -> None:
    """Remove packs. The index goes first: a pack without one is not seen, and is removed by the next sweep."""
    folder = repository / "objects" / "pack"
    for name in names:
        (folder / f"{name}.idx").unlink(missing_ok=True)
    sync_folder(folder)
    for name in names:
        for file in folder.glob(f"{name}.*"):
            file.unlink(missing_ok=True)


def _sweep(repository: Path) -> None:
    """Remove what killed processes left among the packs. The caller holds the repository's lock."""
    folder = repository / "objects" / "pack"
    for file in (*folder.glob("tmp_*"), *folder.glob("pack-*.*")):
        is_seen = not file.name.startswith("tmp_") and (folder / f"{file.stem}.idx").exists()
        with contextlib.suppress(FileNotFoundError):
            if not is_seen and file.stat().st_mtime < time.time() - _LEFT_S:
                file.unlink()


@contextlib.contextmanager
def _locked(path: Path, kind: int) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, kind)
        yield
    finally:
        os.close(handle)
