"""`walle storage`: the stored files of task versions, in the folder of a cloud or in a bucket."""

import asyncio
import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from walle.cli.output import JsonFlag, emit, progress_console
from walle.errors import ConfigError

if TYPE_CHECKING:
    from walle.cloud import CloudHome

FolderArgument = Annotated[Path, typer.Argument(help="Folder of a cloud, which may run.")]
_DAY_S = 86_400.0
_SHOWN = 20


class _Bar:
    """Progress in bytes; nothing where it is not on a terminal."""

    def __init__(self, progress: Progress | None, what: str) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=None) if progress is not None else None

    def add(self, size_bytes: int, all_bytes: int | None = None) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=size_bytes, total=all_bytes)


@contextmanager
def _bar(what: str, *, as_json: bool) -> Iterator[_Bar]:
    if as_json or not progress_console.is_terminal:
        yield _Bar(None, what)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console, transient=True) as progress:
        yield _Bar(progress, what)


def check(
    folder: FolderArgument,
    repair: Annotated[
        bool,
        typer.Option("--repair/--no-repair", help="Repair damaged and missing files; without it, only report them."),
    ] = True,
    as_json: JsonFlag = False,
) -> None:
    """Read every stored file, find flipped bits and missing files, and repair them; exit with 1 if some remain.

    A file is made again from a coded form of it, from the copy in the folder where the files lay before, or from the
    task repository. A damaged file that nothing can repair is moved to FOLDER/quarantine. A cloud that runs does the
    same in the background (walle cloud up --scrub-mb-s).
    """
    from walle.base.clock import SystemClock
    from walle.cloud.upkeep.scrub import Finding
    from walle.cloud.upkeep.stored_files import StoredFiles

    home = _home(folder)
    scrubber = StoredFiles(home).scrubber(SystemClock())
    findings: list[Finding] = []
    count = size_bytes = 0

    async def run(bar: _Bar) -> None:
        nonlocal count, size_bytes
        async for checked in scrubber.run(repairs=repair):
            count, size_bytes = count + 1, size_bytes + checked.file.size_bytes
            bar.add(checked.file.size_bytes, checked.all_bytes)
            if checked.finding:
                findings.append(checked.finding)

    with _bar("checking", as_json=as_json) as bar:
        asyncio.run(run(bar))
    left = [finding for finding in findings if not finding.origin]
    said: dict[str, Any] = {
        "files": count,
        "size_bytes": size_bytes,
        "findings": [
            {
                "store": one.store,
                "sha256": one.sha256,
                "fault": one.fault.value,
                "repaired_from": one.origin or None,
                "releases": [release.id for release in one.releases],
            }
            for one in findings
        ],
    }
    lines = [f"{count} files, {size_bytes / 1e6:.1f} MB: {len(findings)} damaged or missing, {len(left)} not repaired"]
    lines += [f"[{'yellow' if one.origin else 'red'}]{escape(str(one))}[/]" for one in findings[:_SHOWN]]
    if left and repair:
        lines.append("push or release such a version again, or restore the file from a backup, then check again")
    emit(said, as_json=as_json, text="\n".join(lines))
    if left:
        raise typer.Exit(1)


def collect(
    folder: FolderArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be removed, and change nothing.")] = False,
    keep_versions: Annotated[
        int, typer.Option(min=1, help="Latest versions of each task that are kept even if their releases failed.")
    ] = 5,
    grace_days: Annotated[float, typer.Option(min=0.05, help="Days for which nothing must have reached a file.")] = 4.0,
    as_json: JsonFlag = False,
) -> None:
    """Remove files that no release reaches, and large files that no branch or version names: run it every day.

    The first run only marks them.

    Files of releases that are full, under way or paused are kept, so that every rollback finds its version; those of
    releases that were rolled back or failed go after the grace time, unless they are among the latest versions. Old
    full versions go once they are retired (walle release retire). Large files that were pushed by Git LFS are kept
    while a commit of any branch or version names them; one that was sent and not pushed goes after the grace time.
    """
    from walle.base.clock import SystemClock
    from walle.cloud.upkeep.stored_files import LARGE_FILES, UNREACHED, StoredFiles
    from walle.deploy.shared_files.retention import Marks, Sweep, sweep_files

    home = _home(folder)
    files = StoredFiles(home)
    sweeps: dict[str, Sweep] = {}
    grace_s = grace_days * _DAY_S
    for name, store in files.stores.items():

        def reached(name: str = name) -> frozenset[str]:
            found = files.reachable(keep_versions)
            if found.unread:
                raise found.unread[0]
            return frozenset(found.of(name))

        def forget_forms(sha256: str, name: str = name) -> None:
            if name == "files":
                home.coded_files.remove(sha256)

        marks = Marks(folder / f"{name}{UNREACHED}")
        sweeps[name] = sweep_files(
            store, marks, reached, SystemClock(), grace_s=grace_s, dry_run=dry_run, on_removed=forget_forms
        )
    if not dry_run:
        home.coded_files.remove_unfinished(time.time() - grace_s)
    for scenario, pushed in files.pushed.items():
        marks = Marks(folder / f"{LARGE_FILES}-{scenario}{UNREACHED}")
        named = functools.partial(files.named, scenario)
        name = f"large files of {scenario}"
        sweeps[name] = sweep_files(pushed, marks, named, SystemClock(), grace_s=grace_s, dry_run=dry_run)
    said: dict[str, Any] = {"dry_run": dry_run}
    lines = []
    for name, sweep in sweeps.items():
        removed_bytes, waiting_bytes = (
            sum(file.size_bytes for file in some) for some in (sweep.removed, sweep.waiting)
        )
        said[name] = {
            "reached": sweep.reached,
            "reached_bytes": sweep.reached_bytes,
            "waiting": len(sweep.waiting),
            "waiting_bytes": waiting_bytes,
            "removed": [file.sha256 for file in sweep.removed],
            "removed_bytes": removed_bytes,
        }
        would = "would be removed" if dry_run else "removed"
        lines.append(
            f"{escape(name)}: {len(sweep.removed)} {would} ({removed_bytes / 1e6:.1f} MB), {len(sweep.waiting)} wait"
            f" ({waiting_bytes / 1e6:.1f} MB), {sweep.reached} are reached ({sweep.reached_bytes / 1e6:.1f} MB)"
        )
    emit(said, as_json=as_json, text="\n".join(lines))


def move(
    folder: Annotated[Path, typer.Argument(help="Folder of a cloud that does not run.")],
    to: Annotated[str, typer.Option(help="s3://BUCKET/PREFIX, or folder for the cloud's own.")],
    s3_endpoint: Annotated[str, typer.Option(help="URL of the S3 server; Amazon's if empty.")] = "",
    s3_region: Annotated[str, typer.Option(help="Region of the bucket; us-east-1 if empty.")] = "",
    s3_public: Annotated[str, typer.Option(help="URL at which devices reach the S3 server; none if empty.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Copy all stored files to another place, from where the cloud serves them after its next start.

    Each file is verified on its way. The copies that were left remain, and repair the new ones, until they are removed.
    Keys of the bucket are taken from the environment, or from the file of credentials of other S3 programs.
    """
    from walle.cli.cloud.folder_lock import only_one
    from walle.cloud.folder.file_places import move_files, parse_place

    place = parse_place(to, endpoint=s3_endpoint, region=s3_region, public=s3_public)
    home = _home(folder)
    with only_one(home.folder), _bar("moving", as_json=as_json) as bar:
        count, size_bytes = move_files(home.folder, place, lambda _, size_bytes: bar.add(size_bytes))
    where = str(place or "folder")
    text = f"{count} files, {size_bytes / 1e6:.1f} MB, are now in {escape(where)}"
    emit({"place": where, "files": count, "size_bytes": size_bytes}, as_json=as_json, text=text)


def _home(folder: Path) -> "CloudHome":
    from walle.cloud import CloudHome

    if not (folder / "access.toml").exists():
        raise ConfigError(f"{folder}: is not the folder of a cloud")
    return CloudHome(folder.resolve())


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Check, remove and move the stored files of a cloud.", no_args_is_help=True)

    @group.callback()
    def storage() -> None:
        """Check, remove and move the stored files of a cloud."""

    group.command(epilog="Example: walle storage check shop-cloud")(check)
    group.command("gc", epilog="Example: walle storage gc shop-cloud --dry-run")(collect)
    group.command(
        epilog="Example: walle storage move shop-cloud --to s3://models/shop --s3-endpoint https://s3.example"
    )(move)
    app.add_typer(group, name="storage")
