"""A task version as a pool of VMs takes it, on the device, in training, and on the cloud."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from walle.protocol import Manifest, TrainingPolicy

_DEFAULT_DEADLINE_MS = 500
_LOAD_S = 2.0  # the minimum time that a version has for loading
_BATCH_OUTPUT_KB = 64 << 10  # limit of all results of a batch: a task may return one object for each payload
_RESOURCES = "resources/"
_MODELS = (".walle", ".onnx")
_TRAINING = -1  # replica that trains; those of the cloud count from 0


def deadline_s(manifest: Manifest) -> float:
    """Return the time limit of one run of the task, in seconds."""
    return manifest.limits.get("deadline_ms", _DEFAULT_DEADLINE_MS) / 1000


@dataclasses.dataclass(frozen=True)
class RunVersion:
    """A version as the pool takes it: its task, its folder, its name in errors, and its limits.

    On the cloud it has the cloud's files too, and several replicas; where it trains, a separate VM.
    """

    owner: str
    folder: Path
    name: str
    limits: Mapping[str, int]
    manifest: Manifest
    on_cloud: bool = False
    replica: int = 0

    @classmethod
    def of(cls, files: Path, manifest: Manifest) -> "RunVersion":
        return cls(manifest.name, files, f"{manifest.name} {manifest.version}", manifest.limits, manifest)

    @classmethod
    def in_cloud(cls, files: Path, manifest: Manifest, replica: int) -> "RunVersion":
        """Return a replica, which has the cloud's memory limit.

        The results of a batch may be as large as those of its members, up to _BATCH_OUTPUT_KB.
        """
        limits = dict(manifest.limits)
        if "output_kb" in limits:
            together = min(limits["output_kb"] * manifest.cloud.max_batch, _BATCH_OUTPUT_KB)
            limits["output_kb"] = max(limits["output_kb"], together)
        if manifest.cloud.memory_mb:
            limits["memory_mb"] = manifest.cloud.memory_mb
        return cls(manifest.name, files, f"{manifest.name} {manifest.version}", limits, manifest, True, replica)

    @classmethod
    def in_training(cls, files: Path, manifest: Manifest, policy: TrainingPolicy) -> "RunVersion":
        """Return the version as it trains, which has the memory limit of training.

        The result of a step may have the checkpoint beside what a run may return.
        """
        limits = {**manifest.limits, "memory_mb": policy.memory_mb}
        if "output_kb" in limits:
            limits["output_kb"] += -(-policy.max_bytes >> 10) * 2  # arrays and texts take more than their encoding
        name = f"{manifest.name} {manifest.version}"
        return cls(manifest.name, files, name, limits, manifest, replica=_TRAINING)

    @property
    def load_s(self) -> float:
        """The time limit of loading the version's modules, in seconds; libraries and models have a separate one."""
        return max(_LOAD_S, deadline_s(self.manifest))

    @property
    def models(self) -> list[str]:
        """Paths of the models that the version has here, below resources/."""
        entries = (*self.manifest.files, *(self.manifest.cloud_files if self.on_cloud else ()))
        paths = [entry.path for entry in entries if entry.path.startswith(_RESOURCES)]
        return [path.removeprefix(_RESOURCES) for path in paths if path.endswith(_MODELS)]

    @property
    def elsewhere(self) -> list[str]:
        """Paths of the files that only the cloud has, below resources/, where this is not the cloud."""
        entries = () if self.on_cloud else self.manifest.cloud_files
        return [entry.path.removeprefix(_RESOURCES) for entry in entries]
