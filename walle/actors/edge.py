"""Edge gateways, each in a separate process, several on each node."""

import asyncio
import contextlib
import ipaddress
import re
from pathlib import Path

from walle.actors.head import HeadAwayError
from walle.actors.node import NodeLostError, ask, returns_errors
from walle.actors.process import find_soon
from walle.actors.processes import note_address
from walle.actors.service import Place, ServiceActor
from walle.cloud import CloudConfig
from walle.cloud.edge.edge_gateway import EdgeAddress, EdgeGateway
from walle.cloud.edge.reverse_proxy import GatewayAwayError
from walle.cloud.http.malloc import keep_what_is_loaded, map_tls_buffers

_ASK_S = 3.0


class EdgeActor(ServiceActor):
    """Its event loop is Ray's, which is uvloop's where that is installed."""

    def __init__(self, config: CloudConfig, place: Place) -> None:
        map_tls_buffers()
        super().__init__(config, place)
        self._address: EdgeAddress

    async def _open(self) -> EdgeAddress:
        edge = EdgeGateway(self._config, self._find_gateway, self._peer("monitor"))
        self._set_node(edge)
        self._undo.push_async_callback(edge.close)
        self._address = await edge.start(await asyncio.to_thread(lambda: self._place.node_folder))
        await asyncio.to_thread(note_address, Path(self._place.sockets), self._address.watch_url)
        keep_what_is_loaded()
        return self._address

    @returns_errors
    async def address(self) -> EdgeAddress:
        """Return where it serves, once it does."""
        await self._until(self._is_open, "address")
        return self._address

    @returns_errors
    async def drain(self, over_s: float) -> None:
        """Return once no client depends on it, or after `over_s`; at least as long as an idle connection lasts."""
        await self._until(self._is_open, "drain")
        await self._node.drain(max(over_s, self._config.http_limits.idle_s + 1.0))

    async def _find_gateway(self) -> str:
        try:
            async with asyncio.timeout(_ASK_S):
                gateway = await find_soon("gateway", self._place.namespace)
                address, node = await ask(gateway, "address")
        except (NodeLostError, HeadAwayError, TimeoutError) as error:
            raise GatewayAwayError(f"the gateway is being started ({error})") from error
        url = str(address.inner_url)
        return re.sub(r"//.*:", f"//{_bracketed(node)}:", url) if _is_unspecified(self._config.host) else url


def _is_unspecified(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return not host


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
