"""`walle file`: files of single devices, which come to them through /cen."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from walle.cli.credentials import TokenOption, UrlOption, ca_of
from walle.cli.output import JsonFlag, emit, emit_rows
from walle.deploy.cloud_client import CloudAddressError, CloudRefusedError
from walle.deploy.exclusive_client import ExclusiveClient, ExclusiveFileJson
from walle.errors import WalleError
from walle.protocol import MAX_EXCLUSIVE_BYTES

TaskArgument = Annotated[str, typer.Argument(metavar="SCENARIO/TASK", help="The task that reads it.")]
NameArgument = Annotated[str, typer.Argument(help="The file's name under [[exclusive]] in task.toml.")]
DevicesOption = Annotated[list[str], typer.Option("--device", help="The id of a device; once for each.")]


def put(
    task: TaskArgument,
    name: NameArgument,
    file: Annotated[Path, typer.Argument(help="The file whose contents it has.")],
    url: UrlOption,
    device: DevicesOption,
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Give devices a file of their own, in place of the one that they have by this name.

    The cloud seals it to the key of each device and keeps nothing that it can read itself. Devices ask for it once a
    minute; their task reads it with ctx.exclusive. This needs the role releaser in the task's scenario.
    """
    scenario, task_name = _parts(task)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from error

    if len(data) > MAX_EXCLUSIVE_BYTES:
        what = f"{file} has {len(data)} bytes; an exclusive file has {MAX_EXCLUSIVE_BYTES} at most"
        raise typer.BadParameter(what, param_hint="FILE")

    async def work(client: ExclusiveClient) -> list[str]:
        return await _each(device, lambda one: client.put(scenario, task_name, name, one, data))

    done = _run(url, token, work)
    what = f"{escape(name)} of {escape(task)}, {len(data)} bytes, is there for {_devices(done)}"
    emit({"task": task, "name": name, "devices": done, "size_bytes": len(data)}, as_json=as_json, text=what)


def remove(
    task: TaskArgument,
    name: NameArgument,
    url: UrlOption,
    device: DevicesOption,
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Take a file from devices: they delete it when they ask next. This needs the role releaser in the scenario."""
    scenario, task_name = _parts(task)

    async def work(client: ExclusiveClient) -> list[str]:
        return await _each(device, lambda one: client.remove(scenario, task_name, name, one))

    done = _run(url, token, work)
    what = f"{escape(name)} of {escape(task)} is removed for {_devices(done)}"
    emit({"task": task, "name": name, "devices": done}, as_json=as_json, text=what)


def list_files(
    task: Annotated[str, typer.Argument(metavar="SCENARIO[/TASK]", help="The scenario, or one of its tasks.")],
    url: UrlOption,
    device: Annotated[str, typer.Option("--device", help="Only of this device.")] = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """List which devices have which files, without contents. This needs the role reader in the scenario.

    A file that was sealed to an earlier key of its device (`key`) reaches nobody: put it again.
    """
    scenario, _, task_name = task.partition("/")

    async def work(client: ExclusiveClient) -> list[ExclusiveFileJson]:
        return [file async for file in client.files(scenario, task=task_name, device_id=device)]

    found = _run(url, token, work)
    emit_rows(list(found) if as_json else [_row(file) for file in found], as_json=as_json)


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


def _run[T](url: str, token: str, work: Callable[[ExclusiveClient], Coroutine[Any, Any, T]]) -> T:
    """Return what `work` returns for the cloud at `url`."""

    async def within() -> T:
        try:
            client = ExclusiveClient(url, token, ca_pem=ca_of(url))
        except CloudAddressError as error:
            raise typer.BadParameter(str(error), param_hint="--url") from error
        async with client:
            return await work(client)

    return asyncio.run(within())


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


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Give single devices files of their own, list and remove them.", no_args_is_help=True)
    group.command(epilog="Example: walle file put shop/ipv gallery.json alice.json --device phone-1")(put)
    group.command("list", epilog="Example: walle file list shop/ipv")(list_files)
    group.command(epilog="Example: walle file remove shop/ipv gallery.json --device phone-1")(remove)
    app.add_typer(group, name="file")
