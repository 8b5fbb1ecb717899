"""Tokens over HTTP: /v1/tokens for admins, /v1/whoami for the owner of any token, /v1/authority for all."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from walle.access.access import ANY_SCENARIO, Identity, Role, parse_role
from walle.access.access_file import AccessFile
from walle.access.audit import Audit, NoAudit
from walle.base.clock import Clock, SystemClock
from walle.cloud.api.releases import check_role, identify

MAX_NAME_CHARS = 100
_DAY_S = 86_400.0

type Authorization = Annotated[str, Header()]


class TokenBody(BaseModel):
    """A token to make."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="its owner: a person, or a program such as ci", min_length=1, max_length=100)
    roles: dict[str, str] = Field(
        description="scenario, GROUP/* or * → metrics, reader, author, releaser or admin", min_length=1, max_length=1000
    )
    branches: dict[str, list[str]] = Field(
        default={}, description="by the same → patterns of the branches that an author may push; all if not given"
    )
    days: float | None = Field(default=90.0, description="until it expires; null: never", gt=0, le=36_500)


def token_router(access: AccessFile, ca_pem: str, clock: Clock | None = None, audit: Audit | None = None) -> APIRouter:
    """Return /v1/tokens, /v1/whoami and /v1/authority, which shows `ca_pem`."""
    router = APIRouter(prefix="/v1", tags=["tokens"])
    time = clock or SystemClock()
    log = audit or NoAudit()

    def admin(authorization: str) -> Identity:
        identity = identify(access, authorization)
        check_role(identity, ANY_SCENARIO, Role.ADMIN)
        return identity

    @router.get("/authority", response_class=PlainTextResponse)
    async def authority() -> PlainTextResponse:
        """Show the certificate of the cloud's authority, in PEM; `walle login` compares its fingerprint."""
        return PlainTextResponse(ca_pem, media_type="application/x-pem-file")

    @router.get("/whoami")
    async def whoami(authorization: Authorization = "") -> dict[str, Any]:
        """Show the name, roles and expiry of the token that asks."""
        return _plain(identify(access, authorization))

    @router.get("/tokens")
    async def list_tokens(authorization: Authorization = "") -> list[dict[str, Any]]:
        """List the tokens, by name, without their secrets; this needs the role `admin`."""
        admin(authorization)
        used_s = access.last_uses_s()
        found = sorted(access.identities(), key=lambda one: one.name)
        return [{**_plain(one), "used_s": used_s.get(one.name)} for one in found]

    @router.post("/tokens", status_code=201)
    async def add_token(body: TokenBody, response: Response, authorization: Authorization = "") -> dict[str, Any]:
        """Make a token; this needs the role `admin`. `token` of the answer is shown this once: only a hash is kept."""
        identity = admin(authorization)
        roles = {scenario: parse_role(text) for scenario, text in body.roles.items()}
        branches = {scenario: tuple(patterns) for scenario, patterns in body.branches.items()}
        expires_s = None if body.days is None else time.time() + body.days * _DAY_S
        details = {"roles": body.roles, "branches": body.branches, "days": body.days}
        await log.record("token.add", who=identity.name, subject=body.name, details=details)
        token = await asyncio.to_thread(
            access.add, body.name, roles, branches=branches, expires_s=expires_s, made_by=identity.name
        )
        response.headers["Cache-Control"] = "no-store"
        return {"name": body.name, "token": token, "expires_s": expires_s}

    @router.delete("/tokens/{name:path}", status_code=204)
    async def revoke_token(name: str, authorization: Authorization = "") -> None:
        """Revoke a token; this needs the role `admin`. Every gateway refuses it within 5 s."""
        who = admin(authorization).name
        await asyncio.to_thread(access.check_revocable, name)  # what cannot be done leaves no record
        await log.record("token.revoke", who=who, subject=name, must=False)
        await asyncio.to_thread(access.revoke, name)

    return router


def _plain(identity: Identity) -> dict[str, Any]:
    return {
        "name": identity.name,
        "roles": {scenario: str(role) for scenario, role in identity.roles.items()},
        "branches": {scenario: list(patterns) for scenario, patterns in identity.branches.items()},
        "expires_s": identity.expires_s,
        "made_s": identity.made_s,
        "made_by": identity.made_by,
    }
