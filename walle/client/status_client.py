"""HTTP client of a cloud's state (`/v1/cloud`)."""

from typing import Any

from walle.client.cloud_client import CloudClient


class StatusClient(CloudClient):
    async def status(self) -> dict[str, Any]:
        """Return the cloud's nodes, processes, leases and lag: see `walle.cloud.telemetry.status.CloudStatus.read`."""
        found: dict[str, Any] = await self._call("GET", "/v1/cloud")
        return found
