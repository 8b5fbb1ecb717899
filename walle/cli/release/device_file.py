"""`walle device-file`: files of single devices and of groups, which come to them through /cen."""

from collections.abc import Callable, Coroutine
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from walle.cli.cloud_call import call_cloud
from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.output import JsonFlag, emit, emit_rows
from walle.client.cloud_client import CloudRefusedError
from walle.client.file_client import ExclusiveFileJson, FileClient, GroupFileJson
from walle.errors import WalleError
from walle.protocol import MAX_EXCLUSIVE_BYTES

TaskArgument = Annotated[str, typer.Argument(metavar="SCENARIO/TASK", help="The task that reads it.")]
NameArgument = Annotated[str, typer.Argument(help="The file's name under [[exclusive]] in task.toml.")]
DevicesOption = Annotated[list[str] | None, typer.Option("--device", help="The id of a device; once for each.")]
RuleOption = Annotated[
    str, typer.Option(help="Instead of --device: all devices for which it is true, such as: uploaded.is_member")
]
AppVersionOption = Annotated[str, typer.Option(help="Instead of --device: app versions, such as '>=10,<11'.")]


def put(
    task: TaskArgument,
    name: NameArgument,
    file: Annotated[Path, typer.Argument(help="The local file with its contents.")],
    url: UrlOption,
    device: DevicesOption = None,
    rule: RuleOption = "",
    app_version: AppVersionOption = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Give devices, or the group of a rule, their own file, in place of the one that they have by this name.

    The cloud seals it to the key of each device. It keeps nothing that it can read itself of single devices, and files
    of groups encrypted with its own key. A device's own file goes before those of its groups, of which the newest
    counts. Devices ask once a minute; their task reads the file with ctx.exclusive. This needs the role releaser in the
    task's scenario.
    """
    devices = _either(device, rule, app_version)
    scenario, task_name = _parts(task)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from error

    if len(data) > MAX_EXCLUSIVE_BYTES:
        what = f"{file} has {len(data)} bytes; an exclusive file has {MAX_EXCLUSIVE_BYTES} at most"
        raise typer.BadParameter(what, param_hint="FILE")

    async def work(client: FileClient) -> list[str]:
        if not devices:
            await client.put_exclusive(scenario, task_name, name, data, rule=rule, app_version=app_version)
        return await _each(devices, lambda one: client.put_exclusive(scenario, task_name, name, data, device=one))

    done = call_cloud(FileClient, url, token, work)
    whose = _devices(done) if devices else f"the group {escape(_group(rule, app_version))}"
    what = f"{escape(name)} of {escape(task)}, {len(data)} bytes, is there for {whose}"
    group = {} if devices else {"rule": rule, "app_version": app_version}
    emit({"task": task, "name": name, "devices": done, "size_bytes": len(data), **group}, as_json=as_json, text=what)


def remove(
    task: TaskArgument,
    name: NameArgument,
    url: UrlOption,
    device: DevicesOption = None,
    rule: RuleOption = "",
    app_version: AppVersionOption = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Take a file from devices or a group: they delete it when they ask next.

    A rule is written as `walle device-file list` shows it. This needs the role releaser in the scenario.
    """
    scenario, task_name = _parts(task)
    devices = _either(device, rule, app_version)

    async def work(client: FileClient) -> list[str]:
        if not devices:
            await client.remove_exclusive(scenario, task_name, name, rule=rule, app_version=app_version)
        return await _each(devices, lambda one: client.remove_exclusive(scenario, task_name, name, device=one))

    done = call_cloud(FileClient, url, token, work)
    whose = _devices(done) if devices else f"the group {escape(_group(rule, app_version))}"
    what = f"{escape(name)} of {escape(task)} is removed for {whose}"
    group = {} if devices else {"rule": rule, "app_version": app_version}
    emit({"task": task, "name": name, "devices": done, **group}, as_json=as_json, text=what)


def list_files(
    task: Annotated[str, typer.Argument(metavar="SCENARIO[/TASK]", help="The scenario, or one of its tasks.")],
    url: UrlOption,
    device: Annotated[str, typer.Option("--device", help="Only of this device.")] = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """List which devices and groups have which files, without contents. This needs the role reader in the scenario.

    A file that was sealed to an earlier key of its device (`key`) reaches nobody: put it again.
    """
    scenario, _, task_name = task.partition("/")

    async def work(client: FileClient) -> tuple[list[ExclusiveFileJson], list[GroupFileJson]]:
        found = [file async for file in client.exclusive_files(scenario, task=task_name, device_id=device)]
        return found, [] if device else await client.group_files(scenario, task=task_name)

    found, groups = call_cloud(FileClient, url, token, work)
    if as_json:
        emit_rows([*found, *groups], as_json=True)
        return
    if found or not groups:
        emit_rows([_row(file) for file in found], as_json=False)
    if groups:
        emit_rows([_group_row(file) for file in groups], as_json=False)


async def _each(devices: list[str], act: Callable[[str], Coroutine[Any, Any, None]]) -> list[str]:
    """Do it for each device, and return the devices; an error names those for which it was done before."""
    done: list[str] = []
    for device in dict.fromkeys(devices):
        try:
            await act(device)
        except CloudRefusedError as error:
            if not done:
                raise
            raise WalleError(f"{error}; done before that for: {', '.join(done)}") from error
        done.append(device)
    return done


def _parts(task: str) -> tuple[str, str]:
    scenario, slash, name = task.partition("/")
    if not scenario or not slash or not name:
        raise typer.BadParameter(f"{task!r} is not SCENARIO/TASK, such as shop/ipv", param_hint="SCENARIO/TASK")
    return scenario, name


def _devices(ids: list[str]) -> str:
    return escape(", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else ""))


def _row(file: ExclusiveFileJson) -> dict[str, Any]:
    return {
        "device": file["device_id"],
        "task": file["task"],
        "name": file["name"],
        "sealed bytes": file["size_bytes"],
        "key": file["generation"],
        "put": f"{datetime.fromtimestamp(file['put_s']).astimezone():%Y-%m-%d %H:%M} by {file['put_by']}",
    }


def _group_row(file: GroupFileJson) -> dict[str, Any]:
    return {
        "group": _group(file["policy"].get("rule", ""), file["policy"]["app_version"]),
        "task": file["task"],
        "name": file["name"],
        "bytes": file["size_bytes"],
        "put": f"{datetime.fromtimestamp(file['put_s']).astimezone():%Y-%m-%d %H:%M} by {file['put_by']}",
    }


def _group(rule: str, app_version: str) -> str:
    return " and ".join(filter(None, (rule, app_version and f"app version {app_version}")))


def _either(devices: list[str] | None, rule: str, app_version: str) -> list[str]:
    """Return the devices, empty for a group."""
    if bool(devices) == bool(rule or app_version):
        raise typer.BadParameter(
            "give devices, or a rule or app versions of a group: one of both", param_hint="--device"
        )
    return devices or []


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Give devices and groups exclusive files, list and remove them.", no_args_is_help=True)
    group.command(epilog="Example: walle device-file put shop/ipv gallery.json alice.json --device phone-1")(put)
    group.command("list", epilog="Example: walle device-file list shop/ipv")(list_files)
    group.command(epilog="Example: walle device-file remove shop/ipv gallery.json --device phone-1")(remove)
    app.add_typer(group, name="device-file")
