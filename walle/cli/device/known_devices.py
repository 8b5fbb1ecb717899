"""`walle device list|show|logs`: the devices that a cloud has heard of."""

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.markup import escape

from walle.cli.cloud_call import call_cloud
from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.device.identity import CloudOption, DeviceId, list_enrolled
from walle.cli.output import JsonFlag, emit, emit_rows
from walle.client.admin_client import AdminClient, DeviceFailureJson, DeviceJson, DevicePageJson

_PAGE = 1_000  # devices of one request
_NOT_SENT = "a device sends the last lines of failing runs only; its whole log is in device.log of its folder"


def list_devices(
    url: UrlOption = "",
    token: TokenOption = "",
    cloud: CloudOption = None,
    enrolled: Annotated[
        bool, typer.Option("--enrolled", help="All enrolled devices, also those that never reported; for admins.")
    ] = False,
    search: Annotated[str, typer.Option(help="Only devices whose id has this part.")] = "",
    task: Annotated[str, typer.Option(help="Only devices that have this task, as scenario/task.")] = "",
    group: Annotated[str, typer.Option(help="Only devices that have tasks of this group's scenarios.")] = "",
    version: Annotated[str, typer.Option(help="Only devices on which this version is active, such as v3.")] = "",
    state: Annotated[
        str, typer.Option(help="Only devices with this latest outcome: installed, rejected, reverted, removed, run.")
    ] = "",
    app_version: Annotated[str, typer.Option(help="Only devices of this app version.")] = "",
    failing: Annotated[bool, typer.Option("--failing", help="Only devices with failures of what they have.")] = False,
    seen_within_s: Annotated[float, typer.Option(help="Only devices seen in these last seconds.", min=0)] = 0.0,
    limit: Annotated[int, typer.Option(help="How many devices to list at most.", min=1, max=50_000)] = 100,
    after: Annotated[str, typer.Option(help="List the devices after this id: the next page.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """List devices that the cloud has heard of, by id: app version, key, when they were seen, tasks.

    The cloud keeps 100,000 devices; it forgets those first that never reported an outcome, then those seen longest ago.
    `--enrolled` lists, from the file of identities, each device that has or had a key: its state, the end of its
    certificate, and when it last proved its key. So does `--cloud`, on the machine of the cloud.
    """
    if enrolled or cloud is not None:
        if task or group or version or state or app_version or failing or seen_within_s:
            raise typer.BadParameter("enrolled devices are found by --search only", param_hint="--enrolled")
        list_enrolled(url, token, cloud, search=search, limit=limit, after=after, as_json=as_json)
        return
    if not url:
        raise typer.BadParameter("name the cloud with --url, or its folder with --cloud", param_hint="--url")
    query: dict[str, str | float] = {"search": search, "task": task, "version": version, "app_version": app_version}
    query["group"] = group
    query |= {"failing": "true" if failing else "", "seen_within_s": seen_within_s, "state": state}
    query = {key: value for key, value in query.items() if value}

    async def pages(client: AdminClient) -> DevicePageJson:
        page = await client.devices(**query, after=after, limit=min(limit, _PAGE))
        while page["after"] and len(page["devices"]) < limit:
            more = await client.devices(**query, after=page["after"], limit=min(limit - len(page["devices"]), _PAGE))
            page = {**more, "devices": page["devices"] + more["devices"]}
        return page

    page = call_cloud(AdminClient, url, token, pages)
    if as_json:
        emit(page, as_json=True)
        return
    emit_rows([_row(device) for device in page["devices"]], as_json=False)
    if page["after"]:
        more = f"{len(page['devices'])} of {page['total']} devices; the next: --after {page['after']}"
        emit(page, as_json=False, text=escape(more))
    if page.get("is_full"):
        emit(page, as_json=False, text="the registry of devices is full: others were forgotten, or will be")
    if page["unlisted"]:
        emit(page, as_json=False, text=f"{page['unlisted']} messages of devices came too fast to be listed")


def show(device_id: DeviceId, url: UrlOption, token: TokenOption = "", as_json: JsonFlag = False) -> None:
    """Show one device: app version, attributes, when it was seen, and each task.

    Of a task: the active version, the latest outcome that the device reported, and the runs of that version.
    """
    device = call_cloud(AdminClient, url, token, lambda client: client.device(device_id))
    if as_json:
        emit(device, as_json=True)
        return
    lines = [
        f"{device['device_id']}: app {device['app_version'] or 'unknown'}",
        f"seen from {_time(device['first_seen_s'])} to {_time(device['last_seen_s'])}",
        f"last report: {_time(device['reported_s'])}",
        f"key: {device['key'] or 'none'}, certificate until {_time(device['certificate_until_s'])}",
        *(f"{name} = {value}" for name, value in device["attributes"].items()),
    ]
    emit(device, as_json=False, text=escape("\n".join(lines)))
    rows = [
        {
            "task": task["task"],
            "active": task["active"] or "none",
            "reported": f"{task['version']} {task['state']}".strip() or "nothing",
            "at": _time(task["reported_s"]),
            "release": task["release"],
            "ok": task["ok"],
            "failed": task["failed"],
        }
        for task in device["tasks"]
    ]
    emit_rows(rows, as_json=False, title="tasks")


def logs(
    device_id: DeviceId,
    url: UrlOption,
    token: TokenOption = "",
    task: Annotated[str, typer.Option(help="Only failures of this task, as scenario/task.")] = "",
    limit: Annotated[int, typer.Option(help="How many failures to show at most.", min=1, max=100)] = 20,
    before: Annotated[int, typer.Option(help="Show failures of numbers below this one: the next page.", min=0)] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Show the failures that a device reported, the latest last, with traceback and last log lines.

    The cloud has nothing else of a device's log: a device sends the last lines of failing runs only, one example of
    each type and place in a report. Its whole log is in device.log of its folder. The cloud keeps 20 failures of each.
    """
    found = call_cloud(
        AdminClient,
        url,
        token,
        lambda client: client.device_failures(device_id, task=task, before=before, limit=limit),
    )
    if as_json:
        emit({"device_id": device_id, "failures": found}, as_json=True)
        return
    lines = [line for failure in reversed(found) for line in _failure_lines(failure)]
    emit(found, as_json=False, text=escape("\n".join(lines or [f"no failure was reported; {_NOT_SENT}"])))


def _row(device: DeviceJson) -> dict[str, Any]:
    tasks = [f"{one['task']} {one['active'] or 'none'} ({one['state'] or 'not reported'})" for one in device["tasks"]]
    return {
        "device": device["device_id"],
        "app": device["app_version"] or "unknown",
        "key": device["key"] or "none",
        "certificate until": _time(device["certificate_until_s"]),
        "last seen": _time(device["last_seen_s"]),
        "failed": sum(task["failed"] for task in device["tasks"]),
        "tasks": ", ".join(tasks) or "none",
    }


def _failure_lines(failure: DeviceFailureJson) -> list[str]:
    counted = f" ({failure['count']} times)" if failure["count"] > 1 else ""
    place = "" if failure["place"] in failure["error"] else f" ({failure['place']})"
    head = f"{failure['number']} {_time(failure['at_s'])} {failure['task']} {failure['version']} {failure['kind']}"
    lines = [f"{head}{counted}: {failure['error']}{place}"]
    lines += [f"    {line}" for line in failure["traceback"].split("\n") if line]
    lines += [f"    logged: {line}" for line in failure["log"].split("\n") if line]
    return lines


def _time(at_s: float | None) -> str:
    return "never" if at_s is None else f"{datetime.fromtimestamp(at_s).astimezone():%Y-%m-%d %H:%M:%S}"


def register(group: typer.Typer) -> None:
    """Register the commands in the group `walle device`."""
    group.command("list", epilog="Example: walle device list --task shop/ipv --version v2 --failing")(list_devices)
    group.command(epilog="Example: walle device show kiosk-1 --json")(show)
    group.command(epilog="Example: walle device logs kiosk-1 --task shop/ipv")(logs)
