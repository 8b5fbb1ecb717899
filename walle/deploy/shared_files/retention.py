"""Removal of stored files that nothing reaches: mark, grace, sweep.

A run marks the files that are not reached, with its time. A later run removes those whose mark is older than a grace
time: nothing has reached them since, and nobody put them again. A put renews a file's time, and excludes a removal by
the store's lock, so that a release that is being made keeps what it puts, whether the file was there before or not.
"""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from walle.base.clock import Clock
from walle.base.durable_file import write_file
from walle.deploy.shared_files.store import FileStore, StoredFile
from walle.errors import ConfigError

GRACE_S = 4 * 86_400.0  # longer than an address of files is valid
MIN_GRACE_S = 3600.0  # a release puts its files, and is journalled at most so much later
SKEW_S = 3600.0  # time by which the store's clock may be behind this machine's


class Sweep(NamedTuple):
    """Result of one run: the files that are reached, that wait for their grace time to end, and that were removed."""

    reached: int
    reached_bytes: int
    waiting: tuple[StoredFile, ...]
    removed: tuple[StoredFile, ...]


class Marks:
    """Since when files are not reached, in a file; single writer.

    Raises:
        ConfigError: the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            plain = json.loads(path.read_bytes())
            self.since_s = {str(sha256): float(since_s) for sha256, since_s in plain.items()}
        except FileNotFoundError:
            self.since_s = {}
        except (ValueError, TypeError, AttributeError) as error:
            what = "is damaged; remove it: files wait for their grace time again"
            raise ConfigError(f"marks of unreferenced files, {path}: {what}") from error

    def save(self) -> None:
        write_file(self._path, json.dumps(self.since_s, indent=0) + "\n", mode=0o644)


def sweep_files(
    store: FileStore,
    marks: Marks,
    reached: Callable[[], Collection[str]],
    clock: Clock,
    *,
    grace_s: float = GRACE_S,
    dry_run: bool = False,
    on_removed: Callable[[str], None] = lambda _: None,
) -> Sweep:
    """Mark the files of `store` that are not reached, and remove those that were not for `grace_s` seconds.

    What killed writers left goes after as long.
    `reached` returns the reached files by what is journalled at that moment; it is called once after the files were
    listed, and again before anything is removed. With `dry_run` nothing is changed, and `removed` is what would be.

    Raises:
        ConfigError: the grace time is shorter than MIN_GRACE_S.
    """
    if grace_s < MIN_GRACE_S:
        raise ConfigError(
            f"a grace time of {grace_s:g} s is too short: a release in the making needs {MIN_GRACE_S:g} s"
        )
    listed = list(store.files())
    present, now_s = reached(), clock.time()
    waiting: list[StoredFile] = []
    due: list[StoredFile] = []
    reached_bytes = 0
    since_s: dict[str, float] = {}
    for file in listed:
        if file.sha256 in present:
            reached_bytes += file.size_bytes
            continue
        marked_s = marks.since_s.get(file.sha256)
        if marked_s is not None and file.stored_s <= marked_s - SKEW_S:
            since_s[file.sha256] = marked_s
            (due if now_s - marked_s >= grace_s else waiting).append(file)
            continue
        waiting.append(file)
        if file.stored_s <= now_s - SKEW_S:  # younger ones are marked later
            since_s[file.sha256] = now_s
    count = len(listed) - len(waiting) - len(due)
    if dry_run:
        return Sweep(count, reached_bytes, tuple(waiting), tuple(due))
    removed = []
    present = reached() if due else present
    for file in due:
        until_s = since_s.pop(file.sha256) - SKEW_S
        if file.sha256 not in present and store.remove(file.sha256, stored_until_s=until_s):
            removed.append(file)
            on_removed(file.sha256)
    marks.since_s = since_s
    marks.save()
    store.remove_unfinished(now_s - grace_s)
    return Sweep(count, reached_bytes, tuple(waiting), tuple(removed))
