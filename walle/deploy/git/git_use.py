"""Disk space of a task repository: its objects in git, which token pushed each pack, and how much each may keep.

    {scenario}.git/walle-packs.json   the name of the token that pushed each pack; of others nobody
    {scenario}.git/walle-garbage      is here while there may be objects that no ref leads to
                                      (`walle.deploy.git.git_repack` removes them)

Large files (Git LFS) are beside them, with their own limits (`walle.deploy.git.large_file_store`).
"""

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from walle.base.durable_file import write_file
from walle.errors import DeployError

_OWNERS = "walle-packs.json"
_GARBAGE = "walle-garbage"
_LOG = logging.getLogger(__name__)


class GitQuotaError(DeployError):
    """A push that would take more space than its scenario or its token may. It says used, limit and what to do."""

    def __init__(self, whose: str, used_bytes: int, more_bytes: int, most_bytes: int, remedy: str) -> None:
        more = f", and this push adds {_mb(more_bytes)}" if more_bytes else ""
        super().__init__(f"{whose} has {_mb(used_bytes)} of at most {_mb(most_bytes)} of disk in git{more}; {remedy}")
        self.used_bytes = used_bytes
        self.more_bytes = more_bytes
        self.most_bytes = most_bytes


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GitUse:
    """Bytes of a repository's objects on the disk, and those of packs that each token pushed."""

    size_bytes: int = 0
    by_token: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GitQuota:
    """The most bytes that a scenario's objects have in git, and of these the most that one token pushed."""

    scenario_bytes: int = 16 << 30
    token_bytes: int = 4 << 30

    def check(self, scenario: str, token: str, use: GitUse, more_bytes: int = 0) -> None:
        """Raise GitQuotaError unless a token may push `more_bytes` (0: one byte) to a scenario that has `use`."""
        more = max(1, more_bytes)
        remedy = "delete branches and wait a minute, use Git LFS for large files, or ask the cloud's owner for more"
        if use.size_bytes + more > self.scenario_bytes:
            what = f"scenario {scenario}"
            raise GitQuotaError(what, use.size_bytes, more_bytes, self.scenario_bytes, f"{remedy} (--git-gb)")
        own = use.by_token.get(token, 0)
        if own + more > self.token_bytes:
            what = f"token {token[:80]} in scenario {scenario}"
            raise GitQuotaError(what, own, more_bytes, self.token_bytes, f"{remedy} (--git-token-gb)")


def git_use(repository: Path) -> GitUse:
    """Return the space that a repository takes now. What is on its way does not count, nor do large files."""
    owners, by_token = read_owners(repository), Counter[str]()
    total_bytes = 0
    for path in _files(repository / "objects"):
        with contextlib.suppress(FileNotFoundError):
            size_bytes = path.stat().st_size
            total_bytes += size_bytes
            if (owner := owners.get(path.stem)) is not None:
                by_token[owner] += size_bytes
    return GitUse(size_bytes=total_bytes, by_token=dict(by_token))


def _files(objects: Path) -> list[Path]:
    """Return the files of packs, and of loose objects, which are in folders of two digits.

    A file that git still writes, such as the new pack of a repack, begins with tmp_.
    """
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(objects) as entries:
        for entry in entries:
            if entry.is_dir() and (entry.name == "pack" or len(entry.name) == 2):
                with os.scandir(entry.path) as files:
                    found += [Path(file.path) for file in files if not file.name.startswith("tmp_")]
    return found


def packs_of(repository: Path) -> dict[str, int]:
    """Return the name of each pack that git sees, without an ending, and the bytes of its files."""
    sizes = Counter[str]()
    folder = repository / "objects" / "pack"
    for path in folder.glob("pack-*.*"):
        with contextlib.suppress(FileNotFoundError):
            sizes[path.stem] += path.stat().st_size
    return {name: size for name, size in sizes.items() if (folder / f"{name}.idx").exists()}


def read_owners(repository: Path) -> dict[str, str]:
    """Return the token that pushed each pack, by its name; a damaged list is empty: its packs are the scenario's."""
    try:
        found = json.loads((repository / _OWNERS).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        _LOG.warning("%s: the packs count for no token: %s", repository / _OWNERS, error)
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: owner for name, owner in found.items() if isinstance(owner, str)}


def write_owners(repository: Path, owners: Mapping[str, str]) -> None:
    """Keep the owners of packs that exist, or are about to. The caller holds the repository's lock. Raises OSError."""
    if not (repository / _OWNERS).exists() and not (repository / _GARBAGE).exists():
        note_garbage(repository)  # nobody has looked yet
    write_file(repository / _OWNERS, json.dumps(dict(sorted(owners.items()))) + "\n", mode=0o644)


def note_garbage(repository: Path) -> None:
    """Note that there may be objects that no ref leads to."""
    path, now_ns = repository / _GARBAGE, time.time_ns()
    path.touch()
    os.utime(path, ns=(now_ns, now_ns))  # the kernel's own time is the same for some milliseconds


def garbage_note(repository: Path) -> tuple[int, int] | None:
    """Return what `note_garbage` noted last, another each time, None where nothing is noted.

    In a repository of an earlier version, which has no list of owners, nothing was noted, and there may be some.
    """
    if not (repository / _OWNERS).exists() and not (repository / _GARBAGE).exists():
        note_garbage(repository)
    try:
        found = (repository / _GARBAGE).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def forget_garbage(repository: Path) -> None:
    """Note that a repository has none. The caller holds its lock."""
    (repository / _GARBAGE).unlink(missing_ok=True)
