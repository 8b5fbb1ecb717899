"""Coordinator of devices that tune their models: who gets whose model (§5.2). No data of a device is in its interface.

It has no clock, no disk and no socket: callers say the time and move the bytes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

from walle.adapt.tuning.hints import Hints
from walle.adapt.tuning.locality import LocalityIndex
from walle.engine_ext.model import MAGIC
from walle.errors import DeployError

MAX_MODEL_BYTES = 4 << 20
MAX_PEERS = 64


class SharedModelError(DeployError):
    """A model that the coordinator does not take, or peers that it does not give. Over HTTP: 422."""

    status = 422


@dataclass(frozen=True, slots=True)
class CoordinatorLimits:
    """Limits of what is kept. Beyond a sum, the models that were shared longest ago are removed.

    The largest models of one device fill an eighth of all bytes: alone it removes no model of another.
    """

    model_bytes: int = MAX_MODEL_BYTES
    all_bytes: int = 64 << 20
    models: int = 1_000
    tasks: int = 2  # limit of one device
    age_s: float = 24 * 3600.0  # an older model is stale


@dataclass(frozen=True, slots=True)
class SharedModel:
    """A device's latest model of a task: its version among those of the device, its file with the SHA-256 in
    hexadecimal, and the device's statistics on its own data.
    """

    device: str
    task: str
    version: int
    file: bytes
    sha256: str
    hints: Hints
    loss: float
    accuracy: float
    shared_s: float


class TuningCoordinator:
    """The latest models of devices, by task; `peers` returns those whose hints are nearest. Not thread-safe.

    Devices are peers where their summaries have one length. A model replaces that of its device and task. Stale models
    are removed whenever the coordinator is called.
    """

    def __init__(self, *, seed: int, limits: CoordinatorLimits | None = None) -> None:
        self.limits = limits or CoordinatorLimits()
        self.size_bytes = 0
        self._seed = seed
        self._models: dict[tuple[str, str], SharedModel] = {}  # by task and device, the one shared longest ago first
        self._indexes: dict[tuple[str, int], LocalityIndex[str]] = {}  # by task and length of the summary
        self._tasks: Counter[str] = Counter()  # by device

    def __len__(self) -> int:
        return len(self._models)

    def share(self, device: str, task: str, file: bytes, hints: Hints, *, loss: float, accuracy: float,
              now_s: float) -> int:  # fmt: skip
        """Keep the device's model of a task, instead of the one before; return its version, 1 for the first.

        Raises:
            SharedModelError: the file is empty, too large or not a `.walle` file, or the device shares models of too
                many tasks.
        """
        limits = self.limits
        if not 0 < len(file) <= min(limits.model_bytes, limits.all_bytes):
            raise SharedModelError(f"a model of {len(file)} bytes; it has 1 to {limits.model_bytes}")
        if not file.startswith(MAGIC):
            raise SharedModelError("this is not a .walle file; share the model that model_file returns")
        self._remove_stale(now_s)
        before = self._models.get((task, device))
        if before is None and self._tasks[device] >= limits.tasks:
            raise SharedModelError(f"device {device[:100]} shares models of {limits.tasks} tasks, as many as it may")
        if before is not None:
            self._remove(before)
        version = 1 if before is None else before.version + 1
        model = SharedModel(device, task, version, file, hashlib.sha256(file).hexdigest(), hints, loss, accuracy, now_s)
        vector = hints.vector()
        found = self._indexes.get(_index_of(model))
        if found is None:
            found = self._indexes[_index_of(model)] = LocalityIndex(len(vector), seed=self._seed)
        found.put(device, vector)
        self._models[task, device] = model
        self._tasks[device] += 1
        self.size_bytes += len(file)
        while self.size_bytes > limits.all_bytes or len(self._models) > limits.models:
            self._remove(next(iter(self._models.values())))
        return model.version

    def peers(self, device: str, task: str, count: int, *, now_s: float) -> list[SharedModel]:
        """Return up to `count` models of other devices with a summary as long, those with the nearest hints first.

        Raises:
            SharedModelError: the device has not shared a model of the task, or its model is stale: who gives nothing
                gets nothing. Or the count is out of range.
        """
        if not 1 <= count <= MAX_PEERS:
            raise SharedModelError(f"{count} peers; ask for 1 to {MAX_PEERS}")
        own = self._own(device, task, now_s)
        keys = self._indexes[_index_of(own)].nearest(own.hints.vector(), count, but=device)
        return [self._models[task, key] for key in keys]

    def file(self, device: str, task: str, sha256: str, *, now_s: float) -> bytes | None:
        """Return a model of the task by its SHA-256, None where its device has replaced it since.

        Raises:
            SharedModelError: the device has not shared a model of the task, or its model is stale.
        """
        self._own(device, task, now_s)
        return next((one.file for one in self._models.values() if (one.task, one.sha256) == (task, sha256)), None)

    def _own(self, device: str, task: str, now_s: float) -> SharedModel:
        self._remove_stale(now_s)
        own = self._models.get((task, device))
        if own is None:
            raise SharedModelError(f"device {device[:100]} shares no model of {task[:200]} now; share one first")
        return own

    def _remove_stale(self, now_s: float) -> None:
        while self._models:
            oldest = next(iter(self._models.values()))
            if oldest.shared_s + self.limits.age_s >= now_s:
                break
            self._remove(oldest)

    def _remove(self, model: SharedModel) -> None:
        del self._models[model.task, model.device]
        self.size_bytes -= len(model.file)
        self._tasks[model.device] -= 1
        if not self._tasks[model.device]:
            del self._tasks[model.device]
        index = self._indexes[_index_of(model)]
        index.remove(model.device)
        if not len(index):
            del self._indexes[_index_of(model)]


def _index_of(model: SharedModel) -> tuple[str, int]:
    return model.task, len(model.hints.summary)
