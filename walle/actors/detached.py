"""Clouds of actors that outlive the command that started them: how one is found again, and ended."""

import asyncio
import contextlib
from pathlib import Path

from walle.actors.layout import SERVICES
from walle.actors.node import NodeLostError, ask
from walle.actors.placement import cloud_name
from walle.actors.process import KEEPER, actor_names, end, find
from walle.actors.service import Place
from walle.actors.wiring import close_ray, start_ray
from walle.cloud import CloudConfig, GatewayAddress
from walle.cloud.folder.shared_folder import NOTES, read_cloud_id
from walle.cloud.nodes.node_plan import parse_member
from walle.errors import ConfigError


class NotRunningError(ConfigError):
    """A cloud that is to be ended, and does not run."""


async def running(config: CloudConfig) -> GatewayAddress | None:
    """Return where the cloud of this folder serves on the cluster that was joined, None where none runs."""
    name = await asyncio.to_thread(cloud_name, config)
    with contextlib.suppress(NodeLostError):
        address, _ = await ask(await asyncio.to_thread(find, "gateway", f"walle-{name}"), "address")
        return address  # type: ignore[no-any-return]
    return None


async def stop(folder: Path, address: str) -> list[str]:
    """End every actor of the cloud of this folder on the cluster at `address`, and return their names.

    What they told each other on disk is removed.

    Raises:
        ConfigError: the cluster cannot be joined.
        NotRunningError: it has no actor of this cloud.
    """
    cloud_id = read_cloud_id(folder)
    config = CloudConfig(folder=folder, shared_folder=bool(cloud_id))
    await asyncio.to_thread(start_ray, address)
    try:
        ended = await _end_all(f"walle-{cloud_name(config)}")
    finally:
        close_ray()
    if not ended:
        raise NotRunningError(
            f"{folder}: no cloud of this folder runs on the cluster at {address!r}; walle cloud up starts it"
        )
    if cloud_id:
        await asyncio.to_thread(Place(f"walle-{cloud_id}", str(folder / NOTES), cloud_id).remove_notes)
    return ended


async def _end_all(namespace: str) -> list[str]:
    """End the keeper of nodes first, who would start others again, then those of nodes, then the rest."""
    names = await asyncio.to_thread(actor_names, namespace)
    order = {name: turn for turn, name in enumerate((KEEPER, *SERVICES))}

    def turn(name: str) -> tuple[bool, bool, int, str]:
        return name != KEEPER, parse_member(name) is None, order.get(name, len(order)), name

    for name in sorted(names, key=turn):
        with contextlib.suppress(NodeLostError):
            await end(await asyncio.to_thread(find, name, namespace))
    return sorted(names)
