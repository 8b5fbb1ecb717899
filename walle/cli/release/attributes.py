"""`walle attributes`: attributes of devices and users that are uploaded to the cloud, for rules of releases."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from walle.cli.cloud_call import call_cloud
from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.output import JsonFlag, emit, emit_rows, working
from walle.client.attribute_rows import read_rows
from walle.client.file_client import AttributeTableJson, FileClient

_KEY = "device_id"


def put(
    file: Annotated[
        Path, typer.Option("--file", help="The rows: .csv with names in its first line, .parquet or .jsonl.")
    ],
    url: UrlOption,
    key: Annotated[
        str, typer.Option(help="The column with the ids: device_id, or the attribute that has the user's id.")
    ] = _KEY,
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Put a table of attributes, a row for each device or user, in place of the one by the same key.

    Rules name an attribute of it uploaded.NAME. The section [uploaded] of attributes.toml in the cloud's folder
    declares names and types. This needs the role releaser on `*`.
    """
    if not file.is_file():
        raise typer.BadParameter(f"{file} is not a file", param_hint="--file")

    async def work(client: FileClient) -> AttributeTableJson:
        declared = await client.tables()
        return await client.put_table(key, read_rows(file, key, declared["columns"]))

    with working("putting the table", as_json=as_json):
        done = call_cloud(FileClient, url, token, work)
    what = f"{done['rows']} rows by {escape(done['key'])}, {_names(done)}: {done['size_bytes']} bytes in each gateway"
    emit(done, as_json=as_json, text=what)


def list_tables(url: UrlOption, token: TokenOption = "", as_json: JsonFlag = False) -> None:
    """List the tables, without what is in them. This needs the role reader on `*`."""
    found = call_cloud(FileClient, url, token, lambda client: client.tables())
    if as_json:
        emit(found, as_json=True)
        return
    emit_rows([_row(table) for table in found["tables"]], as_json=False)
    declared = ", ".join(f"{name} ({kind})" for name, kind in found["columns"].items())
    emit(found, as_json=False, text=escape(f"may be uploaded: {declared or 'nothing'}; by: {', '.join(found['keys'])}"))


def remove(
    key: Annotated[str, typer.Argument(help="The key of the table, as `walle attributes list` shows it.")],
    url: UrlOption,
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Remove a table: rules take no device by what it had. This needs the role releaser on `*`."""
    call_cloud(FileClient, url, token, lambda client: client.remove_table(key))
    emit({"key": key}, as_json=as_json, text=f"the table by {escape(key)} is removed")


def _names(table: AttributeTableJson) -> str:
    return escape(", ".join(f"{name} ({kind})" for name, kind in table["columns"].items()) or "no columns")


def _row(table: AttributeTableJson) -> dict[str, Any]:
    return {
        "by": table["key"],
        "rows": table["rows"],
        "columns": ", ".join(table["columns"]),
        "bytes": table["size_bytes"],
        "put": f"{datetime.fromtimestamp(table['put_s']).astimezone():%Y-%m-%d %H:%M} by {table['put_by']}",
    }


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Upload attributes of devices and users for rules of releases.", no_args_is_help=True)
    group.command(epilog="Example: walle attributes put --file groups.csv")(put)
    group.command("list", epilog="Example: walle attributes list")(list_tables)
    group.command(epilog="Example: walle attributes remove device_id")(remove)
    app.add_typer(group, name="attributes")
