"""`walle device enrol|revoke`, and the list of enrolled devices: which ones a cloud admits, and what admits others.

They ask a cloud over HTTP with an administrator's token, or work on the folder of a cloud on this machine.
"""

import contextlib
import dataclasses
import getpass
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from walle.cli.cloud_call import call_cloud
from walle.cli.credentials import Credentials, TokenOption, UrlOption, ca_of
from walle.cli.join import JOIN_FILE, Join
from walle.cli.output import JsonFlag, emit, emit_rows
from walle.client.admin_client import AdminClient

if TYPE_CHECKING:
    from walle.cloud import CloudHome

_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0}
_PAGE = 1_000

DeviceId = Annotated[str, typer.Argument(help="The device's id, as `walle device list` shows it.")]
CloudOption = Annotated[
    Path | None, typer.Option("--cloud", help="Folder of a cloud on this machine, instead of --url and --token-file.")
]


def parse_life_s(text: str) -> float:
    """Return the seconds of 90m, 12h or 30d.

    Raises:
        typer.BadParameter: it is not one of these.
    """
    found = re.fullmatch(r"(\d{1,6})([mhd])", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a time such as 90m, 12h or 30d", param_hint="--expires")
    return int(found[1]) * _UNITS_S[found[2]]


@contextlib.contextmanager
def _home(cloud: Path) -> "Iterator[CloudHome]":
    """Give the folder of a cloud on this machine, or of one whose folder this machine sees."""
    from walle.cloud import CloudHome

    with contextlib.closing(CloudHome(cloud)) as home:
        if not home.is_of_a_cloud:
            what = "is not the folder of a cloud"
            raise typer.BadParameter(f"{cloud} {what}; start one with `walle cloud up` first", param_hint="--cloud")
        yield home


def _operator() -> str:
    """Return who changes a cloud's folder, for the audit log."""
    return f"{getpass.getuser()} on the cloud's machine"


def enrol(
    device_id: Annotated[str, typer.Argument(help="The device's id; none: any new device.")] = "",
    output: Annotated[
        Path | None, typer.Option("--output", help="Join file to write; DEVICE_ID.join.json if not given.")
    ] = None,
    join: Annotated[
        Path | None, typer.Option("--join", help="A join file of the cloud, for its addresses; not with --cloud.")
    ] = None,
    cloud: CloudOption = None,
    uses: Annotated[int, typer.Option(help="How many new devices it admits, where no id is given.", min=1)] = 1,
    expires: Annotated[str, typer.Option(help="How long it admits them: 90m, 12h or 30d.")] = "1d",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Write a join file that admits one device by its id, or several new ones that are set up from one image.

    Its token is a secret, and is used up by the enrolment: the device then makes its own key. An id that is
    enrolled already gets the new key, and the old one is revoked.
    """
    if (cloud is None) == (join is None):
        raise typer.BadParameter("name the cloud's folder with --cloud, or a join file of it with --join")
    life_s = parse_life_s(expires)
    if device_id and uses != 1:
        raise typer.BadParameter("a device is enrolled once; leave out its id for several", param_hint="--uses")
    if output is None:
        if not re.fullmatch(r"[\w.-]+", device_id):
            raise typer.BadParameter("name the file to write", param_hint="--output")
        output = Path(f"{device_id}.join.json")
    if cloud is not None:
        with _home(cloud) as home:
            base = Join.load(cloud / JOIN_FILE)
            details = {"uses": uses, "life_s": life_s}
            home.audit.append("device.enrolment_token", who=_operator(), subject=device_id, details=details)
            made = home.identities().make_token(device_id, uses=uses, life_s=life_s)
    else:
        assert join is not None
        base = Join.load(join)
        # a token of `walle login` goes to whom the login trusts: a join file may come from anywhere
        kept = "" if token else Credentials.load().get(base.url).token
        ca_pem = ca_of(base.url) if kept else base.ca_pem
        made = call_cloud(
            AdminClient,
            base.url,
            token or kept,
            lambda client: client.make_enrolment_token(device_id, uses=uses, life_s=life_s),
            ca_pem=ca_pem or None,
        )
    dataclasses.replace(base, enrolment_token=made, device_id=device_id).save(output)
    admits = f"device {device_id}" if device_id else f"{uses} new device{'s' * (uses > 1)}"
    said = {"join_file": str(output), "device_id": device_id, "uses": uses, "life_s": life_s}
    lines = [f"{output} admits {admits}, for {expires}; it is a secret until then"]
    if device_id:
        lines.append(f"start it with: walle device run FOLDER --join {output}")
    emit(said, as_json=as_json, text=escape("\n".join(lines)))


def revoke(
    device_id: DeviceId,
    reason: Annotated[str, typer.Option(help="Why; the list shows it.")] = "",
    url: UrlOption = "",
    token: TokenOption = "",
    cloud: CloudOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Revoke the key of a device: within 5 s its tunnel is cut, and it is refused everywhere.

    It keeps the tasks that it has installed, and its features; it gets no directives, and nothing that it sends is
    taken. `walle device enrol` with its id admits it again, with another key.
    """
    if cloud is not None:
        with _home(cloud) as home:
            found: Any = home.identities().revoke(device_id, reason).to_plain()
            home.audit.append("device.revoke", who=_operator(), subject=device_id, details={"reason": reason})
    else:
        url = _checked_url(url)
        found = call_cloud(AdminClient, url, token, lambda client: client.revoke_device(device_id, reason))
    emit(found, as_json=as_json, text=escape(f"{device_id} is revoked; admit it again with: walle device enrol"))


def list_enrolled(
    url: str, token: str, cloud: Path | None, *, search: str, limit: int, after: str, as_json: bool
) -> None:
    """Print the devices that are enrolled, by id: state, end of the certificate, when they last proved their key."""
    limit = min(limit, _PAGE)
    if cloud is not None:
        with _home(cloud) as home:
            records = home.identities().records(after=after, limit=limit, search=search)
        found: list[Any] = [one.to_plain() for one in records]
    else:
        found = list(
            call_cloud(
                AdminClient,
                _checked_url(url),
                token,
                lambda client: client.enrolled_devices(after=after, limit=limit, search=search),
            )
        )
    if as_json:
        emit({"devices": found}, as_json=True)
        return
    rows = [
        {
            "device": one["device_id"],
            "state": "enrolled" if one["revoked_s"] is None else f"revoked: {one['reason'] or 'no reason'}",
            "key": one["generation"],
            "last seen": _time(one["seen_s"]),
            "certificate until": _time(one["expires_s"]),
        }
        for one in found
    ]
    emit_rows(rows, as_json=False)


def _checked_url(url: str) -> str:
    if not url:
        raise typer.BadParameter("name the cloud with --url, or its folder with --cloud", param_hint="--url")
    return url


def _time(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s).astimezone():%Y-%m-%d %H:%M:%S}"


def register(group: typer.Typer) -> None:
    """Register the commands in the group `walle device`."""
    group.command(epilog="Example: walle device enrol kiosk-1 --cloud shop-cloud")(enrol)
    group.command(epilog="Example: walle device revoke kiosk-1 --reason stolen --cloud shop-cloud")(revoke)
