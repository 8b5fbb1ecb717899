"""Kinds of actors that run on each node of a cloud, and how one is started there."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from walle.actors.edge import EdgeActor
from walle.actors.placement import taking
from walle.actors.process import spawn_in_place
from walle.actors.service import Place, ServiceActor
from walle.actors.tunnel import TunnelActor
from walle.cloud import CloudConfig
from walle.cloud.folder.config import parse_labels
from walle.cloud.nodes.node_plan import NodeKind


@dataclasses.dataclass(frozen=True)
class MemberKind:
    """A kind of actor of which `count` run on each live node with the `labels` that is not drained.

    `actor(config, place, *arguments)` makes one, with the `options` of Ray. Its `start` is awaited before the next is
    started. Its method `address()` says where it serves, and `drain(over_s)` returns once nothing depends on it any
    more; then its process ends. When the cloud is restarted, another is started beside it first: they have different
    names, and share the node's folder (`Place.node_folder`), where one may take its predecessor's sockets over.
    """

    name: str
    actor: type[ServiceActor]
    count: int
    arguments: tuple[Any, ...] = ()
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def rule(self) -> NodeKind:
        """The kind as `walle.cloud.nodes.node_plan` knows it."""
        return NodeKind(self.name, self.count, self.labels)

    async def spawn(self, config: CloudConfig, place: Place, node: str, name: str) -> Any:
        """Return an actor of this kind on the node, to be started. It outlives who spawned it."""
        return await spawn_in_place(
            self.actor,
            config,
            place,
            *self.arguments,
            name=name,
            namespace=place.namespace,
            lifetime="detached",
            max_restarts=-1,
            **self.options,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
        )


def member_kinds(config: CloudConfig) -> tuple[MemberKind, ...]:
    """Return the kinds that a cloud has on its nodes."""
    kinds = []
    if config.gateways:
        labels = parse_labels(config.gateway_labels)
        kinds.append(
            MemberKind("edge", EdgeActor, config.gateways, labels=labels, options=taking(config.gateway_resources))
        )
    if config.tunnel_servers:
        labels = parse_labels(config.tunnel_server_labels)
        options = taking(config.tunnel_server_resources)
        kinds.append(MemberKind("tunnel", TunnelActor, config.tunnel_servers, labels=labels, options=options))
    return tuple(kinds)
