"""`walle task check`: what is wrong with a task, before it runs."""

import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from walle.cli.output import JsonFlag, emit
from walle.cli.task.folder import Folder, read_files
from walle.cli.task.modules import LocalModules, ModulesOption, read_modules

if TYPE_CHECKING:
    from walle.task.check import Finding
    from walle.task.format.bundle import TaskVersion


def check(
    folder: Folder,
    events: Annotated[
        Path | None,
        typer.Option(help="Compare the events that start the task with this log, not with the simulation events."),
    ] = None,
    mapping: Annotated[Path | None, typer.Option(help="A TOML file that maps the log's columns to events.")] = None,
    modules: ModulesOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Check a task without running it, and say what travels to a device. Exit status 1 if there is an error.

    Findings have file, line, column and a code: unknown keys and wrong values in task.toml; event ids that no event of
    the log has; misspelt phases and wrong signatures in main.py; imports that a task may not have; names that walle.np,
    walle.cv and ctx lack; syntax errors; and whatever else the cloud would refuse at a release.

    A folder with modules.toml is a set of shared modules, which is checked as the cloud checks it when it is pushed.
    """
    from walle.pipeline.events.event_log import EventLog
    from walle.task.check import check_task
    from walle.task.check.check import version_of
    from walle.task.format.bundle import CONFIG_FILE
    from walle.task.format.module_set import MODULES_FILE

    if mapping is not None and events is None:
        raise typer.BadParameter("says how to read a log; name the log with --events", param_hint="--mapping")
    if not (folder / CONFIG_FILE).exists() and (folder / MODULES_FILE).exists():
        _check_modules(folder, as_json=as_json)
        return
    files, large = read_files(folder)
    log = None if events is None else EventLog(events, mapping)
    find = LocalModules(folder, modules)
    findings = check_task(files, folder, log, large, find)
    is_good = not any(one.level == "error" for one in findings)
    report: dict[str, Any] = {"ok": is_good, "findings": [one.to_json() for one in findings]}
    lines = [_line_of(one, folder) for one in findings]
    if is_good:
        find.check_used()
        travels, text = _contents(version_of(files, large, find))
        report |= travels
        lines += text
    else:
        counts = Counter(one.level for one in findings)
        lines.append(f"[red]not good[/]: {counts['error']} errors, {counts['warning']} warnings")
    emit(report, as_json=as_json, text="\n".join(lines))
    if not is_good:
        raise typer.Exit(1)


def _check_modules(folder: Path, *, as_json: bool) -> None:
    """Check a set of shared modules, named by its modules.toml. Exit status 1 if there is an error."""
    from walle.task.check.check import check_modules
    from walle.task.format.config import load_config
    from walle.task.format.module_set import MODULES_FILE

    table = load_config((folder / MODULES_FILE).read_bytes(), str(folder / MODULES_FILE)).get("modules")
    name = str(table.get("name", "")) if isinstance(table, dict) else ""
    modules = read_modules(folder, name)
    findings = check_modules(modules)
    sizes = {path: len(data) for path, data in modules.files.items()}
    report = {"ok": not findings, "findings": [one.to_json() for one in findings], "modules": name, "files": sizes}
    if findings:
        lines = [_line_of(one, folder) for one in findings]
    else:
        lines = [f"[green]good[/]: shared modules {escape(name)}"]
        lines += [f"{size:>12,} bytes  {escape(path)}" for path, size in sizes.items()]
    emit(report, as_json=as_json, text="\n".join(lines))
    if findings:
        raise typer.Exit(1)


def _line_of(finding: "Finding", folder: Path) -> str:
    """Return a line of markup, whose place editors and terminals recognise: the path as it is from here."""
    color = "red" if finding.level == "error" else "yellow"
    path = finding.file if finding.is_elsewhere else folder / finding.file
    place = ":".join(str(part) for part in (path, finding.line, finding.column) if part)
    return f"{escape(place)}: [{color}]{finding.level}[/]: {escape(f'{finding.message} [{finding.code}]')}"


def _contents(version: "TaskVersion") -> tuple[dict[str, Any], list[str]]:
    """Return what a version is and what of it travels to a device: as plain data, and as lines of markup."""
    from walle.task.format.bundle import compile_version, large_files

    with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # the check reports such warnings
        files = compile_version(version)
    config = version.config
    sizes = {path: len(data) for path, data in files.items()}
    sizes |= {path: file.size_bytes for path, file in large_files(version).items()}
    sizes = dict(sorted(sizes.items()))
    tree = version.tree
    cloud_paths = sorted(path for path, route in config.files.items() if route == "cloud")
    cloud_sizes = {
        path: tree.large[path].size_bytes if path in tree.large else len(tree.files[path]) for path in cloud_paths
    }
    limits = {**config.limits, **config.policies}
    report: dict[str, Any] = {
        "task": config.name,
        **config.trigger.to_json(),
        "phases": dict(config.phases),
        "limits": limits,
        "reads": list(config.reads),
        "modules": {one.name: one.version for one in version.modules},
        "files": sizes,
        "cloud_files": cloud_sizes,
        "size_bytes": sum(sizes.values()),
    }
    lines = [
        f"[green]good[/]: {config.name}, started by {escape(str(config.trigger))}",
        "limits: " + ", ".join(f"{key} {value}" for key, value in limits.items()),
        *([f"reads of other tasks: {', '.join(config.reads)}"] if config.reads else []),
        *([f"shared modules: {', '.join(one.label for one in version.modules)}"] if version.modules else []),
        *(f"{size:>12,} bytes  {escape(path)}" for path, size in sizes.items()),
        *(f"{size:>12,} bytes  {escape(path)} (cloud only)" for path, size in cloud_sizes.items()),
        f"{report['size_bytes']:>12,} bytes  download size per device",
    ]
    return report, lines
