"""`walle attributes`: attributes of devices and users that are uploaded to the cloud, for rules of releases."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from walle.cli.credentials import TokenOption, UrlOption, ca_of
from walle.cli.output import JsonFlag, emit, emit_rows, working
from walle.client.attribute_client import AttributeClient, AttributeTableJson, AttributeTablesJson
from walle.client.attribute_rows import read_rows
from walle.client.cloud_client import CloudAddressError

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

    async def work(client: AttributeClient) -> AttributeTableJson:
        declared = await client.tables()
        return await client.put(key, read_rows(file, key, declared["columns"]))

    with working("putting the table", as_json=as_json):
        done = _run(url, token, work)
    what = f"{done['rows']} rows by {escape(done['key'])}, {_names(done)}: {done['size_bytes']} bytes in each gateway"
    emit(done, as_json=as_json, text=what)


def list_tables(url: UrlOption, token: TokenOption = "", as_json: JsonFlag = False) -> None:
    """List the tables, without what is in them. This needs the role reader on `*`."""

    async def work(client: AttributeClient) -> AttributeTablesJson:
        return await client.tables()

    found = _run(url, token, work)
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

    async def work(client: AttributeClient) -> None:
        await client.remove(key)

    _run(url, token, work)
    emit({"key": key}, as_json=as_json, text=f"the table by {escape(key)} is removed")


def _run[T](url: str, token: str, work: Callable[[AttributeClient], Coroutine[Any, Any, T]]) -> T:
    """Return what `work` returns for the cloud at `url`."""

    async def within() -> T:
        try:
            client = AttributeClient(url, token, ca_pem=ca_of(url))
        except CloudAddressError as error:
            raise typer.BadParameter(str(error), param_hint="--url") from error
        async with client:
            return await work(client)

    return asyncio.run(within())


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
