"""The audit log over HTTP, for admins: /v1/audit, /v1/audit/head, /v1/audit/verify."""

import asyncio
import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query

from walle.access.access import ANY_SCENARIO, Identifier, Role
from walle.access.audit import THREADS, AuditStore
from walle.cloud.api.releases import check_role, identify

MAX_PAGE = 1000


def audit_router(audit: AuditStore, access: Identifier) -> APIRouter:
    """Return the routes of the audit log."""
    router = APIRouter(prefix="/v1/audit", tags=["audit"])
    verifying = asyncio.Semaphore(1)  # each reads the whole log

    @router.get("")
    async def records(
        after: Annotated[int, Query(description="records of numbers above this one", ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        authorization: Annotated[str, Header()] = "",
    ) -> dict[str, Any]:
        """List records, oldest first: number, time, action, who, subject, address, details, and their hashes."""
        check_role(identify(access, authorization), ANY_SCENARIO, Role.ADMIN)
        found = await THREADS.run(audit.records, after=after, limit=limit)
        return {"records": [record.to_plain() for record in found]}

    @router.get("/head")
    async def head(authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Return the number and hash of the last record, signed; keep it elsewhere, and verify the log against it."""
        check_role(identify(access, authorization), ANY_SCENARIO, Role.ADMIN)
        return dataclasses.asdict(await THREADS.run(audit.head))

    @router.get("/verify")
    async def verified(authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Check the whole chain and the head beside it. A stolen cloud may lie here: verify a copy too."""
        check_role(identify(access, authorization), ANY_SCENARIO, Role.ADMIN)
        async with verifying:
            found = await THREADS.run(audit.verified)
        return {"ok": found.ok, **dataclasses.asdict(found)}

    return router
