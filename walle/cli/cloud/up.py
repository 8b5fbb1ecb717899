"""`walle cloud up`: from its options to a cloud that runs."""

import asyncio
import contextlib
import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walle.cli import event_loop
from walle.cli.cloud import config as cloud_config
from walle.cli.cloud.folder_lock import new_folder, only_one
from walle.cli.cloud.options import PARAMETERS, CommandOptions, read_options
from walle.cli.cloud.program import detach_cloud, serve_cloud
from walle.cli.cloud.up_rules import IN_FILE, check_options
from walle.cli.declared_options import with_options
from walle.cli.join import JOIN_FILE
from walle.cli.output import JsonLinesFlag
from walle.errors import ConfigError

if TYPE_CHECKING:
    from walle.cloud import CloudConfig
    from walle.cloud.http.inherited_sockets import InheritedSockets


@with_options(PARAMETERS)
def up(
    folder: Annotated[Path, typer.Argument(help="Folder of the cloud's state; made if missing.")],
    config: Annotated[  # noqa: ARG001 - its callback has read it
        Path | None,
        typer.Option(
            "--config",
            help="walle.toml with these options as keys; an option that is given here takes precedence.",
            callback=cloud_config.load,
            is_eager=True,
        ),
    ] = None,
    *,
    as_json: JsonLinesFlag = False,
    **given: Any,
) -> None:
    """Run a cloud until Ctrl-C; a second one ends it without waiting for its devices to move.

    With --ray each part is a separate process; one that dies is started again and continues where it was.
    What a device needs to join is written to FOLDER/join.json, for its owner only.
    """
    command, cloud = read_options(folder, given)
    check_options(command, cloud)
    sockets = _take_sockets(command, cloud)
    if cloud.business_app:
        sys.path.append(str(Path.cwd()))  # an installed command looks in its own folder only
    with contextlib.ExitStack() as undo:
        # A database may have the state of the cloud already, and then needs the keys in the folder.
        if not cloud.database and not command.address:
            undo.enter_context(new_folder(folder, JOIN_FILE))
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        undo.enter_context(only_one(folder, is_standby=_is_in_database(folder, cloud.database)))
        cloud = _choose_databases(folder, cloud)
        _choose_files(folder, command)
        _run(command, cloud, sockets, as_json=as_json)


def _take_sockets(command: CommandOptions, cloud: "CloudConfig") -> "InheritedSockets":
    """Return the sockets that a service manager handed over.

    Raises:
        InheritedSocketError: they are not those of the options, or other processes would have to listen on them.
    """
    from walle.cloud.http.inherited_sockets import InheritedSocketError, InheritedSockets

    sockets = InheritedSockets.take(os.environ, cloud.host, http_port=cloud.http_port, tunnel_port=cloud.tunnel_port)
    if sockets and (command.ray or cloud.tunnel_processes > 1):
        raise InheritedSocketError(
            "sockets were handed over (LISTEN_FDS), on which other processes would have to listen with"
            f" {'--ray' if command.ray else '--tunnel-processes'}: leave that out, or stop the .socket unit"
        )
    return sockets


def _is_in_database(folder: Path, database: str) -> bool:
    from walle.cloud.folder.state_place import read_database

    return bool(database or read_database(folder))


def _choose_databases(folder: Path, cloud: "CloudConfig") -> "CloudConfig":
    """Return the configuration with the places of state and features, where the folder names them.

    Raises:
        typer.BadParameter: there is state or a feature elsewhere, or files are to be shared.
    """
    from walle.cloud.folder.state_place import choose_database, has_uploads

    try:
        database = choose_database(folder, cloud.database)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--database") from error
    if database and not cloud.uploads and has_uploads(folder):
        what = f"{folder} has features in a file: give file to keep them there, or the URL of a database for new ones"
        raise typer.BadParameter(what, param_hint="--uploads")
    uploads = "" if cloud.uploads == IN_FILE else cloud.uploads or database
    if cloud.shared_folder and not (database and uploads):
        what = "needs --database, which has state and features: files of SQLite are for one node"
        raise typer.BadParameter(what, param_hint="--shared-folder")
    return dataclasses.replace(cloud, database=database, uploads=uploads)


def _choose_files(folder: Path, command: CommandOptions) -> None:
    """Write where files of versions are stored, if that is given. Raises ConfigError where they are elsewhere."""
    from walle.cloud.folder.file_places import choose_place, parse_place

    if command.files:
        place = parse_place(
            command.files, endpoint=command.s3_endpoint, region=command.s3_region, public=command.s3_public
        )
        choose_place(folder, place)


def _run(command: CommandOptions, cloud: "CloudConfig", sockets: "InheritedSockets", *, as_json: bool) -> None:
    from walle.cloud.http.malloc import map_tls_buffers

    map_tls_buffers()
    try:
        if command.detach:
            event_loop.run(detach_cloud(cloud, command.address, as_json=as_json))
        else:
            event_loop.run(serve_cloud(cloud, sockets, ray=command.ray, ray_address=command.address, as_json=as_json))
    except asyncio.CancelledError:  # a signal before it was up, or a second one
        raise typer.Exit(130) from None
