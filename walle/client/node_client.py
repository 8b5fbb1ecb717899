"""HTTP client of a cloud's nodes (`/v1/cloud/nodes`). Each call returns `walle.cloud.nodes.node_plan.progress`."""

from typing import Any

from walle.client.cloud_client import CloudClient

_PATH = "/v1/cloud/nodes"


class NodeClient(CloudClient):
    async def progress(self) -> dict[str, Any]:
        """Return what is left of drained nodes, and what is still to be started again."""
        found: dict[str, Any] = await self._call("GET", _PATH)
        return found

    async def drain(self, node: str, over_s: float) -> dict[str, Any]:
        """Have everything leave a node, its devices over `over_s` seconds."""
        found: dict[str, Any] = await self._call("POST", f"{_PATH}/drain", {"node": node, "over_s": over_s})
        return found

    async def undrain(self, node: str) -> dict[str, Any]:
        """Let a node have processes again."""
        found: dict[str, Any] = await self._call("POST", f"{_PATH}/undrain", {"node": node})
        return found

    async def restart(self, node: str) -> dict[str, Any]:
        """Start the processes of a node again, of every node if empty."""
        found: dict[str, Any] = await self._call("POST", f"{_PATH}/restart", {"node": node})
        return found
