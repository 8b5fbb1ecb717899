"""A tunnel server in a separate process, on the node of Ray that it belongs to."""

import asyncio
import contextlib
import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from walle.actors.node import returns_errors
from walle.actors.service import Place, ServiceActor
from walle.base.durable_file import write_file
from walle.cloud import CloudConfig
from walle.cloud.http.malloc import map_tls_buffers
from walle.cloud.nodes.tunnel_node import TunnelNode
from walle.errors import ConfigError
from walle.pipeline.tunnel.server.ring import RingMember

HOST_LABEL = "walle-tunnel-host"
PORT_LABEL = "walle-tunnel-port"


class TunnelActor(ServiceActor):
    """Devices reach it at the node's labels HOST_LABEL and PORT_LABEL; else at the node's IP address, and its port."""

    def __init__(self, config: CloudConfig, place: Place) -> None:
        map_tls_buffers()
        super().__init__(config, place)

    async def _open(self) -> RingMember:
        context = ray.get_runtime_context()
        node_id, name = str(context.get_node_id()), str(context.get_actor_name())
        labels = await asyncio.to_thread(_labels, node_id)
        check_label(labels, self._config.tunnel_servers, node_id)
        node_ip = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        bind, host = _hosts(self._config.host, node_ip, self._config.tunnel_names)
        note = self._place.node_folder / f"{name}.port"
        port = self._config.tunnel_server_port or (await asyncio.to_thread(_noted, note) if self.is_successor() else 0)
        public_port = labels.get(PORT_LABEL, "")
        node = TunnelNode(
            self._config,
            self._peer("gateway"),
            self._peer("identities"),
            name=name,
            node=node_id,
            bind=bind,
            host=labels.get(HOST_LABEL, host),
            port=port,
            public_port=int(public_port) if public_port.isdecimal() else 0,
        )
        member = await node.start()
        self._undo.push_async_callback(node.close)
        await asyncio.to_thread(write_file, note, f"{node.port}\n")  # devices find its successor at the same port
        self._undo.callback(note.unlink, missing_ok=True)
        self._set_node(node)
        return member

    @returns_errors
    async def address(self) -> tuple[str, int]:
        """Return the host and port at which devices reach this server, once it serves."""
        await self._until(self._is_open, "address")
        member: RingMember = self._node.member
        return member.host, member.port

    @returns_errors
    async def drain(self, over_s: float) -> None:
        """Send the devices to the other servers within `over_s` seconds; return once all have left."""
        await self._until(self._is_open, "drain")
        await self._node.drain(over_s)


def check_label(labels: Mapping[str, str], servers: int, node: str) -> None:
    """Check that a node with the label PORT_LABEL has one tunnel server: all of them would tell devices that port.

    Raises:
        ConfigError: it has more.
    """
    if servers > 1 and PORT_LABEL in labels:
        raise ConfigError(
            f"node {node[:12]} has the label {PORT_LABEL}={labels[PORT_LABEL]}, a port at which devices reach one"
            f" tunnel server, and {servers} are to run there (--tunnel-servers): start its Ray without the label, or"
            " give --tunnel-servers 1"
        )


def _labels(node_id: str) -> Mapping[str, str]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return next((one["Labels"] for one in nodes if one["NodeID"] == node_id), {})


def _hosts(host: str, node_ip: str, names: Sequence[str]) -> tuple[str, str]:
    """Return where to listen, and the address of it that devices get: on this machine alone if the gateway is.

    A node at the loopback interface is of a Ray on this machine alone: devices reach it as they reach the gateway.
    """
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_loopback:
            return host, host
        if address.is_unspecified:
            return host, names[0] if _is_loopback(node_ip) else node_ip
    if host == "localhost":
        return "127.0.0.1", "127.0.0.1"
    return (host, host) if _is_loopback(node_ip) else (node_ip, node_ip)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _noted(note: Path) -> int:
    """Return the port that the process before this one had, 0 if it never served."""
    try:
        return int(note.read_text())
    except (OSError, ValueError):
        return 0
