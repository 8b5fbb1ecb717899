"""Code of a version: the modules of the task, and the shared ones that they reach, compiled and checked."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from walle.engine_ext.vm.bytecode import TAG, BytecodeError
from walle.task.format.bundle_error import BundleError, UnlistedTopicError
from walle.task.format.compilers import Compile, OtherPython
from walle.task.format.imports import module_names, refusal
from walle.task.format.module_set import ModuleSet, reached_units, root_names
from walle.task.format.source_facts import SourceFacts

MAX_SOURCE_BYTES = 1024 * 1024
_CONFIG_FILE = "task.toml"


@dataclasses.dataclass(frozen=True)
class Source:
    """A module of a task, or one of a set that the task names. `path` is that in the bundle, before it is compiled."""

    path: str
    traced: str  # path in tracebacks; that of a shared module is equal in each task, and so is its bytecode
    text: bytes
    modules: ModuleSet | None = None  # None: a module of the task

    @property
    def shown(self) -> str:
        """The path in messages to the author."""
        return f"{self.modules.label}/{self.path}" if self.modules else self.path

    @property
    def unit(self) -> str:
        """The name at the root by which it is imported."""
        (name,) = root_names([self.path])
        return name


def compile_code(
    sources: Sequence[Source],
    listed: Collection[str],
    reads: Collection[str],
    others: Sequence[OtherPython],
    compile_sources: Compile,
) -> dict[str, bytes]:
    """Return bytecode by path in the bundle, of the task's modules and of those shared ones that they reach.

    `listed` are the paths of the bundle's other files, `reads` the topics that the task may read. `others` compile for
    devices that have them, and then each path names its Python.

    Raises:
        BundleError: a module is too large, does not compile, or imports or reads what a task may not.
    """
    for one in sources:
        if len(one.text) > MAX_SOURCE_BYTES:
            what = f"has {len(one.text)} bytes, more than {MAX_SOURCE_BYTES} for a source file"
            raise BundleError(one.shown, what)
    by_trace = {one.traced: one for one in sources}
    files: dict[str, bytes] = {}
    try:
        facts = compile_sources({one.traced: one.text for one in sources})
        kept = _reached(sources, facts)
        own = module_names(one.path for one in sources)
        for one in kept:
            path = _compiled_path(one.path, str(TAG) if others else "")
            if any(file.startswith(f"{path}/") for file in listed):
                what = f"[files] a folder has the name {path!r} that {one.shown} is compiled to"
                raise BundleError(_CONFIG_FILE, what)
            files[path] = facts[one.traced].pyc
            _check_facts(one, facts[one.traced], own, reads)
        for other in others:
            compiled = other.compile({one.traced: one.text for one in kept})
            files |= {_compiled_path(one.path, other.tag): compiled[one.traced] for one in kept}
    except BytecodeError as error:
        raise BundleError(by_trace[error.file].shown, error.problem, error.line) from error
    return files


def _reached(sources: Sequence[Source], facts: Mapping[str, SourceFacts]) -> list[Source]:
    """Return the task's modules and those shared ones that they import, directly or through others."""
    units: dict[str, list[SourceFacts]] = {}
    for one in sources:
        if one.modules:
            units.setdefault(one.unit, []).append(facts[one.traced])
    imports = [found for one in sources if not one.modules for found in facts[one.traced].imports]
    reached = reached_units(imports, units)
    return [one for one in sources if not one.modules or one.unit in reached]


def _compiled_path(path: str, tag: str) -> str:
    return f"{path.removesuffix('.py')}.{tag}.pyc" if tag else f"{path}c"


def _check_facts(source: Source, facts: SourceFacts, own: Collection[str], reads: Collection[str]) -> None:
    """Refuse imports that a task may not make, and topics of other tasks that are not under [reads].

    `own` are the modules that the task's may import; those of a set import modules of that set. A device checks each
    query; this is for an error before the release.
    """
    owner = "the task"
    if source.modules:
        own, owner = module_names(source.modules.files), f"the set {source.modules.name}"
    for one in facts.imports:
        if reason := refusal(one.module, own, owner):
            raise BundleError(source.shown, reason, one.line)
    for query in facts.queries:
        if query.topic not in reads:
            what = f"reads topic {query.topic!r} of another task; add it to topics under [reads] in {_CONFIG_FILE}"
            raise UnlistedTopicError(source.shown, what, query.line)
