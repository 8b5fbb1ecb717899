"""The actors of which a cloud has one each, and its replicas: their names, and how each is started or moved."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from walle.actors.gateway import GatewayActor
from walle.actors.inference import InferenceActor
from walle.actors.placement import beside_driver, of_services
from walle.actors.process import KEEPER, spawn_in_place
from walle.actors.replicas import replica
from walle.actors.service import Place, ServiceActor
from walle.actors.state_services import IdentityActor, MonitorActor, ReleaseActor
from walle.cloud import CloudConfig

SERVICES: dict[str, type[ServiceActor]] = {
    "gateway": GatewayActor,
    "releases": ReleaseActor,
    "monitor": MonitorActor,
    "identities": IdentityActor,
}
_REPLICA = "inference-"


def service_options(config: CloudConfig, place: Place, name: str, *, avoid: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options of one of SERVICES, or of the keeper, which takes no resources.

    On any node with the folder, or beside this process, where that is.
    """
    resources = config.service_resources if name in SERVICES else ()
    options = of_services(config, resources, avoid=avoid) if place.cloud_id else beside_driver(resources)
    return {**options, "name": name, "max_restarts": -1, "namespace": place.namespace}


async def spawn_again(config: CloudConfig, place: Place, name: str, *, avoid: Iterable[str]) -> Any:
    """Return the actor with this name on another node than those to avoid; the one before it was ended.

    It outlives who spawned it, and continues where the one before it was.

    Raises:
        NodeLostError: as `spawn_in_place`.
    """
    if name == KEEPER:
        from walle.actors.nodes import NodesActor  # imported late: NodesActor moves the others by this function

        options = {**service_options(config, place, name, avoid=avoid), "lifetime": "detached"}
        return await spawn_in_place(NodesActor, config, dataclasses.replace(place, is_successor=True), "", **options)
    if name in SERVICES:
        options = {**service_options(config, place, name, avoid=avoid), "lifetime": "detached"}
        return await spawn_in_place(SERVICES[name], config, dataclasses.replace(place, is_successor=True), **options)
    arguments, placed = replica(config, int(name.removeprefix(_REPLICA)), Path(place.sockets), "", avoid=avoid)
    options = {**placed, "name": name, "namespace": place.namespace, "lifetime": "detached"}
    return await spawn_in_place(InferenceActor, *arguments, **options)
