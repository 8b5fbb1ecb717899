"""`walle task`: write a task, check it, and simulate it on this machine before it is pushed."""

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from walle.cli.output import JsonFlag, emit, working
from walle.cli.task_dictionary import dictionary
from walle.errors import ConfigError, WalleError

if TYPE_CHECKING:
    from walle.deploy.cloud.release_service import SimulationResult
    from walle.deploy.cloud.repo import TaskTree
    from walle.task_log import LogLine

_SCENARIO = "local"  # of a task that is not pushed yet
_LEFT_OUT = frozenset({".git", "__pycache__"})
_MAX_LOG_LINES = 1_000  # of a simulation, in its report
_SHOWN_LOG_LINES = 20  # of these, in text

_CONFIG = """\
[task]
name = "{name}"

[trigger]
sequence = ["page_exit"]      # event ids or page ids of consecutive events; the last one starts the task

[limits]
deadline_ms = 500
memory_mb = 32

[simulation]
events = "simulation/events.jsonl"
"""

_MAIN = '''\
"""{name}: how long each page was looked at, and how often it was clicked."""

import walle.np as np


def execute(ctx, trigger):
    page = trigger["event"]["page_id"]
    times = np.asarray(ctx.events.column("ts_ms"), dtype="float64")  # of this page since its page_enter
    clicks = ctx.events.key_by("click")
    ctx.log(f"{{page}}: {{len(clicks)}} clicks")
    return {{"page": page, "clicks": len(clicks), "dwell_ms": float(np.ptp(times))}}
'''

_LOG_VISITS = 400  # of log.jsonl: 13 minutes of a user, for a release that is watched
_SIMULATION_VISITS = 3

Folder = Annotated[Path, typer.Argument(help="The task's folder: task.toml, main.py and what they need.")]


class TaskFolderError(ConfigError):
    """A folder that is not a task, or may not be written. `folder` names it."""

    def __init__(self, folder: Path, what: str) -> None:
        super().__init__(f"{folder}: {what}")
        self.folder = folder


def new(
    name: Annotated[str, typer.Argument(help="The task's name, which is also its branch.")],
    folder: Annotated[Path | None, typer.Option(help="Where to write it; ./NAME if not given.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a small task that works: its configuration, ten lines of code, and events for simulation and device."""
    from walle.deploy.cloud.task_config import NAME_RULE, is_name

    if not is_name(name):
        raise typer.BadParameter(f"{name!r} is not a task name: {NAME_RULE}", param_hint="NAME")
    target = folder or Path(name)
    files = {
        "task.toml": _CONFIG.format(name=name),
        "main.py": _MAIN.format(name=name),
        "log.jsonl": _event_lines(_LOG_VISITS),
        "simulation/events.jsonl": _event_lines(_SIMULATION_VISITS),
    }
    _write_folder(target, files)
    text = f"{escape(str(target))} holds the task {name}; next: walle task simulate {escape(str(target))}"
    emit({"task": name, "folder": str(target), "files": sorted(files)}, as_json=as_json, text=text)


def _event_lines(visits: int) -> str:
    """Return page visits as JSON lines of events: each enters a page, clicks up to twice, and leaves it."""
    lines = []
    ts_ms = 1_700_000_000_000
    for visit in range(visits):
        clicks = [("click", 400)] * (visit % 3)
        for event_id, after_ms in (("page_enter", 1000), *clicks, ("page_exit", 600)):
            ts_ms += after_ms
            lines.append({"event_id": event_id, "page_id": f"item/{visit % 7}", "ts_ms": ts_ms, "contents": {}})
    return "".join(json.dumps(line) + "\n" for line in lines)


def _write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Create `folder` with `files`, completely or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TaskFolderError(folder, "exists already; name another folder with --folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new."))
    try:
        for path, text in files.items():
            (staging / path).parent.mkdir(parents=True, exist_ok=True)
            (staging / path).write_text(text)
        staging.chmod(0o755)
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def read_folder(folder: Path) -> "TaskTree":
    """Return the folder's files, without .git, as version v1 of the task that its task.toml names.

    Raises:
        TaskFolderError: it is not a folder, lacks task.toml, or holds links, too many files or too many bytes.
        TaskConfigError: task.toml is wrong.
    """
    from walle.deploy.cloud.bundle import CONFIG_FILE
    from walle.deploy.cloud.repo import MAX_TREE_BYTES, MAX_TREE_FILES, TaskTree
    from walle.deploy.cloud.task_config import TaskConfig

    if not folder.is_dir():
        raise TaskFolderError(folder, "is not a folder; write a task with: walle task new NAME")
    files: dict[str, bytes] = {}
    size_bytes = 0
    for parent, folders, names in folder.walk():
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in [*names, *folders]:
            if (parent / name).is_symlink():
                raise TaskFolderError(parent / name, "is a symbolic link; a task holds plain files only")
        for name in sorted(names):
            path = (parent / name).relative_to(folder).as_posix()
            size_bytes += (parent / name).stat().st_size
            if len(files) == MAX_TREE_FILES or size_bytes > MAX_TREE_BYTES:
                raise TaskFolderError(folder, f"holds more than {MAX_TREE_FILES} files or {MAX_TREE_BYTES} bytes")
            files[path] = (parent / name).read_bytes()
    if CONFIG_FILE not in files:
        raise TaskFolderError(folder, f"has no {CONFIG_FILE}; write a task with: walle task new NAME")
    config = TaskConfig.parse(files[CONFIG_FILE], str(folder / CONFIG_FILE))
    return TaskTree(scenario=_SCENARIO, task=config.name, version="v1", commit="0" * 40, files=files)


def check(folder: Folder, as_json: JsonFlag = False) -> None:
    """Check a task as the cloud does at a release: task.toml, that it compiles, what it imports, its size."""
    from walle.deploy.cloud.bundle import TaskVersion, compile_version

    version = TaskVersion.parse(read_folder(folder))
    config, files = version.config, compile_version(version)
    sizes = {path: len(data) for path, data in sorted(files.items())}
    report: dict[str, Any] = {
        "task": config.name,
        **config.trigger.to_json(),
        "phases": dict(config.phases),
        "limits": {**config.limits, **config.policies},
        "reads": list(config.reads),
        "files": sizes,
        "size_bytes": sum(sizes.values()),
    }
    lines = [
        f"[green]good[/]: {config.name}, started by {escape(str(config.trigger))}",
        "limits: " + ", ".join(f"{key} {value}" for key, value in {**config.limits, **config.policies}.items()),
        *([f"reads of other tasks: {', '.join(config.reads)}"] if config.reads else []),
        *(f"{size:>12,} bytes  {escape(path)}" for path, size in sizes.items()),
        f"{report['size_bytes']:>12,} bytes  travel to a device",
    ]
    emit(report, as_json=as_json, text="\n".join(lines))


def simulate(
    folder: Folder,
    events: Annotated[
        Path | None, typer.Option(help="Play this event log instead of the task's own simulation events.")
    ] = None,
    mapping: Annotated[Path | None, typer.Option(help="A TOML file that maps the log's columns to events.")] = None,
    limit: Annotated[int, typer.Option(help="How many events of the log to play at most.", min=1)] = 20_000,
    as_json: JsonFlag = False,
) -> None:
    """Run a task on this machine as the cloud does before it releases it. Exit status 1 if a run fails.

    The task is compiled, signed with a temporary key, laid out as on a device, and run in VMs on each kind of simulated
    device. The report has what it logs and prints.
    """
    if mapping is not None and events is None:
        raise typer.BadParameter("says how to read a log; name the log with --events", param_hint="--mapping")
    skipped = 0
    tree = read_folder(folder)
    played = None
    if events is not None:
        played, skipped = read_log(events, mapping, limit)
    started_s = time.monotonic()
    log = _SimulationLog()
    with working(f"simulating {tree.task}", as_json=as_json):
        result = asyncio.run(_simulate(tree, played, log))
    took_ms = (time.monotonic() - started_s) * 1000
    report: dict[str, Any] = {
        "task": tree.task,
        "ok": result.ok,
        "runs": result.runs,
        "failures": result.failures,
        "first_error": result.first_error,
        "log": log.lines,
        "dropped_log_lines": log.dropped,
        "skipped_lines": skipped,
        "took_ms": round(took_ms, 1),
        "ms_per_run": round(took_ms / result.runs, 3) if result.runs else None,
    }
    counts = f"{result.runs} runs, {result.failures} failures, {took_ms:.0f} ms in all"
    lines = [f"{'[green]passed[/]' if result.ok else '[red]failed[/]'}: {tree.task}, {counts}"]
    if result.runs:
        lines.append(f"{report['ms_per_run']} ms a run, start of the VMs and loading included")
    elif result.ok:
        lines.append(escape("it loads; give it events to run on: [simulation] events in task.toml, or --events"))
    if skipped:
        lines.append(f"{skipped} lines of {escape(str(events))} were skipped")
    lines += [f"log: {escape(_line_of(line))}" for line in log.lines[:_SHOWN_LOG_LINES]]
    if hidden := len(log.lines[_SHOWN_LOG_LINES:]) + log.dropped:
        lines.append(f"log: {hidden} more lines; --json gives the first {_MAX_LOG_LINES}")
    if result.first_error:
        lines.append(f"first error: {escape(result.first_error)}")
    emit(report, as_json=as_json, text="\n".join(lines))
    if not result.ok:
        raise typer.Exit(1)


class _SimulationLog:
    """The first lines that a task logs in a simulation, as plain data, and a count of the others."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.dropped = 0

    def add(self, device: str, position: int | None, lines: "Sequence[LogLine]") -> None:
        kept = lines[: _MAX_LOG_LINES - len(self.lines)]
        self.lines += [{"device": device, "event": position, "level": one.level, "text": one.text} for one in kept]
        self.dropped += len(lines) - len(kept)


def _line_of(line: Mapping[str, Any]) -> str:
    where = "loading" if line["event"] is None and not line["device"] else line["device"]
    if line["event"] is not None:
        where += f", event {line['event']}"
    return f"{line['level']}: {line['text']} ({where})"


async def _simulate(tree: "TaskTree", events: bytes | None, log: _SimulationLog) -> "SimulationResult":
    from walle.cloud.simulation import Simulator
    from walle.deploy.cloud.bundle import TaskVersion, build_bundle
    from walle.deploy.signing import Signer

    version = TaskVersion.parse(tree)
    bundle = build_bundle(version, Signer.generate())
    if events is None:
        events = version.simulation_events
    simulator = Simulator(vms=1, on_log=log.add)
    try:
        return await simulator.run(bundle, events)
    finally:
        await simulator.close()


def read_log(path: Path, mapping: Path | None, limit: int) -> tuple[bytes, int]:
    """Return the log's first events as JSON lines, each stream in one piece, and how many lines were skipped."""
    from walle.pipeline.event_log import EventLog

    log = EventLog(path, mapping)
    streams: dict[str, list[bytes]] = {}
    for record in log.records():
        line = {"stream": record.stream, "id": str(record.position), **record.event.to_dict()}
        streams.setdefault(record.stream, []).append(json.dumps(line).encode() + b"\n")
        if log.events == limit:
            break
    if not streams:
        raise WalleError(f"event log {path}: no event could be read; {sum(log.skipped.values())} lines were skipped")
    return b"".join(line for lines in streams.values() for line in lines), sum(log.skipped.values())


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Write, check and simulate tasks.", no_args_is_help=True)
    group.command(epilog="Example: walle task new dwell --folder tasks/dwell")(new)
    group.command(epilog="Example: walle task check tasks/dwell")(check)
    group.command(epilog="Example: walle task simulate apps/ipv/task --events app.jsonl.gz --mapping app.toml")(
        simulate
    )
    group.command(epilog="Example: walle task dictionary apps/ipv/task --events app.jsonl.gz --mapping app.toml")(
        dictionary
    )
    app.add_typer(group, name="task")
