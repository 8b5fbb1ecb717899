"""Check of a whole task: task.toml, then the code of its modules, its events, and whether it can be bundled."""

import ast
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from walle.errors import ConfigError
from walle.pipeline.events.event_log import EventLog
from walle.task.check.config import check_config, config_finding
from walle.task.check.event_names import check_event_fields, check_event_ids, check_trigger_keys
from walle.task.check.events import LogIds, check_trigger
from walle.task.check.files import check_files
from walle.task.check.finding import MAX_FINDINGS, Code, Finding
from walle.task.check.names import check_names
from walle.task.check.phases import check_phases
from walle.task.check.requests import check_requests
from walle.task.format.bundle import CONFIG_FILE, MAIN_FILE, TaskVersion, compile_version, find_module_sets, is_source
from walle.task.format.bundle_error import BundleError, UnlistedTopicError
from walle.task.format.config import TaskConfig, TaskConfigError
from walle.task.format.imports import module_names, refusal
from walle.task.format.large_file import LargeFile
from walle.task.format.module_set import FindModules, ModuleSet, check_module_set, no_modules
from walle.task.format.source_facts import imports
from walle.task.format.toml_places import key_places
from walle.task.format.tree import TaskTree


def check_task(
    files: Mapping[str, bytes],
    folder: Path,
    log: EventLog | None = None,
    large: Mapping[str, LargeFile] | None = None,
    find_modules: FindModules = no_modules,
) -> list[Finding]:
    """Return the findings about a task's files, in the order of files and lines; MAX_FINDINGS at most.

    `large` are files of the task that are not in memory. `find_modules` finds the sets that task.toml names.

    Nothing of the task runs. The condition is compared with the events of `log`, without one with the simulation's
    events in `folder`, where the files are.

    Raises:
        ConfigError: the log cannot be read.
    """
    found: list[Finding] = []
    config: TaskConfig | None = None
    if CONFIG_FILE in files:
        config, found = check_config(files[CONFIG_FILE], CONFIG_FILE)
    is_config_whole = not found
    trees: dict[str, ast.Module] = {}
    for path in sorted(filter(is_source, files)):
        tree, faults = _parse(path, files[path])
        found += faults
        if tree is not None:
            trees[path] = tree
    own = module_names(filter(is_source, files))
    lacks_modules = False
    if config is not None:
        try:
            for one in find_module_sets(config, filter(is_source, files), find_modules):
                own |= module_names(one.files)
        except TaskConfigError as error:
            found.append(config_finding(error.placed(files[CONFIG_FILE]), "config"))
            lacks_modules = True
    for path, tree in trees.items():
        if not lacks_modules:
            found += _check_imports(path, tree, own)
        found += check_names(path, tree)
        found += check_event_fields(path, tree)
    if MAIN_FILE in trees:
        others = [tree for path, tree in trees.items() if path != MAIN_FILE]
        migrates = config is not None and config.state is not None and config.state.migrates
        max_batch = 1 if config is None else config.cloud.max_batch
        trains = config is not None and config.training is not None
        found += check_phases(
            MAIN_FILE, trees[MAIN_FILE], others, migrates=migrates, trains=trains, max_batch=max_batch
        )
        found += check_trigger_keys(MAIN_FILE, trees[MAIN_FILE])
    if config is not None:
        large = large or {}
        paths = {*files, *large, *config.files}  # a listed file that does not exist is one finding, not two
        places = key_places(files[CONFIG_FILE].decode())
        found += check_requests(trees, config, paths, places, is_config_whole=is_config_whole)
        found += check_files(config, places, files, large)
        found += _check_events(files, folder, config, log, trees, is_trigger=not _has_code(found, "trigger"))
    if not any(one.level == "error" for one in found):
        found += _check_bundle(files, large or {}, find_modules)
    return sorted(found, key=lambda one: (one.file != CONFIG_FILE, one.file, one.line, one.column))[:MAX_FINDINGS]


def _has_code(found: list[Finding], code: Code) -> bool:
    return any(one.code == code for one in found)


def _parse(path: str, source: bytes) -> tuple[ast.Module | None, list[Finding]]:
    """Return the syntax tree of a module, None if it does not compile, and what the compiler says about it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SyntaxWarning)
        try:
            tree = ast.parse(source, path)
            compile(source, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            return None, [_syntax_finding(path, error)]
    unique = dict.fromkeys((one.lineno, str(one.message)) for one in caught)  # parser and compiler say some twice
    return tree, [
        Finding(file=path, line=line, column=0, code="syntax", message=message, level="warning")
        for line, message in unique
    ]


def _syntax_finding(path: str, error: BaseException) -> Finding:
    line, column = (error.lineno or 0, error.offset or 0) if isinstance(error, SyntaxError) else (0, 0)
    reason = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
    return Finding(file=path, line=line, column=column, code="syntax", message=f"does not compile: {reason}")


def _check_imports(path: str, tree: ast.Module, own: set[str]) -> Iterator[Finding]:
    for one in imports(tree):
        if reason := refusal(one.module, own):
            yield Finding(file=path, line=one.line, column=one.column, code="import", message=reason)


def _check_events(
    files: Mapping[str, bytes],
    folder: Path,
    config: TaskConfig,
    log: EventLog | None,
    trees: Mapping[str, ast.Module],
    *,
    is_trigger: bool,
) -> Iterator[Finding]:
    """Yield the findings about event ids: of the condition, unless it is wrong already, and of the code."""
    places = key_places(files[CONFIG_FILE].decode())
    name, is_elsewhere = "" if log is None else str(log.path), log is not None
    if log is None and config.simulation_events in files:
        try:
            log, name = EventLog(folder / config.simulation_events), config.simulation_events
        except ConfigError as error:
            line, column = places.get(("simulation", "events"), (0, 0))
            yield Finding(file=CONFIG_FILE, line=line, column=column, code="simulation", message=str(error))
    ids = None if log is None else LogIds.of(log, name, is_elsewhere=is_elsewhere)
    if is_trigger:
        yield from check_trigger(config.trigger, CONFIG_FILE, places, ids)
    yield from check_event_ids(trees, ids.event_ids if ids is not None and ids.is_whole else None)
    if ids is not None:
        yield from ids.findings


def _check_bundle(
    files: Mapping[str, bytes], large: Mapping[str, LargeFile], find_modules: FindModules
) -> Iterator[Finding]:
    """Yield what the cloud refuses besides: files that are missing or not listed, sizes, code that does not compile."""
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # syntax warnings are findings already
            compile_version(version_of(files, large, find_modules))
    except TaskConfigError as error:
        yield config_finding(error, "config")
    except BundleError as error:
        yield _bundle_finding(error, files)


def _bundle_finding(error: BundleError, files: Mapping[str, bytes]) -> Finding:
    """Return an error of the build at its place; one in a shared module, where task.toml causes it."""
    config = TaskConfig.parse(files[CONFIG_FILE], CONFIG_FILE) if CONFIG_FILE in files else None
    sets = {f"{name}/{version}/": name for name, version in config.modules.items()} if config is not None else {}
    name = next((name for label, name in sets.items() if error.path.startswith(label)), "")
    if error.path in files or not name:
        return Finding(file=error.path, line=error.line, column=0, code="bundle", message=error.reason)
    places = key_places(files[CONFIG_FILE].decode())
    line, column = places.get(("modules", name), (0, 0))
    if isinstance(error, UnlistedTopicError):
        line, column = places.get(("reads", "topics"), (line, column))
    return Finding(file=CONFIG_FILE, line=line, column=column, code="bundle", message=str(error))


def version_of(
    files: Mapping[str, bytes],
    large: Mapping[str, LargeFile] | None = None,
    find_modules: FindModules = no_modules,
) -> TaskVersion:
    """Return the files as version v1 of the task that task.toml names; raises as `TaskVersion.parse`."""
    name = TaskConfig.parse(files[CONFIG_FILE], CONFIG_FILE).name if CONFIG_FILE in files else "task"
    tree = TaskTree(scenario="local", task=name, version="v1", commit="0" * 40, files=files, large=large or {})
    return TaskVersion.parse(tree, find_modules)


def check_modules(modules: ModuleSet) -> list[Finding]:
    """Return the finding about the code of a set of shared modules, at which its version would be refused; or none."""
    try:
        check_module_set(modules)
    except BundleError as error:
        return [Finding(file=error.path, line=error.line, column=0, code="bundle", message=error.reason)]
    return []
