"""Program behind `walle cloud up`: a cloud that runs until it is told to stop, or that is left running on a cluster."""

import asyncio
import contextlib
import errno
import functools
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from walle.base.waiting import first_of
from walle.cli.cloud.folder_lock import CloudBusyError
from walle.cli.credentials import is_loopback
from walle.cli.join import JOIN_FILE, Join
from walle.cli.output import emit, emit_line, progress_console, working
from walle.errors import WalleError

if TYPE_CHECKING:
    from walle.cloud import CloudConfig, CloudHome, GatewayAddress
    from walle.cloud.http.inherited_sockets import InheritedSockets

type _Running = tuple["CloudHome", "GatewayAddress", Callable[[], Coroutine[Any, Any, object]]]
"""The folder, the address, and `lost()`, which returns when another cloud may have this one's lease."""

_OTHER_PORTS = "choose others with --http-port and --tunnel-port, or 0 to let the system choose"
_JOIN_LIFE_S = 86_400.0
_START_AGAIN_S = 1.0


async def serve_cloud(
    config: "CloudConfig", sockets: "InheritedSockets", *, ray: bool, ray_address: str, as_json: bool
) -> None:
    """Run the cloud until it is told to stop. One whose lease another cloud took is a standby from then on.

    Where its database goes away while it starts, it waits and starts again.
    """
    while True:
        try:
            if not await _serve_once(config, sockets, ray=ray, ray_address=ray_address, as_json=as_json):
                break
        except WalleError as error:
            if not (config.database or config.uploads) or not getattr(error, "may_pass", False):
                raise
            _say_waiting(f"starting again: {error}", as_json=as_json)
            await asyncio.sleep(_START_AGAIN_S)
            continue
        if as_json:
            emit_line({"standby": True})
        else:
            progress_console.print("[yellow]standby[/]: another cloud acts for this one, until it ends")
    if as_json:
        emit_line({"stopped": True})


async def _wait_for_databases(config: "CloudConfig", *, as_json: bool) -> None:
    from walle.cloud.nodes.database_start import wait_for_databases

    await wait_for_databases(config, functools.partial(_say_waiting, as_json=as_json))


def _say_waiting(what: str, *, as_json: bool) -> None:
    if as_json:
        emit_line({"waiting": what})
    else:
        progress_console.print(f"[yellow]database[/]: {escape(what)}", soft_wrap=True)


async def detach_cloud(config: "CloudConfig", ray_address: str, *, as_json: bool) -> None:
    """Start the cloud, unless it runs, and leave it running."""
    from walle.actors.detached import running
    from walle.actors.wiring import ActorCloud, close_ray, start_ray
    from walle.cloud import CloudHome
    from walle.cloud.simulation.isolation import probe_layers

    starting = asyncio.current_task()
    assert starting is not None
    _on_signals(starting.cancel)
    await _wait_for_databases(config, as_json=as_json)
    await asyncio.to_thread(start_ray, ray_address, import_root=Path.cwd())
    try:
        _on_signals(starting.cancel)
        if found := await running(config):
            said = {"running": True, "url": found.url, "tunnel": f"{found.tunnel_host}:{found.tunnel_port}"}
            if as_json:
                emit_line(said)
            else:
                emit(said, as_json=False, text=escape(f"the cloud of this folder runs already: {found.url}"))
            return
        with working("starting the cloud", as_json=as_json):
            cloud = await ActorCloud.start(config, is_detached=True)
        layers = await asyncio.to_thread(probe_layers)
        home = CloudHome(config.folder, database=config.database)
        end_with = f"walle cloud down {config.folder} --address {ray_address}"
        _announce(config, home, cloud.address, layers, as_json=as_json, end_with=end_with)
    finally:
        close_ray()


async def _serve_once(
    config: "CloudConfig", sockets: "InheritedSockets", *, ray: bool, ray_address: str, as_json: bool
) -> bool:
    """Run the cloud until it is told to stop, or has lost its lease; return whether it has lost it."""
    from walle.cloud.http.malloc import keep_what_is_loaded
    from walle.cloud.simulation.isolation import probe_layers

    starting = asyncio.current_task()
    assert starting is not None
    _on_signals(starting.cancel)
    await _wait_for_databases(config, as_json=as_json)
    stopping = asyncio.Event()
    running = _ray_cloud(config, ray_address) if ray else _cloud(config, sockets)
    async with contextlib.AsyncExitStack() as undo:
        with working("starting the cloud", as_json=as_json):
            try:
                home, address, lost = await undo.enter_async_context(running)
            except OSError as error:
                no_host = isinstance(error, socket.gaierror)
                if not no_host and error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
                    raise
                raise CloudBusyError(
                    f"cannot listen on {config.host}, ports {config.http_port} and {config.tunnel_port}"
                    f" ({error.strerror}); "
                    + ("give an address of this machine as --host" if no_host else _OTHER_PORTS)
                ) from error
        _on_signals(stopping.set)  # again, because Ray takes SIGTERM for itself
        layers = await asyncio.to_thread(probe_layers)
        keep_what_is_loaded()
        _announce(config, home, address, layers, as_json=as_json)
        await first_of(stopping.wait(), lost())
        _on_signals(starting.cancel)  # a second one ends it at once: devices find out by themselves
        with working("stopping the cloud", as_json=as_json):
            try:
                await undo.aclose()
            except WalleError as error:  # all is closed; reports that were not journalled are sent again by devices
                if not stopping.is_set() or not getattr(error, "may_pass", False):
                    raise
                _say_waiting(f"stopped while it is away: {error}", as_json=as_json)
    return not stopping.is_set()


def _on_signals(action: Callable[[], object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, action)


@contextlib.asynccontextmanager
async def _cloud(config: "CloudConfig", sockets: "InheritedSockets") -> AsyncIterator[_Running]:
    from walle.cloud import Cloud

    async with Cloud(config, sockets) as cloud:
        yield cloud.home, cloud.address, cloud.lost


@contextlib.asynccontextmanager
async def _ray_cloud(config: "CloudConfig", address: str) -> AsyncIterator[_Running]:
    from walle.actors.wiring import ActorCloud, close_ray, start_ray

    await asyncio.to_thread(start_ray, address, import_root=Path.cwd())
    try:
        cloud = await ActorCloud.start(config, keeps_nodes=bool(address))
        try:
            yield cloud.home, cloud.address, cloud.lost
        finally:
            await cloud.close()
    finally:
        close_ray()


def _announce(
    config: "CloudConfig",
    home: "CloudHome",
    address: "GatewayAddress",
    layers: Mapping[str, int],
    *,
    as_json: bool,
    end_with: str = "Ctrl-C",
) -> None:
    """Write join.json, and say where everything is, and which of the kernel's layers are around task code."""
    from walle.cloud.simulation.isolation import missing_layers

    missing = missing_layers(layers)
    reached_at = config.tunnel_names[0]
    port = address.url.rpartition(":")[2]
    bracketed = f"[{reached_at}]" if ":" in reached_at else reached_at
    token = ""
    if config.join_devices:
        token = home.identities().make_token(uses=config.join_devices, life_s=_JOIN_LIFE_S, purpose=JOIN_FILE)
        home.close()  # the connections to its database, which nothing else here needs
    join = Join(
        url=f"{'https' if config.https else 'http'}://{bracketed}:{port}",
        tunnel_host=reached_at,
        tunnel_port=address.tunnel_port,
        ca_pem=address.ca_pem,
        enrolment_token=token,
        trusted_keys=home.trusted_keys,
    )
    path = config.folder / JOIN_FILE
    join.save(path)  # saved at once: the token before admits nobody any more
    said: dict[str, Any] = {
        "url": join.url,
        "tunnel": f"{bracketed}:{address.tunnel_port}",
        "scenarios": home.repos.scenarios(),
        "admin_token_file": str(config.folder / "admin.token"),
        "join_file": str(path),
        "layers": dict(layers),
        "join_devices": config.join_devices,
        "ca_file": str(home.authority_certificate),
        "ca_fingerprint": join.fingerprint,
        "pid": os.getpid(),
    }
    if not config.https and not is_loopback(config.host):
        what = f"HTTP at {config.host} has no TLS, so that tokens and task files can be read and changed on the way"
        progress_console.print(
            f"[yellow]warning:[/] {escape(what)}; leave --plain-http out, or put a proxy with TLS before it"
        )
    if as_json:
        emit_line(said)
        return
    git = [f"{join.url}/git/{scenario}.git" for scenario in said["scenarios"]]
    lines = [
        "[green]the cloud is up[/]: " + escape(f"{join.url} (dashboard; the API is at /docs), tunnel {said['tunnel']}"),
        *(f"task repository: {escape(one)}" for one in git),
        *_offline_lines(home),
        f"admin token: in {escape(said['admin_token_file'])}",
        f"a device joins with: walle device run DEVICE_FOLDER --join {escape(str(path))}",
        f"[yellow]task code runs without {', '.join(missing)}[/]: only for authors that you trust"
        if missing
        else f"task code runs in VM hosts behind {', '.join(layers)}",
        f"join.json admits {config.join_devices} new devices, for a day; others: walle device enrol",
        f"fingerprint of its self-signed CA: {join.fingerprint}",
        f"{escape(end_with)} stops it",
    ]
    for line in lines:
        emit(said, as_json=False, text=line)


def _offline_lines(home: "CloudHome") -> list[str]:
    """Return a line on the signing keys where they are in the cloud's folder, else none."""
    if not any(home.trust.offline.glob("*.pem")):
        return []
    how = "keep them off this machine in production, and sign versions with walle sign (docs/how-to/sign.md)"
    return [f"signing keys: created in {escape(str(home.trust.offline))}; {how}"]
