"""`walle cloud drain`, `restart` and `down`: nodes of a cloud on a Ray cluster."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from walle.cli.cloud_call import call_cloud
from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.output import JsonFlag, emit, progress_console
from walle.client.admin_client import AdminClient
from walle.client.cloud_client import CloudRefusedError, CloudUnreachableError
from walle.errors import ConfigError

_LOOK_S = 0.5
_AWAY_S = 60.0  # time that the gateway may be away, while it is moved or started again
_UNAVAILABLE = 503


class PlanFailedError(ConfigError):
    """Work on the nodes that has not ended in time."""


_Wait = Annotated[
    float, typer.Option("--wait-s", help="Seconds to wait until it is done; 0: do not wait.", min=0, max=86_400)
]


def drain(
    node: Annotated[str, typer.Argument(help="The start of a node's id, or its host name.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let a drained node have processes again.")] = False,
    over_s: Annotated[float, typer.Option(help="Seconds over which its devices move.", min=0, max=3600)] = 30.0,
    wait_s: _Wait = 600.0,
    url: UrlOption = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Have every process of a cloud leave a node, and place none there until --undo.

    The token needs the role admin on `*`.
    """

    async def begin(client: AdminClient) -> dict[str, Any]:
        return await (client.undrain(node) if undo else client.drain(node, over_s))

    what = f"node {node} may have processes again" if undo else f"node {node} has no process of this cloud any more"
    _carry_out(begin, what, url=url, token=token, wait_s=0.0 if undo else wait_s, as_json=as_json)


def restart(
    node: Annotated[str, typer.Option(help="Only the processes of this node: start of its id, or host name.")] = "",
    wait_s: _Wait = 600.0,
    url: UrlOption = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Start every process of a cloud again, one after the other, so that each takes the code that is installed now.

    The token needs the role admin on `*`.
    """

    async def begin(client: AdminClient) -> dict[str, Any]:
        return await client.restart(node)

    _carry_out(begin, "every process was started again", url=url, token=token, wait_s=wait_s, as_json=as_json)


def down(
    folder: Annotated[Path, typer.Argument(help="The cloud's folder.")],
    address: Annotated[str, typer.Option(help="The Ray cluster on which it runs.")],
    as_json: JsonFlag = False,
) -> None:
    """End a cloud that was started with --detach."""
    from walle.actors.detached import stop

    ended = asyncio.run(stop(folder.resolve(), address))
    emit({"ended": ended}, as_json=as_json, text=escape(f"ended: {', '.join(ended)}"))


def _carry_out(
    begin: Callable[[AdminClient], Awaitable[dict[str, Any]]],
    what: str,
    *,
    url: str,
    token: str,
    wait_s: float,
    as_json: bool,
) -> None:
    """Begin the work, and wait for its end."""
    if not url:
        raise ConfigError("give the cloud's address as --url or WALLE_URL")
    until_s = time.monotonic() + wait_s

    async def work(client: AdminClient) -> dict[str, Any]:
        found = await begin(client)
        said = ""
        while found["remaining"] and time.monotonic() < until_s:
            line = f"{found['remaining']} to do: {found['fault'] or found['doing']}"
            if line != said and not as_json:
                progress_console.print(line, markup=False)
            said = line
            await asyncio.sleep(_LOOK_S)
            found = await _progress(client)
        return found

    found = call_cloud(AdminClient, url, token, work)
    if found["remaining"] and wait_s:
        raise PlanFailedError(
            f"{found['remaining']} things are not done after {wait_s:g} s ({found['fault'] or found['doing']});"
            " the cloud continues with them: walle cloud status"
        )
    emit(found, as_json=as_json, text=what if not found["remaining"] else f"begun: {found['remaining']} things to do")


async def _progress(client: AdminClient) -> dict[str, Any]:
    """Return the progress; the gateway, which tells it, may be away for a while."""
    until_s = time.monotonic() + _AWAY_S
    while True:
        try:
            return await client.progress()
        except (CloudUnreachableError, CloudRefusedError) as error:
            is_away = isinstance(error, CloudUnreachableError) or error.status == _UNAVAILABLE
            if not is_away or time.monotonic() > until_s:
                raise
        await asyncio.sleep(_LOOK_S)
