"""`walle task add-file`: a large file of a task, without git-lfs on this machine."""

import shutil
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from walle.base.durable_file import write_file
from walle.cli.cloud_call import call_cloud
from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.output import JsonFlag, emit, progress_console
from walle.cli.task.folder import TaskFolderError, git_large_files
from walle.client.file_client import FileClient


def add_file(
    scenario: Annotated[str, typer.Argument(help="The scenario of the task.")],
    file: Annotated[Path, typer.Argument(help="The file, of any size up to 4 GiB.")],
    url: UrlOption,
    folder: Annotated[Path, typer.Option(help="The task's folder, in its git repository.")] = Path(),
    place: Annotated[str, typer.Option("--as", help="Its path in the task; resources/NAME if not given.")] = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Send a large file to the cloud, and put a Git LFS pointer to it into the task's folder, to be committed.

    It is what git-lfs does, for who does not have it. The file itself need not lie in the folder. This needs the role
    author in the scenario.
    """
    from walle.task.format.large_file import MAX_LARGE_FILE_BYTES, MAX_POINTER_BYTES, LargeFile, parse_pointer

    path = place or f"resources/{file.name}"
    parts = PurePosixPath(path).parts
    is_plain = str(PurePosixPath(path)) == path and path.isprintable()
    if parts[:1] != ("resources",) or len(parts) == 1 or ".." in parts or not is_plain:
        raise typer.BadParameter(f"{path!r} is not a file below resources/ in the task's folder", param_hint="--as")
    if (folder / path).is_dir():
        raise typer.BadParameter(f"{folder / path} is a folder", param_hint="--as")
    kept = git_large_files(folder)
    if kept is None:
        raise TaskFolderError(folder, "is not in a git repository; make one with: git init -b TASK")
    try:
        large = LargeFile.of(file)
        if large.size_bytes <= MAX_POINTER_BYTES and parse_pointer(file.read_bytes()):
            what = f"{file} is the pointer to a large file, which was added before; name the file itself"
            raise typer.BadParameter(what, param_hint="FILE")
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from error
    if large.size_bytes > MAX_LARGE_FILE_BYTES:
        what = f"{file} has {large.size_bytes} bytes; a large file has {MAX_LARGE_FILE_BYTES} at most"
        raise typer.BadParameter(what, param_hint="FILE")

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console, transient=True) as progress:
        bar = progress.add_task(escape(file.name), total=large.size_bytes)

        async def work(client: FileClient) -> bool:
            return await client.put_large(
                scenario, large.sha256, file, large.size_bytes, lambda count: progress.update(bar, completed=count)
            )

        is_new = call_cloud(FileClient, url, token, work)
    _keep(file, kept / large.sha256[:2] / large.sha256[2:4] / large.sha256)
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    write_file(target, large.pointer, mode=0o644)
    lines = [
        f"{escape(str(target))} points to {large.size_bytes:,} bytes, which the cloud {'has' if is_new else 'had'}",
        escape(f'next: list it in task.toml, [files] "{path}" = "shared"; then commit and push'),
    ]
    report = {"path": path, "sha256": large.sha256, "size_bytes": large.size_bytes, "sent": is_new}
    emit(report, as_json=as_json, text="\n".join(lines))


def _keep(file: Path, place: Path) -> None:
    """Keep a copy where git-lfs keeps its files, so that the task can be checked and simulated here."""
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{place.name}.new")
    shutil.copyfile(file, temporary)
    temporary.replace(place)
