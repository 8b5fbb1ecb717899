"""Pull (§6): the signed manifest of a bundle, and the files that it lists."""

import base64
import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from walle.protocol.fields import ProtocolError, canonical_json, check_sha256, parse_object, take, take_map
from walle.protocol.output import OutputPolicy
from walle.protocol.task_settings import TaskSettings
from walle.protocol.triggers import FullPolicy, QueuePolicy

SMOKE_FILE = "smoke.jsonl"  # events of a version that a device plays before it activates it
MAX_SMOKE_BYTES = 16 << 10
SMOKE_FOLDER = "smoke-events/"  # replaces SMOKE_FILE where events name images and arrays: they and these files
SMOKE_EVENTS = f"{SMOKE_FOLDER}events.jsonl"
MAX_SMOKE_FILE_BYTES = 256 << 10  # limit of these files together
PHASES = ("preprocess", "execute", "postprocess")  # phases of a task in their order


@dataclasses.dataclass(frozen=True)
class FileEntry:
    """One file of a version. `route` is `shared` (CDN); that of a cloud file is `cloud`."""

    path: str
    sha256: str
    size_bytes: int
    route: str = "shared"


@dataclasses.dataclass(frozen=True)
class ModuleSetVersion:
    """A version of a set of shared modules that a task version uses, and the git commit that its tag pointed at."""

    name: str
    version: str
    commit: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest(TaskSettings):
    """The description of one task version: its files with hashes, and its settings."""

    scenario: str
    task: str
    version: str
    commit: str  # git commit the tag pointed at
    bytecode: tuple[str, ...]  # interpreter tags of the bundle's bytecode, such as "cpython-313"
    files: tuple[FileEntry, ...]
    cloud_files: tuple[FileEntry, ...] = ()  # files that the cloud has beside `files`; no device gets them
    modules: tuple[ModuleSetVersion, ...] = ()  # origin of those of `files` that are shared modules

    FORMAT = 2
    _FORMAT_1 = 1  # manifest with `sequence` in place of `trigger`; devices may have such versions installed
    _FORMAT_3 = 3  # manifest with `output`: a walle that does not know it must refuse the version, or uploads outputs
    _FORMAT_4 = 4  # manifest with `exclusive`: a walle that does not know it would run the version without them
    _FORMAT_5 = 5  # manifest with `training`: a walle that does not know it has no `ctx.checkpoint`

    @property
    def name(self) -> str:
        """The task's full name, scenario/task."""
        return f"{self.scenario}/{self.task}"

    @property
    def readable_topics(self) -> frozenset[str]:
        """The full names of the topics of other tasks that the task may read, all in its own scenario."""
        return frozenset(f"{self.scenario}/{topic}" for topic in self.reads)

    @property
    def queue_policy(self) -> QueuePolicy:
        """The policy of the task's queue; a manifest from before there were queues has the defaults."""
        choices = {key: FullPolicy(self.policies[key]) for key in QueuePolicy.CHOICES if key in self.policies}
        return QueuePolicy(queue=self.limits.get("queue", QueuePolicy().queue), **choices)

    def to_bytes(self) -> bytes:
        fields: dict[str, Any] = {
            "scenario": self.scenario,
            "task": self.task,
            "version": self.version,
            "commit": self.commit,
            "bytecode": self.bytecode,
            "files": [dataclasses.asdict(entry) for entry in self.files],
            **self.settings_to_json(),
        }
        for name, listed in (("cloud_files", self.cloud_files), ("modules", self.modules)):
            if listed:
                fields[name] = [dataclasses.asdict(entry) for entry in listed]
        format_number = self.FORMAT if self.output == OutputPolicy() else self._FORMAT_3
        if self.exclusive:
            format_number = self._FORMAT_4
        return canonical_json({"format": format_number if self.training is None else self._FORMAT_5, **fields})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a manifest. Raises ProtocolError, which names the field, also for a path that leaves the bundle."""
        value = parse_object(data, "manifest")
        if value.get("format") == cls._FORMAT_1:
            trigger: Any = {"sequence": take(value, "sequence", list, "manifest")}
        elif value.get("format") in (cls.FORMAT, cls._FORMAT_3, cls._FORMAT_4, cls._FORMAT_5):
            trigger = take(value, "trigger", dict, "manifest")
        else:
            what = f"must be {cls._FORMAT_1} to {cls._FORMAT_5}, is {value.get('format')!r}; a newer walle may read it"
            raise ProtocolError("manifest.format", what)
        settings = cls.settings_of_json(value, trigger)
        files = _entries(value, "files", "shared")
        cloud_files = _entries(value, "cloud_files", "cloud") if "cloud_files" in value else ()
        if len({file.path for file in (*files, *cloud_files)}) != len(files) + len(cloud_files):
            raise ProtocolError("manifest.files", "a path is listed twice")
        manifest = cls(
            scenario=take(value, "scenario", str, "manifest"),
            task=take(value, "task", str, "manifest"),
            version=take(value, "version", str, "manifest"),
            commit=take(value, "commit", str, "manifest"),
            bytecode=tuple(take(value, "bytecode", list, "manifest")),
            files=files,
            cloud_files=cloud_files,
            modules=_modules(value),
            **settings,
        )
        if manifest.dictionary and manifest.dictionary not in {file.path for file in files}:
            raise ProtocolError("manifest.dictionary", f"{manifest.dictionary!r} is not one of the files")
        try:
            _ = manifest.queue_policy
        except ProtocolError as error:
            raise ProtocolError(f"manifest.limits.{error.where}", error.what) from error
        except ValueError as error:  # FullPolicy does not know the value
            raise ProtocolError("manifest.policies", f"{error}; install a newer walle") from error
        return manifest


def _entries(manifest: Mapping[str, Any], name: str, route: str) -> tuple[FileEntry, ...]:
    """Return the files that a manifest lists under `name`. Raises ProtocolError, also for a path that leaves it."""
    entries = []
    for index, entry in enumerate(take(manifest, name, list, "manifest")):
        where = f"manifest.{name}[{index}]"
        if not isinstance(entry, dict):
            raise ProtocolError(where, f"must be an object, is {type(entry).__name__}")
        path = take(entry, "path", str, where)
        parts = path.split("/")
        if not path or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise ProtocolError(f"{where}.path", f"{path!r} is not a plain relative path")
        size_bytes = take(entry, "size_bytes", int, where)
        if size_bytes < 0:
            raise ProtocolError(f"{where}.size_bytes", f"{size_bytes} is negative")
        if (found := take(entry, "route", str, where)) != route:
            raise ProtocolError(f"{where}.route", f"{found!r} is not {route}")
        sha256 = check_sha256(take(entry, "sha256", str, where), f"{where}.sha256")
        entries.append(FileEntry(path, sha256, size_bytes, route))
    return tuple(entries)


def _modules(manifest: Mapping[str, Any]) -> tuple[ModuleSetVersion, ...]:
    """Return the sets of shared modules that a manifest names; none of one from before there were any."""
    found = []
    for index, entry in enumerate(take(manifest, "modules", list, "manifest") if "modules" in manifest else []):
        where = f"manifest.modules[{index}]"
        if not isinstance(entry, dict):
            raise ProtocolError(where, f"must be an object, is {type(entry).__name__}")
        found.append(ModuleSetVersion(*(take(entry, key, str, where) for key in ("name", "version", "commit"))))
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Envelope:
    """Bytes and the signatures over them: key id → Ed25519 signature. The bytes are sent as they were signed."""

    payload: bytes
    signatures: Mapping[str, bytes]

    def to_bytes(self) -> bytes:
        return canonical_json(
            {
                "payload": base64.b64encode(self.payload).decode(),
                "signatures": {key: base64.b64encode(value).decode() for key, value in self.signatures.items()},
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        value = parse_object(data, "envelope")
        try:
            payload = base64.b64decode(take(value, "payload", str, "envelope"), validate=True)
            signatures = {
                key: base64.b64decode(text, validate=True)
                for key, text in take_map(value, "signatures", (str,), "envelope").items()
            }
        except ProtocolError:
            raise
        except ValueError as error:
            raise ProtocolError("envelope", f"not base64 ({error})") from error
        return cls(payload, signatures)
