"""`walle task`: write a task, check it, and simulate it on this machine before it is pushed."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from walle.cli.output import JsonFlag, emit
from walle.cli.task.branch import add_branch
from walle.cli.task.check import check
from walle.cli.task.dictionary import dictionary
from walle.cli.task.file import add_file
from walle.cli.task.folder import TaskFolderError
from walle.cli.task.simulation import simulate

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

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from walle.task import Context, Trigger


def execute(ctx: "Context", trigger: "Trigger") -> dict[str, object]:
    page = trigger["event"]["page_id"]
    times = np.asarray(ctx.events.column("ts_ms"), dtype="float64")  # of this page since its page_enter
    clicks = ctx.events.key_by("click")
    ctx.log(f"{{page}}: {{len(clicks)}} clicks")
    return {{"page": page, "clicks": len(clicks), "dwell_ms": float(np.ptp(times))}}
'''

_LOG_VISITS = 400  # visits in log.jsonl: 13 minutes of a user, for a release that is watched
_SIMULATION_VISITS = 3


def new(
    name: Annotated[str, typer.Argument(help="The task's name, which is also its branch.")],
    folder: Annotated[Path | None, typer.Option(help="Where to write it; ./NAME if not given.")] = None,
    repo: Annotated[
        Path | None, typer.Option(help="Clone of a scenario: the task becomes a branch of it, in a separate folder.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a small task that works: its configuration, ten lines of code, and events for simulation and device.

    With --repo, its folder is a git worktree of that clone, on the new branch NAME, which has these files alone: commit
    and push there as in the clone. So the tasks of a scenario lie side by side.
    """
    from walle.base.names import NAME_RULE, is_name

    if not is_name(name):
        raise typer.BadParameter(f"{name!r} is not a task name: {NAME_RULE}", param_hint="NAME")
    target = folder or Path(name)
    files = {
        "task.toml": _CONFIG.format(name=name),
        "main.py": _MAIN.format(name=name),
        "log.jsonl": _event_lines(_LOG_VISITS),
        "simulation/events.jsonl": _event_lines(_SIMULATION_VISITS),
    }
    if repo is not None:
        add_branch(repo, name, target, lambda: _write_folder(target, files))
    else:
        _write_folder(target, files)
    text = f"{escape(str(target))} holds the task {name}; next: walle task simulate {escape(str(target))}"
    report = {"task": name, "folder": str(target), "files": sorted(files)}
    emit(report | ({"branch": name} if repo is not None else {}), as_json=as_json, text=text)


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


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Write, check and simulate tasks.", no_args_is_help=True)
    group.command(epilog="Example: walle task new dwell --repo shop")(new)
    group.command(epilog="Example: walle task check tasks/dwell")(check)
    group.command(epilog="Example: walle task simulate apps/ipv/task --events app.jsonl.gz --mapping app.toml")(
        simulate
    )
    group.command(epilog="Example: walle task dictionary apps/ipv/task --events app.jsonl.gz --mapping app.toml")(
        dictionary
    )
    group.command("add-file", epilog="Example: walle task add-file shop ~/detector.walle --folder tasks/highlight")(
        add_file
    )
    app.add_typer(group, name="task")
