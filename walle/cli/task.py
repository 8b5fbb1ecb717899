"""`walle task`: write a task, check it, and simulate it on this machine before it is pushed."""

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from walle.cli.output import JsonFlag, emit, working
from walle.errors import ConfigError, WalleError

if TYPE_CHECKING:
    from walle.deploy.cloud.release_service import SimulationResult
    from walle.deploy.cloud.repo import TaskTree

_SCENARIO = "local"  # what a task belongs to before it is pushed
_LEFT_OUT = frozenset({".git", "__pycache__"})

_CONFIG = """\
[task]
name = "{name}"

[trigger]
sequence = ["page_exit"]      # event ids or page ids that follow each other; the last one starts the task

[limits]
deadline_ms = 500
memory_mb = 32

[simulation]
events = "simulation/events.jsonl"
"""

_MAIN = '''\
"""{name}: how long a page was looked at, what was done on it, and the mean pause between two events."""

import walle.np as np


def execute(ctx, trigger):
    """Return the feature of one page visit; `ctx.events` are its events, from page_enter to page_exit."""
    times = [event.ts_ms for event in ctx.events]
    pauses = [after - before for before, after in zip(times, times[1:])] or [0]
    clicks = ctx.events.key_by("click")
    return {{
        "dwell_ms": times[-1] - times[0],
        "clicks": len(clicks),
        "mean_pause_ms": float(np.mean(np.asarray(pauses, dtype="float32"))),
    }}
'''

_VISITS: tuple[
    tuple[str, tuple[tuple[str, int, dict[str, Any]], ...]], ...
] = (  # page, then (event id, ms after the one before, contents)
    ("item/7", (("page_enter", 0, {}), ("page_scroll", 900, {"depth": 0.4}), ("click", 1500, {"action": "add_cart"}))),
    ("item/8", (("page_enter", 0, {}), ("exposure", 300, {"item_id": "9"}), ("page_scroll", 700, {"depth": 0.9}))),
    ("home", (("page_enter", 0, {}),)),
)

Folder = Annotated[Path, typer.Argument(help="The task's folder: task.toml, main.py and what they need.")]


class TaskFolderError(ConfigError):
    """A folder that holds no task, or may not be written. `folder` names it."""

    def __init__(self, folder: Path, what: str) -> None:
        super().__init__(f"{folder}: {what}")
        self.folder = folder


def new(
    name: Annotated[str, typer.Argument(help="The task's name, which is also its branch.")],
    folder: Annotated[Path | None, typer.Option(help="Where to write it; ./NAME if not given.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a small task that works: its configuration, ten lines of code, and events to simulate it with."""
    from walle.deploy.cloud.task_config import NAME_RULE, is_name

    if not is_name(name):
        raise typer.BadParameter(f"{name!r} cannot be a task's name: {NAME_RULE}", param_hint="NAME")
    target = folder or Path(name)
    files = {
        "task.toml": _CONFIG.format(name=name),
        "main.py": _MAIN.format(name=name),
        "simulation/events.jsonl": _simulation(),
    }
    _write_folder(target, files)
    text = f"{escape(str(target))} holds the task {name}; next: walle task simulate {escape(str(target))}"
    emit({"task": name, "folder": str(target), "files": sorted(files)}, as_json=as_json, text=text)


def _simulation() -> str:
    lines = []
    ts_ms = 1_700_000_000_000
    for page_id, events in _VISITS:
        for event_id, after_ms, contents in (*events, ("page_exit", 1200, {})):
            ts_ms += after_ms
            lines.append({"event_id": event_id, "page_id": page_id, "ts_ms": ts_ms, "contents": contents})
    return "".join(json.dumps(line) + "\n" for line in lines)


def _write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Make `folder` with `files`, whole or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TaskFolderError(folder, "is there already; name another place with --folder")
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
    """Return the folder's files as a version v1 of the task that its task.toml names. What git keeps is left out.

    Raises:
        TaskFolderError: it is no folder, lacks task.toml, or holds links or too much.
        TaskConfigError: task.toml is wrong.
    """
    from walle.deploy.cloud.bundle import CONFIG_FILE
    from walle.deploy.cloud.repo import MAX_TREE_BYTES, MAX_TREE_FILES, TaskTree
    from walle.deploy.cloud.task_config import TaskConfig

    if not folder.is_dir():
        raise TaskFolderError(folder, "is no folder; write a task with: walle task new NAME")
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
    return TaskTree(_SCENARIO, config.name, "v1", "0" * 40, files)


def check(folder: Folder, as_json: JsonFlag = False) -> None:
    """Check a task as the cloud does at a release: task.toml, that it compiles, what it imports, its size."""
    from walle.deploy.cloud.bundle import compile_tree

    config, files = compile_tree(read_folder(folder))
    sizes = {path: len(data) for path, data in sorted(files.items())}
    report: dict[str, Any] = {
        "task": config.name,
        **config.trigger.to_json(),
        "phases": dict(config.phases),
        "limits": dict(config.limits),
        "files": sizes,
        "size_bytes": sum(sizes.values()),
    }
    lines = [
        f"[green]good[/]: {config.name}, started by {escape(str(config.trigger))}",
        "limits: " + ", ".join(f"{key} {value}" for key, value in config.limits.items()),
        *(f"{size:>12,} bytes  {escape(path)}" for path, size in sizes.items()),
        f"{report['size_bytes']:>12,} bytes  travel to a device",
    ]
    emit(report, as_json=as_json, text="\n".join(lines))


def simulate(
    folder: Folder,
    events: Annotated[
        Path | None, typer.Option(help="Play this event log instead of the task's own simulation events.")
    ] = None,
    mapping: Annotated[Path | None, typer.Option(help="Which of the log's columns are which (a TOML file).")] = None,
    limit: Annotated[int, typer.Option(help="How many events of the log to play at most.", min=1)] = 20_000,
    as_json: JsonFlag = False,
) -> None:
    """Run a task on this machine as the cloud does before it releases it. Exit status 1 if a run fails.

    The task is compiled, signed with a key of the moment, laid out as on a device, and run in VMs on each kind of
    simulated device.
    """
    if mapping is not None and events is None:
        raise typer.BadParameter("says how to read a log; name the log with --events", param_hint="--mapping")
    skipped = 0
    tree = read_folder(folder)
    played = None
    if events is not None:
        played, skipped = _read_log(events, mapping, limit)
    started_s = time.monotonic()
    with working(f"simulating {tree.task}", as_json=as_json):
        result = asyncio.run(_simulate(tree, played))
    took_ms = (time.monotonic() - started_s) * 1000
    report: dict[str, Any] = {
        "task": tree.task,
        "ok": result.ok,
        "runs": result.runs,
        "failures": result.failures,
        "first_error": result.first_error,
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
    if result.first_error:
        lines.append(f"first error: {escape(result.first_error)}")
    emit(report, as_json=as_json, text="\n".join(lines))
    if not result.ok:
        raise typer.Exit(1)


async def _simulate(tree: "TaskTree", events: bytes | None) -> "SimulationResult":
    from walle.cloud.simulation import Simulator
    from walle.deploy.cloud.bundle import CONFIG_FILE, build_bundle
    from walle.deploy.cloud.task_config import TaskConfig
    from walle.deploy.signing import Signer

    bundle = build_bundle(tree, Signer.generate())
    own = TaskConfig.parse(tree.files[CONFIG_FILE], CONFIG_FILE).simulation_events
    if events is None and own:
        events = tree.files[own]
    simulator = Simulator(vms=1)
    try:
        return await simulator.run(bundle, events)
    finally:
        await simulator.close()


def _read_log(path: Path, mapping: Path | None, limit: int) -> tuple[bytes, int]:
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
    app.add_typer(group, name="task")
