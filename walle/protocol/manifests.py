"""Pull (§6): the signed manifest of a bundle, and the files that it lists."""

import base64
import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from walle.protocol.cloud_policy import CloudPolicy
from walle.protocol.exclusive import ExclusiveFile, parse_exclusive
from walle.protocol.fields import ProtocolError, canonical_json, check_sha256, parse_object, take, take_map
from walle.protocol.history import HistoryPolicy
from walle.protocol.output import OutputPolicy
from walle.protocol.reads import check_reads
from walle.protocol.task_state import StatePolicy
from walle.protocol.triggers import FullPolicy, QueuePolicy, TriggerCondition

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of one task version: its files with hashes, trigger condition, places of its phases, limits."""

    scenario: str
    task: str
    version: str
    commit: str  # git commit the tag pointed at
    bytecode: tuple[str, ...]  # interpreter tags of the bundle's bytecode, such as "cpython-313"
    trigger: TriggerCondition
    phases: Mapping[str, str]  # phase → device | cloud | auto
    limits: Mapping[str, int]  # deadline_ms, memory_mb, ...
    files: tuple[FileEntry, ...]
    policies: Mapping[str, str] = dataclasses.field(default_factory=dict)  # queue_full, outbox_full
    history: HistoryPolicy | None = None  # set for a task that asks for older events
    state: StatePolicy | None = None  # set for a task that keeps a state between its runs
    dictionary: str = ""  # path of the zstd dictionary for the task's uploads; empty if it has none
    output: OutputPolicy = dataclasses.field(default_factory=OutputPolicy)  # destination of the task's results
    reads: tuple[str, ...] = ()  # topics of other tasks of the scenario: `task` or `task/name`
    cloud: CloudPolicy = dataclasses.field(default_factory=CloudPolicy)
    cloud_files: tuple[FileEntry, ...] = ()  # files that the cloud has beside `files`; no device gets them
    exclusive: tuple[ExclusiveFile, ...] = ()  # files of each device alone, which come through /cen

    FORMAT = 2
    _FORMAT_1 = 1  # manifest with `sequence` in place of `trigger`; devices may have such versions installed
    _FORMAT_3 = 3  # manifest with `output`: a walle that does not know it must refuse the version, or uploads outputs
    _FORMAT_4 = 4  # manifest with `exclusive`: a walle that does not know it would run the version without them

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
        fields = {**dataclasses.asdict(self), "trigger": self.trigger.to_json()}
        for name in ("dictionary", "reads", "cloud_files"):
            if not fields[name]:
                del fields[name]
        del fields["exclusive"]
        if self.cloud == CloudPolicy():
            del fields["cloud"]
        else:
            fields["cloud"] = self.cloud.to_json()
        format_number = self.FORMAT
        if self.output == OutputPolicy():
            del fields["output"]
        else:
            fields["output"], format_number = self.output.to_json(), self._FORMAT_3
        if self.exclusive:
            fields["exclusive"], format_number = [file.to_json() for file in self.exclusive], self._FORMAT_4
        for name, policy in (("history", self.history), ("state", self.state)):
            del fields[name]
            if policy is not None:
                fields[name] = policy.to_json()
        return canonical_json({"format": format_number, **fields})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a manifest. Raises ProtocolError, which names the field, also for a path that leaves the bundle."""
        value = parse_object(data, "manifest")
        if value.get("format") == cls._FORMAT_1:
            trigger: Any = {"sequence": take(value, "sequence", list, "manifest")}
        elif value.get("format") in (cls.FORMAT, cls._FORMAT_3, cls._FORMAT_4):
            trigger = take(value, "trigger", dict, "manifest")
        else:
            what = f"must be {cls._FORMAT_1} to {cls._FORMAT_4}, is {value.get('format')!r}; a newer walle may read it"
            raise ProtocolError("manifest.format", what)
        try:
            condition = TriggerCondition.parse(trigger)
            history = HistoryPolicy.parse(value["history"]) if "history" in value else None
            state = StatePolicy.parse(value["state"]) if "state" in value else None
            output = OutputPolicy.parse(value["output"]) if "output" in value else OutputPolicy()
            reads = check_reads(value["reads"], "reads") if "reads" in value else ()
            cloud = CloudPolicy.parse(value["cloud"]) if "cloud" in value else CloudPolicy()
        except ProtocolError as error:
            raise ProtocolError(f"manifest.{error.where}", error.what) from error
        try:
            exclusive = parse_exclusive(value["exclusive"]) if "exclusive" in value else ()
        except ProtocolError as error:
            raise ProtocolError(f"manifest.exclusive.{error.where}".rstrip("."), error.what) from error
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
            trigger=condition,
            phases=take_map(value, "phases", (str,), "manifest"),
            limits=take_map(value, "limits", (int,), "manifest"),
            files=files,
            policies=take_map(value, "policies", (str,), "manifest") if "policies" in value else {},
            history=history,
            state=state,
            dictionary=take(value, "dictionary", str, "manifest") if "dictionary" in value else "",
            output=output,
            reads=reads,
            cloud=cloud,
            cloud_files=cloud_files,
            exclusive=exclusive,
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
