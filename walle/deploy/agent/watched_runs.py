"""Runs of a device's tasks, counted for each installed version, and the file that keeps the counts over restarts.

The file is written now and then, not at each run: a process that is killed loses the runs since, good and failed ones
alike. A file that cannot be read is left out: the counts begin again.
"""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from walle.base.durable_file import NotSyncedError, make_folders, write_file
from walle.deploy.agent.installed import TaskState
from walle.deploy.agent.run_watch import RunWatch
from walle.protocol import canonical_json

_LOG = logging.getLogger(__name__)

_FORMAT = 1


@dataclasses.dataclass
class _TaskRuns:
    """Watches of a task's installed versions by their manifests, and the one of these that ran last."""

    latest: str = ""
    watches: dict[str, RunWatch] = dataclasses.field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        return {"latest": self.latest, "watches": {key: watch.to_plain() for key, watch in self.watches.items()}}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        watches = {str(key): RunWatch.from_plain(watch) for key, watch in plain["watches"].items()}
        return cls(str(plain["latest"]), watches)


class WatchedRuns:
    """Counts of runs, in memory: two versions for each task. `read` and `write` block on the disk."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "runs.json"
        self.is_changed = False  # true if a count changed since the last `write`
        self._tasks: dict[str, _TaskRuns] = {}

    def count(self, state: TaskState, *, ok: bool) -> str:
        """Count a run of the task's active version; return why the device is to leave it, "" if it is not.

        After that, its later runs judge it again from the beginning.
        """
        if state.active is None:
            return ""
        self.is_changed = True
        task, active = self._tasks.setdefault(state.task, _TaskRuns()), state.active.manifest
        if task.latest != active:
            before, known = task.watches.get(task.latest, RunWatch()), task.watches.get(active)
            task.watches[active] = before.next() if known is None else known.again()
            task.latest = active
            installed = {ref.manifest for ref in (state.active, state.previous) if ref is not None}
            task.watches = {manifest: watch for manifest, watch in task.watches.items() if manifest in installed}
        watch = task.watches[active] = task.watches[active].run(ok=ok)
        if not watch.is_bad:
            return ""
        task.watches[active] = watch.again()
        return watch.words

    def forget(self, task: str) -> None:
        """Forget a task that is removed."""
        self.is_changed |= self._tasks.pop(task, None) is not None

    def read(self) -> None:
        """Take the counts of the file, if there are any."""
        try:
            value = json.loads(self.path.read_bytes())
            body = value["tasks"]
            if value["format"] != _FORMAT or _digest(body) != value["sha256"]:
                raise ValueError("its format or checksum is wrong")  # noqa: TRY301
            self._tasks = {task: _TaskRuns.from_plain(one) for task, one in body.items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            _LOG.warning("%s cannot be used (%s): runs are counted from 0", self.path, error)

    def to_bytes(self) -> bytes:
        body = {task: one.to_plain() for task, one in self._tasks.items()}
        return canonical_json({"format": _FORMAT, "tasks": body, "sha256": _digest(body)})

    def write(self, data: bytes) -> None:
        """Keep what `to_bytes` gave, whole or not at all. Raises OSError."""
        make_folders(self.path.parent)
        try:
            write_file(self.path, data)
        except NotSyncedError as error:  # the old counts and the new ones are both valid
            _LOG.warning("%s may not survive a power cut: %s", self.path, error)


def _digest(body: object) -> str:
    return hashlib.sha256(canonical_json(body)).hexdigest()
