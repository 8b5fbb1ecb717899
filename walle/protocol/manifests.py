"""Pull (§6): the signed manifest of a bundle, and the files that it lists."""

import base64
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Self

from walle.protocol.fields import (
    ProtocolError,
    canonical_json,
    check_sha256,
    parse_object,
    take,
    take_map,
    take_optional,
)
from walle.protocol.output import OutputPolicy
from walle.protocol.task_settings import TaskSettings
from walle.protocol.triggers import FullPolicy, QueuePolicy
from walle.protocol.variants import MAX_VARIANTS, FileVariant, installed_name, is_variant_name

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
    variants: tuple[FileVariant, ...] = ()  # the first whose rule admits a device counts
    variant: str = ""  # the one whose files are in `files`; not part of what is signed

    FORMAT = 2
    _FORMAT_1 = 1  # manifest with `sequence` in place of `trigger`; devices may have such versions installed
    _FORMAT_3 = 3  # manifest with `output`: a walle that does not know it must refuse the version, or uploads outputs
    _FORMAT_4 = 4  # manifest with `exclusive`: a walle that does not know it would run the version without them
    _FORMAT_5 = 5  # manifest with `training`: a walle that does not know it has no `ctx.checkpoint`
    _FORMAT_6 = 6  # manifest with `variants`: a walle that does not know it would run the version with other files

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

    @property
    def installed_as(self) -> str:
        """The version with the variant, as in the profile of a device that has these files."""
        return installed_name(self.version, self.variant)

    @property
    def device_files(self) -> tuple[FileEntry, ...]:
        """The files that some device gets: those of the version, and those of its variants."""
        return tuple(dict.fromkeys([*self.files, *(entry for one in self.variants for entry in one.files)]))

    def of_variant(self, name: str) -> Self:
        """Return the manifest for devices of a variant, this one for "". Raises ProtocolError where there is none."""
        if not name:
            return self
        found = next((one for one in self.variants if one.name == name), None)
        if found is None or self.variant:
            raise ProtocolError("manifest.variants", f"the version has no variant {name[:80]!r}")
        replaced = {entry.path: entry for entry in found.files}
        files = tuple(replaced.get(entry.path, entry) for entry in self.files)
        return dataclasses.replace(self, files=files, variant=name)

    def to_bytes(self) -> bytes:
        assert not self.variant, "a variant is named in the envelope, and the manifest signed for all of them"
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
        if self.variants:
            fields["variants"] = [one.to_json() for one in self.variants]
        format_number = self.FORMAT if self.output == OutputPolicy() else self._FORMAT_3
        if self.exclusive:
            format_number = self._FORMAT_4
        if self.training is not None:
            format_number = self._FORMAT_5
        return canonical_json({"format": self._FORMAT_6 if self.variants else format_number, **fields})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a manifest. Raises ProtocolError, which names the field, also for a path that leaves the bundle."""
        value = parse_object(data, "manifest")
        if value.get("format") == cls._FORMAT_1:
            trigger: Any = {"sequence": take(value, "sequence", list, "manifest")}
        elif value.get("format") in (cls.FORMAT, cls._FORMAT_3, cls._FORMAT_4, cls._FORMAT_5, cls._FORMAT_6):
            trigger = take(value, "trigger", dict, "manifest")
        else:
            what = f"must be {cls._FORMAT_1} to {cls._FORMAT_6}, is {value.get('format')!r}; a newer walle may read it"
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
            variants=_variants(value, {file.path for file in files}) if "variants" in value else (),
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


def _variants(manifest: Mapping[str, Any], paths: Collection[str]) -> tuple[FileVariant, ...]:
    """Return the variants that a manifest lists, whose files replace some of `paths`. Raises ProtocolError."""
    found: dict[str, FileVariant] = {}
    for index, entry in enumerate(take(manifest, "variants", list, "manifest")):
        where = f"manifest.variants[{index}]"
        if not isinstance(entry, dict):
            raise ProtocolError(where, f"must be an object, is {type(entry).__name__}")
        name, files = take(entry, "name", str, where), _entries(entry, "files", "shared", where)
        for file in files:
            if file.path not in paths:
                raise ProtocolError(f"{where}.files", f"{file.path!r} is not one of the version's files")
        if not is_variant_name(name) or name in found or index >= MAX_VARIANTS:
            raise ProtocolError(
                f"{where}.name", f"{name[:80]!r} is not a name, is listed twice, or is above {MAX_VARIANTS}"
            )
        found[name] = FileVariant(name, take(entry, "rule", str, where), files)
    return tuple(found.values())


def _entries(source: Mapping[str, Any], name: str, route: str, within: str = "manifest") -> tuple[FileEntry, ...]:
    """Return the files that `source` lists under `name`. Raises ProtocolError, also for a path that leaves it."""
    entries = []
    for index, entry in enumerate(take(source, name, list, within)):
        where = f"{within}.{name}[{index}]"
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
    """Bytes and the signatures over them: key id → Ed25519 signature. The bytes are sent as they were signed.

    `variant` is that of a manifest which the envelope's devices get; a directive, which names the envelope, signs it.
    """

    payload: bytes
    signatures: Mapping[str, bytes]
    variant: str = ""

    @property
    def manifest(self) -> Manifest:
        """The manifest in it, with the files of its variant. Raises ProtocolError where it is none."""
        return Manifest.from_bytes(self.payload).of_variant(self.variant)

    def to_bytes(self) -> bytes:
        fields: dict[str, Any] = {
            "payload": base64.b64encode(self.payload).decode(),
            "signatures": {key: base64.b64encode(value).decode() for key, value in self.signatures.items()},
        }
        return canonical_json({**fields, "variant": self.variant} if self.variant else fields)

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
        return cls(payload, signatures, take_optional(value, "variant", "envelope"))
