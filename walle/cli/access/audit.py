"""`walle audit show|verify|head`: the audit log of a cloud over HTTP, or of its folder without a cloud."""

import base64
import binascii
import contextlib
import dataclasses
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walle.base.clock import SystemClock
from walle.cli.cloud_call import call_cloud
from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.output import JsonFlag, emit, emit_rows
from walle.client.cloud_client import CloudClient
from walle.errors import WalleError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from walle.access.audit import AuditStore, Verification

FolderArgument = Annotated[
    Path | None, typer.Argument(help="Folder of a cloud, or a copy of its audit folder; left out: ask the cloud.")
]
_AUDIT = "audit"


class AuditFaultError(WalleError):
    """An audit log that was changed or cut. The message names each fault."""


def show(
    folder: FolderArgument = None,
    url: UrlOption = "",
    token: TokenOption = "",
    after: Annotated[int, typer.Option(help="Show records of numbers above this one.", min=0)] = 0,
    limit: Annotated[int, typer.Option(help="How many records at most.", min=1, max=1000)] = 100,
    as_json: JsonFlag = False,
) -> None:
    """Show records of the audit log, oldest first: when, who, from where, what, and the numbers behind it."""
    if folder is None:
        records = _ask(url, token, "/v1/audit", {"after": after, "limit": limit})["records"]
    else:
        with _log_of(folder) as log:
            records = [record.to_plain() for record in log.records(after=after, limit=limit)]
    if as_json:
        emit({"records": records}, as_json=True)
        return
    rows = [
        {
            "number": record["number"],
            "at": f"{datetime.fromtimestamp(record['at_s']).astimezone():%Y-%m-%d %H:%M:%S}",
            "who": record["who"],
            "from": record["address"],
            "action": record["action"],
            "subject": record["subject"],
            "details": ", ".join(f"{key}={value}" for key, value in record["details"].items()),
        }
        for record in records
    ]
    emit_rows(rows, as_json=False)


def verify(
    folder: FolderArgument = None,
    url: UrlOption = "",
    token: TokenOption = "",
    head: Annotated[
        list[Path] | None, typer.Option(help="With FOLDER: a head that `walle audit head` printed; once for each.")
    ] = None,
    key: Annotated[
        str, typer.Option(help="With FOLDER: the log's public key, as in a head; that of the first head if empty.")
    ] = "",
    as_json: JsonFlag = False,
) -> None:
    """Check the chain of the audit log; the exit status is 1 where a record was changed, removed, moved or cut.

    Records that are missing at the end are found by heads that were kept elsewhere: --head.
    """
    if folder is None:
        if head or key:
            raise typer.BadParameter("heads are checked against a folder; give FOLDER", param_hint="--head, --key")
        found = _ask(url, token, "/v1/audit/verify", {})
        faults = [f"{fault['file']}:{fault['line']}: {fault['what']}" for fault in found["faults"]]
    else:
        verified = _verified(folder, head or [], key)
        found = {"ok": verified.ok, **dataclasses.asdict(verified)}
        faults = [str(fault) for fault in verified.faults]
    if as_json:
        emit(found, as_json=True)
    if faults:
        listed = "\n".join(faults[:100])
        if as_json:
            raise typer.Exit(1)
        raise AuditFaultError(f"the audit log has {len(faults)} faults:\n{listed}")
    if not as_json:
        text = f"[green]intact[/]: {found['records']} records, {found['first']} to {found['last']}"
        emit(found, as_json=False, text=text)


def head(
    folder: FolderArgument = None, url: UrlOption = "", token: TokenOption = "", as_json: JsonFlag = False
) -> None:
    """Print the signed number and hash of the last record: keep it where nobody who runs the cloud can change it."""
    if folder is None:
        found = _ask(url, token, "/v1/audit/head", {})
    else:
        from walle.cloud import CloudHome

        with contextlib.closing(CloudHome(folder)) as home:
            found = dataclasses.asdict(home.audit.head())
    emit(found, as_json=True)
    if not as_json:
        typer.echo("keep this in a file, and check with: walle audit verify FOLDER --head FILE", err=True)


def _verified(folder: Path, heads: list[Path], key: str) -> "Verification":
    from walle.access.audit import AuditHead
    from walle.trust.ed25519_keys import KeyRefusedError, checked_key

    try:
        public_key = base64.b64decode(key, validate=True) if key else None
    except binascii.Error as error:
        raise typer.BadParameter(f"is not base64: {error}", param_hint="--key") from error
    if public_key is not None:
        try:
            checked_key(public_key)
        except KeyRefusedError as error:
            raise typer.BadParameter(str(error), param_hint="--key") from error
    with _log_of(folder) as log:
        return log.verified(heads=tuple(map(AuditHead.load, heads)), public_key=public_key)


@contextlib.contextmanager
def _log_of(folder: Path) -> "Iterator[AuditStore]":
    """Give the log of a cloud's folder, in its database where it has one, or that of a copy."""
    from walle.access.audit_folder import AuditLog
    from walle.cloud import CloudHome
    from walle.cloud.folder.state_place import read_database

    if read_database(folder):
        with contextlib.closing(CloudHome(folder)) as home:
            yield home.audit
        return
    yield AuditLog(_log_folder(folder), SystemClock(), _no_head)


def _no_head(data: bytes) -> tuple[bytes, bytes]:
    raise NotImplementedError("this log is only read")


def _log_folder(folder: Path) -> Path:
    """Return the folder of segments: that of a cloud's folder, or the one that is given."""
    found = folder / _AUDIT if (folder / _AUDIT).is_dir() else folder
    if not found.is_dir() or not any(found.glob("*.jsonl")):
        raise typer.BadParameter(f"{folder} has no audit log", param_hint="FOLDER")
    return found


def _ask(url: str, token: str, path: str, parameters: dict[str, int]) -> Any:
    if not url:
        raise typer.BadParameter("give FOLDER, or the cloud's address as --url or WALLE_URL", param_hint="FOLDER")

    return call_cloud(CloudClient, url, token, lambda client: client.call("GET", path, parameters=parameters))


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Read and verify a cloud's audit log.", no_args_is_help=True)
    group.command(epilog="Example: walle audit show --after 100 --json")(show)
    group.command(epilog="Example: walle audit verify shop-cloud --head kept/head.json")(verify)
    group.command(epilog="Example: walle audit head > kept/head.json")(head)
    app.add_typer(group, name=_AUDIT)
