"""Bundles: task versions as devices get them, compiled, named by hashes, signed (§4.3 "Functionality Tailoring").

Included: every .py as bytecode in the standard .pyc form (`main.py` as `main.pyc`; where the fleet has several
versions of Python, as `main.cpython-313.pyc` and so on), the files that task.toml lists, and the first events of the
simulation, which a device plays before it activates the version (`smoke_events`). Excluded: sources, task.toml (its
content is in the manifest), the rest of `simulation/`, and anything else at the root. Files with the route `cloud` are
beside it: the manifest lists them apart, and devices get none of them.
Shared modules that the sources reach (`module_set`) travel beside them, with the same bytes in the bundle of each task.
Builds are reproducible: the same tree, with the same sets, gives the same bytes in any process.
"""

import dataclasses
import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from walle.engine_ext.vm.bytecode import TAG
from walle.errors import WalleError
from walle.protocol import (
    DICTIONARY_MARK,
    MAX_DICTIONARY_BYTES,
    SMOKE_FILE,
    SMOKE_FOLDER,
    Envelope,
    FileEntry,
    FileVariant,
    Manifest,
    ModuleSetVersion,
)
from walle.task.format.bundle_error import BundleError
from walle.task.format.compilers import Compile, OtherPython, compile_here
from walle.task.format.config import TaskConfig, TaskConfigError
from walle.task.format.large_file import MAX_LARGE_FILE_BYTES, LargeFile
from walle.task.format.module_set import MODULES_FILE, FindModules, ModuleSet, no_modules, root_names
from walle.task.format.smoke_events import smoke_files
from walle.task.format.tree import TaskTree
from walle.task.format.version_code import Source, compile_code
from walle.trust.signing import Signer

CONFIG_FILE = "task.toml"
MAIN_FILE = "main.py"
RESOURCES = "resources/"
SIMULATION = "simulation/"
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_BUNDLE_BYTES = 128 * 1024 * 1024  # limit without large files
MAX_LARGE_BYTES = 2 * MAX_LARGE_FILE_BYTES  # limit of all large files of a version
_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class TaskVersion:
    """A task version as committed, with its parsed task.toml and the sets of shared modules that this names."""

    tree: TaskTree
    config: TaskConfig
    modules: tuple[ModuleSet, ...] = ()

    @classmethod
    def parse(cls, tree: TaskTree, find_modules: FindModules = no_modules) -> Self:
        """Return the version in `tree`, with the sets that `find_modules` finds.

        Raises:
            TaskConfigError: task.toml is wrong, or names a set that is not found or has a name of the task's modules.
            BundleError: task.toml, main.py or the simulation's events are missing, or task.toml names another task.
        """
        if CONFIG_FILE not in tree.files:
            if MODULES_FILE in tree.files:
                what = f"{tree.task} is a set of shared modules, not a task: name it under [modules] of a task"
                raise BundleError(MODULES_FILE, what)
            raise BundleError(CONFIG_FILE, "is missing; a task's files are at the root of its branch")
        config = TaskConfig.parse(tree.files[CONFIG_FILE], CONFIG_FILE)
        if config.name != tree.task:
            raise BundleError(CONFIG_FILE, f"[task] name is {config.name!r}, but the version is one of {tree.task!r}")
        for path in tree.large:
            if is_source(path) or path == CONFIG_FILE or path.startswith(SIMULATION):
                what = f"is a Git LFS pointer, which only files that [files] of {CONFIG_FILE} lists may be"
                raise BundleError(path, what)
        if MAIN_FILE not in tree.files:
            raise BundleError(MAIN_FILE, "is missing; it holds preprocess, execute and postprocess")
        if config.simulation_events and config.simulation_events not in tree.files:
            raise BundleError(CONFIG_FILE, f"[simulation] events: file {config.simulation_events!r} does not exist")
        try:
            modules = find_module_sets(config, filter(is_source, tree.files), find_modules)
        except TaskConfigError as error:
            raise error.placed(tree.files[CONFIG_FILE]) from error
        return cls(tree, config, modules)

    @property
    def name(self) -> str:
        """The version's full name, scenario/task/version, which tracebacks have before the paths of its files."""
        return f"{self.tree.scenario}/{self.tree.task}/{self.tree.version}"

    @property
    def sources(self) -> list[Source]:
        """The task's modules, and all modules of its sets."""
        own = [Source(path, f"{self.name}/{path}", text) for path, text in self.tree.files.items() if is_source(path)]
        shared = [
            Source(path, f"{self.tree.scenario}/{one.label}/{path}", text, one)
            for one in self.modules
            for path, text in one.files.items()
        ]
        return [*own, *shared]

    @property
    def traced_files(self) -> dict[str, bytes]:
        """The files of the tree by their paths, and shared modules by their paths in tracebacks."""
        return {**{one.traced: one.text for one in self.sources if one.modules}, **self.tree.files}

    @property
    def simulation_events(self) -> bytes | None:
        """The events that the author pushed for the simulation, as JSON lines; None without any."""
        path = self.config.simulation_events
        return self.tree.files[path] if path else None

    @property
    def simulation_files(self) -> dict[str, bytes]:
        """The files in the folder of these events, by their paths in it: images and arrays that events name."""
        folder, slash, _ = self.config.simulation_events.rpartition("/")
        return {
            path.removeprefix(folder + slash): data
            for path, data in self.tree.files.items()
            if path.startswith(folder + slash)
        }

    @property
    def smoke_files(self) -> dict[str, bytes]:
        """The first of these events, which devices get, with the files that they name, by their paths in the bundle."""
        return smoke_files(self.simulation_events or b"", self.simulation_files, self.config.smoke_events)


@dataclasses.dataclass(frozen=True)
class Bundle:
    """A signed task version. `envelope` is what devices fetch first; `blobs` holds each file under its sha256.

    `cloud_blobs` holds those that only the cloud has. Large files are not in memory, but in `large` and `cloud_large`.
    """

    manifest: Manifest
    envelope: bytes
    blobs: Mapping[str, bytes]
    cloud_blobs: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    large: Mapping[str, LargeFile] = dataclasses.field(default_factory=dict)
    cloud_large: Mapping[str, LargeFile] = dataclasses.field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """The hash of the envelope: the name of the version in a directive, and on the CDN."""
        return hashlib.sha256(self.envelope).hexdigest()

    @property
    def variants(self) -> "tuple[Bundle, ...]":
        """The bundles of its variants, in their order; their files are among those of this one."""
        signed = Envelope.from_bytes(self.envelope)
        return tuple(
            dataclasses.replace(
                self,
                manifest=self.manifest.of_variant(one.name),
                envelope=dataclasses.replace(signed, variant=one.name).to_bytes(),
            )
            for one in self.manifest.variants
        )


@dataclasses.dataclass(frozen=True)
class UnsignedBundle:
    """A built task version. Its files as in `Bundle`."""

    manifest: Manifest
    blobs: Mapping[str, bytes]
    cloud_blobs: Mapping[str, bytes]
    large: Mapping[str, LargeFile]
    cloud_large: Mapping[str, LargeFile]

    def signed(self, envelope: Envelope) -> Bundle:
        """Return the bundle with an envelope of its manifest."""
        data = envelope.to_bytes()
        return Bundle(self.manifest, data, self.blobs, self.cloud_blobs, self.large, self.cloud_large)


def build_bundle(version: TaskVersion, signer: Signer, others: Sequence[OtherPython] = ()) -> Bundle:
    """Return the bundle of a task version, signed by `signer`; raises as `build_unsigned`."""
    built = build_unsigned(version, others)
    return built.signed(signer.sign_manifest(built.manifest))


def build_unsigned(
    version: TaskVersion, others: Sequence[OtherPython] = (), compile_sources: Compile = compile_here
) -> UnsignedBundle:
    """Return the build of a task version; `others` compile for devices that have them.

    `compile_sources` compiles for this Python: a cloud, whose authors are others, gives `compile_apart`.

    Raises:
        BundleError: a file is missing, too large, not listed, does not compile, or imports what a task may not.
    """
    tree, config = version.tree, version.config
    files = compile_version(version, others, compile_sources)
    large, cloud_large = large_files(version), large_files(version, on_cloud=True)
    entries, blobs = _entries(files, large, "shared")
    replacing = _replacing_files(tree, config)
    replacing_large = _replacing_large(tree, config)
    replacing_entries, replacing_blobs = _entries(replacing, replacing_large, "shared")
    cloud_entries, cloud_blobs = _entries(_listed_files(tree, config, on_cloud=True), cloud_large, "cloud")
    manifest = Manifest(
        scenario=tree.scenario,
        task=tree.task,
        version=tree.version,
        commit=tree.commit,
        bytecode=(str(TAG), *(other.tag for other in others)),
        files=entries,
        cloud_files=cloud_entries,
        modules=tuple(ModuleSetVersion(one.name, one.version, one.commit) for one in version.modules),
        variants=_variants(config, replacing_entries),
        **config.settings(),
    )
    return UnsignedBundle(
        manifest,
        {**blobs, **replacing_blobs},
        cloud_blobs,
        {file.sha256: file for file in (*large.values(), *replacing_large.values())},
        {file.sha256: file for file in cloud_large.values()},
    )


def _entries(
    files: Mapping[str, bytes], large: Mapping[str, LargeFile], route: str
) -> tuple[tuple[FileEntry, ...], dict[str, bytes]]:
    """Return the entries of a manifest, in the order of their paths, and the files that are not large by sha256."""
    hashes = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    entries = [FileEntry(path, sha256, len(files[path]), route) for path, sha256 in hashes.items()]
    entries += (FileEntry(path, file.sha256, file.size_bytes, route) for path, file in large.items())
    return tuple(sorted(entries, key=lambda entry: entry.path)), {hashes[path]: data for path, data in files.items()}


def _replacing_paths(config: TaskConfig) -> frozenset[str]:
    return frozenset(path for one in config.variants for path in one.files.values())


def _replacing_files(tree: TaskTree, config: TaskConfig) -> dict[str, bytes]:
    """Return the files of the tree that replace others in a variant; large ones are only checked."""
    files = {}
    for path in sorted(_replacing_paths(config)):
        if path in tree.large:
            _check_large(path, tree.large[path], config, on_cloud=False)
        else:
            files[path] = _small_file(path, tree, "variants")
    return files


def _replacing_large(tree: TaskTree, config: TaskConfig) -> dict[str, LargeFile]:
    return {path: file for path, file in tree.large.items() if path in _replacing_paths(config)}


def _variants(config: TaskConfig, entries: Iterable[FileEntry]) -> tuple[FileVariant, ...]:
    """Return the variants of a manifest; `entries` are those of the files that replace others, by their own paths."""
    by_path = {entry.path: entry for entry in entries}
    return tuple(
        FileVariant(
            one.name,
            one.rule,
            tuple(dataclasses.replace(by_path[other], path=path) for path, other in sorted(one.files.items())),
        )
        for one in config.variants
    )


def compile_version(
    version: TaskVersion, others: Sequence[OtherPython] = (), compile_sources: Compile = compile_here
) -> dict[str, bytes]:
    """Return the files of a task version that travel to devices, without large ones.

    Arguments and errors are those of `build_unsigned`.
    """
    tree, config = version.tree, version.config
    files = _listed_files(tree, config)
    _listed_files(tree, config, on_cloud=True)  # checked here too
    large = [*large_files(version).values(), *large_files(version, on_cloud=True).values()]
    large += _replacing_large(tree, config).values()
    if (large_bytes := sum(file.size_bytes for file in large)) > MAX_LARGE_BYTES:
        raise BundleError(CONFIG_FILE, f"its large files have {large_bytes} bytes, more than {MAX_LARGE_BYTES}")
    files |= compile_code(version.sources, files, config.reads, others, compile_sources)
    files |= version.smoke_files
    size_bytes = sum(map(len, files.values())) + sum(map(len, _replacing_files(tree, config).values()))
    if size_bytes > MAX_BUNDLE_BYTES:
        raise BundleError(CONFIG_FILE, f"the bundle has {size_bytes} bytes, more than {MAX_BUNDLE_BYTES}")
    return files


def unpack(
    manifest: Manifest,
    blobs: Mapping[str, bytes],
    folder: Path,
    *,
    large: Mapping[str, LargeFile] | None = None,
    on_cloud: bool = False,
) -> None:
    """Write a bundle's files to `folder`, which must not exist, in the layout of a device; with the cloud's `on_cloud`.

    Large files are copied, so that a task that runs there cannot change them. `folder` is created atomically. The
    manifest must be built here or verified: its paths are not checked again.

    Raises:
        BundleError: a blob is missing, or differs from the manifest.
    """
    if folder.exists():
        raise BundleError(str(folder), "exists already; unpack a bundle into a new folder")
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new."))
    try:
        for entry in (*manifest.files, *(manifest.cloud_files if on_cloud else ())):
            path = staging / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            if large is not None and entry.sha256 in large:
                _copy_large(entry, large[entry.sha256], path)
            else:
                path.write_bytes(_checked_blob(entry, blobs))
        staging.chmod(0o755)
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _checked_blob(entry: FileEntry, blobs: Mapping[str, bytes]) -> bytes:
    if entry.sha256 not in blobs:
        raise BundleError(entry.path, f"its blob {entry.sha256} is missing")
    data = blobs[entry.sha256]
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise BundleError(entry.path, f"its blob does not have the sha256 {entry.sha256}")
    return data


def _copy_large(entry: FileEntry, file: LargeFile, path: Path) -> None:
    if file.path is None:
        raise BundleError(entry.path, f"its file {entry.sha256} is missing")
    digest = hashlib.sha256()
    with file.path.open("rb") as source, path.open("wb") as target:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            target.write(chunk)
    if digest.hexdigest() != entry.sha256:
        what = f"{file.path} is damaged: its sha256 is another one"
        raise BundleError(entry.path, f"{what}; walle storage check repairs it, or sets it aside to be pushed again")


def find_module_sets(config: TaskConfig, sources: Iterable[str], find_modules: FindModules) -> tuple[ModuleSet, ...]:
    """Return the sets that task.toml names, by name; `sources` are the paths of the task's modules.

    Raises:
        TaskConfigError: one is not found, or has a module or package by a name of the task's or of another set's.
    """
    owners = dict.fromkeys(root_names(sources), "the task")
    found = []
    for name, version in config.modules.items():
        try:
            modules = find_modules(name, version)
        except WalleError as error:
            raise TaskConfigError(CONFIG_FILE, "modules", name, f"= {version!r} cannot be used: {error}") from error
        for unit in sorted(modules.units):
            if unit in owners:
                what = f"= {version!r} has a module {unit}, and so has {owners[unit]}; rename one"
                raise TaskConfigError(CONFIG_FILE, "modules", name, what)
        owners |= dict.fromkeys(modules.units, f"the set {modules.label}")
        found.append(modules)
    return tuple(found)


def is_source(path: str) -> bool:
    """Return whether a file of a task's tree is a module of the task."""
    return path.endswith(".py") and not path.startswith(SIMULATION)


def _listed_files(tree: TaskTree, config: TaskConfig, *, on_cloud: bool = False) -> dict[str, bytes]:
    """Return the listed files that travel to devices, or those that only the cloud has; large ones are only checked."""
    files = {}
    for path, route in config.files.items():
        if (route == "cloud") is not on_cloud:
            continue
        if path in tree.large:
            _check_large(path, tree.large[path], config, on_cloud=on_cloud)
            continue
        files[path] = _small_file(path, tree, "files", on_cloud=on_cloud)
        if path == config.dictionary:
            _check_dictionary(path, tree.files[path])
    listed = config.files.keys() | _replacing_paths(config)
    for path in (*tree.files, *tree.large):
        if path.startswith(RESOURCES) and path not in listed and not is_source(path):
            raise BundleError(CONFIG_FILE, f'{path} is not in [files]; add "{path}" = "shared", or remove it')
    return files


def _small_file(path: str, tree: TaskTree, section: str, *, on_cloud: bool = False) -> bytes:
    if path not in tree.files:
        raise BundleError(CONFIG_FILE, f"[{section}] {path!r} is not in the tree")
    _check_listed(path, section, on_cloud=on_cloud)
    data = tree.files[path]
    if len(data) > MAX_FILE_BYTES and not on_cloud:
        reason = f"has {len(data)} bytes, more than {MAX_FILE_BYTES} for a file in git"
        raise BundleError(path, f"{reason}; keep it in Git LFS, or use: walle task add-file")
    return data


def large_files(version: TaskVersion, *, on_cloud: bool = False) -> dict[str, LargeFile]:
    """Return the large files that travel to devices, or those that only the cloud has, by their paths."""
    routes = version.config.files
    listed = {path: file for path, file in version.tree.large.items() if path in routes}
    return {path: file for path, file in listed.items() if (routes[path] == "cloud") is on_cloud}


def _check_listed(path: str, section: str, *, on_cloud: bool) -> None:
    if path.endswith((".py", ".pyc", ".so")) or path == CONFIG_FILE:
        raise BundleError(CONFIG_FILE, f"[{section}] {path!r} may not be listed: code travels as the cloud compiles it")
    if path.startswith(SIMULATION):
        raise BundleError(CONFIG_FILE, f"[{section}] {path!r} may not be listed: {SIMULATION} stays on the cloud")
    if path in (SMOKE_FILE, SMOKE_FOLDER.rstrip("/")) or path.startswith(SMOKE_FOLDER):
        raise BundleError(CONFIG_FILE, f"[{section}] {path!r} may not be listed: the cloud makes it of the events")
    if on_cloud and not path.startswith(RESOURCES):
        raise BundleError(CONFIG_FILE, f"[{section}] {path!r} is a file of the cloud, which must be in {RESOURCES}")


def _check_large(path: str, file: LargeFile, config: TaskConfig, *, on_cloud: bool) -> None:
    """Check a large file. One without a path is that of an author's checkout, which need not have its bytes."""
    _check_listed(path, "files", on_cloud=on_cloud)
    if path == config.dictionary:
        raise BundleError(path, "is a Git LFS pointer, which a dictionary may not be; commit the file itself")
    if file.size_bytes > MAX_LARGE_FILE_BYTES:
        raise BundleError(path, f"has {file.size_bytes} bytes, more than {MAX_LARGE_FILE_BYTES} for a large file")
    if file.path is not None and not file.is_here:
        what = f"is a Git LFS pointer to {file.size_bytes} bytes that are not here"
        raise BundleError(path, f"{what}; send them: git lfs push --all origin, or walle task add-file")


def _check_dictionary(path: str, data: bytes) -> None:
    if not data.startswith(DICTIONARY_MARK):
        raise BundleError(path, "is not a zstd dictionary; train one with: walle task dictionary FOLDER")
    if len(data) > MAX_DICTIONARY_BYTES:
        raise BundleError(path, f"has {len(data)} bytes, more than {MAX_DICTIONARY_BYTES} for a dictionary")
