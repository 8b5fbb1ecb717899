"""Nodes of a cloud over HTTP: /v1/cloud/nodes. Who has the role `admin` drains them, and starts processes again."""

from typing import Annotated, Any

from fastapi import APIRouter, Header
from pydantic import BaseModel, ConfigDict, Field

from walle.access.access import ANY_SCENARIO, Identifier, Role
from walle.access.audit import Audit
from walle.cloud.api.interfaces import KeeperPeer
from walle.cloud.api.releases import check_role, identify
from walle.errors import DeployError

type Authorization = Annotated[str, Header()]


class NoKeeperError(DeployError):
    """A cloud without a keeper of nodes. HTTP answers 409."""

    status = 409


class DrainBody(BaseModel):
    """Which node, by the start of its id or its host name; `over_s`: seconds over which its devices leave."""

    model_config = ConfigDict(extra="forbid")

    node: str = Field(min_length=1, max_length=253)
    over_s: float = Field(default=30.0, ge=0, le=3600)


class UndrainBody(BaseModel):
    """Which node, as it was drained."""

    model_config = ConfigDict(extra="forbid")

    node: str = Field(min_length=1, max_length=253)


class RestartBody(BaseModel):
    """The node whose processes start again, those of all if empty."""

    model_config = ConfigDict(extra="forbid")

    node: str = Field(default="", max_length=253)


def node_router(keeper: KeeperPeer | None, access: Identifier, audit: Audit) -> APIRouter:
    """Return the routes of /v1/cloud/nodes. Each answers with `walle.cloud.nodes.node_plan.progress`."""
    router = APIRouter(prefix="/v1/cloud/nodes", tags=["nodes"])

    def admin(authorization: str) -> str:
        identity = identify(access, authorization)
        check_role(identity, ANY_SCENARIO, Role.ADMIN)
        return identity.name

    def present() -> KeeperPeer:
        if keeper is None:
            raise NoKeeperError("this cloud has no keeper of nodes: it was not started with --ray and --address")
        return keeper

    @router.get("")
    async def show(authorization: Authorization = "") -> dict[str, Any]:
        """Show what is left of each drained node, and what is still to be started again; this needs `reader` on `*`."""
        check_role(identify(access, authorization), ANY_SCENARIO, Role.READER)
        return await present().progress()

    @router.post("/drain", status_code=202)
    async def drain(body: DrainBody, authorization: Authorization = "") -> dict[str, Any]:
        """Have everything leave a node, and place nothing there; this needs the role `admin` on `*`."""
        who, peer = admin(authorization), present()
        await audit.record("node.drain", who=who, subject=body.node)
        return await peer.drain(body.node, body.over_s)

    @router.post("/undrain", status_code=202)
    async def undrain(body: UndrainBody, authorization: Authorization = "") -> dict[str, Any]:
        """Let a node have processes again; this needs the role `admin` on `*`."""
        who, peer = admin(authorization), present()
        await audit.record("node.undrain", who=who, subject=body.node)
        return await peer.undrain(body.node)

    @router.post("/restart", status_code=202)
    async def restart(body: RestartBody, authorization: Authorization = "") -> dict[str, Any]:
        """Start every process again that runs now, each in turn; this needs the role `admin` on `*`."""
        who, peer = admin(authorization), present()
        await audit.record("node.restart", who=who, subject=body.node or "*")
        return await peer.restart(body.node)

    return router
