"""`walle cloud backup` and `walle cloud restore`."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from walle.cli.output import JsonFlag, emit, progress_console

if TYPE_CHECKING:
    from walle.cloud.upkeep.backup import OnProgress

PASSPHRASE = "WALLE_BACKUP_PASSPHRASE"  # noqa: S105 - the variable's name
_MAX_WHAT_CHARS = 40

KeysOption = Annotated[
    Path | None,
    typer.Option(
        help=f"File for keys, tokens and certificates, encrypted with the passphrase in {PASSPHRASE}, or asked."
    ),
]


def backup(
    folder: Annotated[Path, typer.Argument(help="Folder of a cloud, which may run.")],
    out: Annotated[Path, typer.Argument(help="New folder for the backup; on another disk.")],
    keys: KeysOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Back up a cloud while it runs: releases, evidence, uploads, audit log, repositories and files.

    Keys and tokens are left out unless --keys names a file for them; keep it apart from the backup. What the cloud
    stores in PostgreSQL (--database, --uploads) needs a backup by pg_dump, made before this one.
    """
    from walle.base.clock import SystemClock
    from walle.cloud.upkeep.backup import make_backup, summary

    passphrase = _passphrase(keys, confirm=True)
    with _progress("backup", as_json=as_json) as on_progress:
        manifest = make_backup(
            folder.resolve(), out.resolve(), SystemClock(), keys=keys, passphrase=passphrase, on_progress=on_progress
        )
    said: dict[str, Any] = {"backup": str(out), "keys": str(keys) if keys else None, **summary(manifest)}
    lines = [
        f"[green]backed up[/]: {escape(str(out))}, {said['files']} files, {said['size_bytes'] / 1e6:.1f} MB",
        f"keep its hash elsewhere: {manifest.sha256}",
    ]
    if keys is None:
        lines.append("[yellow]without keys and tokens[/]: devices trust a restored cloud only with them; see --keys")
    if not manifest.has_state:
        what = "releases, devices, identities, exclusive files and audit log"
        lines.append(f"[yellow]without {what}[/]: they are in PostgreSQL; pg_dump it first, then make this backup")
    if not manifest.has_uploads:
        lines.append("[yellow]without uploads[/]: they are not in this folder; back up PostgreSQL with pg_dump")
    if not manifest.has_files:
        lines.append("[yellow]without files of versions[/]: they are in a bucket, which a restored cloud uses again")
    lines += [f"[red]damaged[/]: {escape(name)} does not have the hash of its name" for name in manifest.damaged[:20]]
    emit(said, as_json=as_json, text="\n".join(lines))


def restore(
    out: Annotated[Path, typer.Argument(help="Folder of a backup.")],
    folder: Annotated[Path, typer.Argument(help="New folder for the cloud.")],
    keys: KeysOption = None,
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Restore no keys; you put them into FOLDER before the cloud starts.")
    ] = False,
    sha256: Annotated[str, typer.Option(help="Hash that the backup printed; refuse any other backup.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Make a cloud's folder from a backup, of which every hash is verified; then start it with walle cloud up.

    Devices continue: the cloud's orders are newer than all those of the lost one. Uploads that it had
    acknowledged after the backup are lost, and listed in walle features and /metrics. Revoke again the devices and
    tokens that were revoked after the backup, and enrol again the devices that were enrolled after it.
    """
    from walle.base.clock import SystemClock
    from walle.cloud.upkeep.backup import summary
    from walle.cloud.upkeep.restore import restore_backup

    if keys is None and not without_keys:
        what = "give the file of the backup's keys, or --without-keys: a cloud without them makes new ones, which no"
        raise typer.BadParameter(f"{what} device trusts", param_hint="--keys")
    passphrase = _passphrase(keys, confirm=False)
    with _progress("restore", as_json=as_json) as on_progress:
        manifest = restore_backup(
            out.resolve(),
            folder.resolve(),
            SystemClock(),
            keys=keys,
            passphrase=passphrase,
            sha256=sha256,
            on_progress=on_progress,
        )
    said = {"folder": str(folder), **summary(manifest)}
    text = f"[green]restored[/]: {escape(str(folder))}, {said['files']} files; start it with: walle cloud up"
    emit(said, as_json=as_json, text=f"{text} {escape(str(folder))}")


def move_state(
    folder: Annotated[Path, typer.Argument(help="Folder of a cloud, which does not run.")],
    to: Annotated[
        str,
        typer.Option(help="URL of an empty database: postgresql://USER@HOST/DATABASE.", envvar="WALLE_DATABASE"),
    ],
    as_json: JsonFlag = False,
) -> None:
    """Move releases, devices, identities, exclusive files and audit log to PostgreSQL, whole or not at all.

    The files stay, with .moved after their names. Features stay in their file; then start the cloud with
    --uploads file, or with the URL of a database for new ones.
    """
    from walle.cli.cloud.folder_lock import only_one
    from walle.cloud.upkeep.state_move import move_state as move

    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder", param_hint="FOLDER")
    with only_one(folder):
        counts = move(folder.resolve(), to)
    said = {"folder": str(folder), "rows": dict(counts)}
    listed = ", ".join(f"{count} {table.replace('_', ' ')}" for table, count in counts.items() if count)
    emit(said, as_json=as_json, text=f"[green]moved[/]: {listed}; start it with: walle cloud up {escape(str(folder))}")


def _passphrase(keys: Path | None, *, confirm: bool) -> str:
    if keys is None:
        return ""
    if found := os.environ.get(PASSPHRASE):
        return found
    asked: str = typer.prompt("passphrase of the keys", hide_input=True, confirmation_prompt=confirm, err=True)
    return asked


@contextlib.contextmanager
def _progress(what: str, *, as_json: bool) -> "Iterator[OnProgress | None]":
    """Show how many bytes are done, on a terminal."""
    if as_json or not progress_console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console, transient=True) as progress:
        shown = progress.add_task(what, total=None)

        def on_progress(done_bytes: int, all_bytes: int, name: str) -> None:
            progress.update(shown, completed=done_bytes, total=all_bytes, description=escape(name[-_MAX_WHAT_CHARS:]))

        yield on_progress


def register(group: typer.Typer) -> None:
    """Register the commands in the group `walle cloud`."""
    group.command(epilog="Example: walle cloud backup shop-cloud /backups/monday --keys /safe/monday.keys")(backup)
    group.command(epilog="Example: walle cloud restore /backups/monday shop-cloud --keys /safe/monday.keys")(restore)
    group.command(epilog="Example: walle cloud move-state shop-cloud --to postgresql://walle@db.example/walle")(
        move_state
    )
