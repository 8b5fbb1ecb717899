"""Identities over HTTP: what a device asks to get a certificate and a session, and what an administrator decides."""

import base64
import binascii
import json
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from walle.access.access import ANY_SCENARIO, Identifier, Identity, Role
from walle.access.audit import Audit, NoAudit
from walle.access.identity.interface import Identities
from walle.access.identity.store import MAX_LIFE_S, MAX_PAGE, MAX_USES
from walle.cloud.api.releases import check_role, identify
from walle.protocol import MAX_ID_CHARS, ProtocolError

_MAX_BODY_BYTES = 16 << 10


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]


class TokenBody(_Body):
    """An enrolment token to make, of one device, or of `uses` new ones."""

    device_id: Annotated[str, Field(max_length=MAX_ID_CHARS)] = ""
    uses: Annotated[int, Field(ge=1, le=MAX_USES)] = 1
    life_s: Annotated[float, Field(gt=0, le=MAX_LIFE_S)]


class CertificateBody(_Body):
    """A certificate signing request, with a token unless the key is the device's already."""

    device_id: Id
    request: str
    token: Annotated[str, Field(max_length=200)] = ""


class SessionBody(_Body):
    """A challenge, and its signature by the device's key in base64: ECDSA with SHA-256 of `session_proof`."""

    device_id: Id
    challenge: Annotated[str, Field(max_length=300)]
    signature: Annotated[str, Field(max_length=300)]


class RevokeBody(_Body):
    device_id: Id
    reason: Annotated[str, Field(max_length=1000)] = ""


def identity_router(identities: Identities, access: Identifier, audit: Audit | None = None) -> APIRouter:
    """Return /v1/identity: certificates and sessions for devices, tokens and revocation for administrators."""
    router = APIRouter(prefix="/v1/identity", tags=["identity of devices"])

    log = audit or NoAudit()

    def admin(authorization: str) -> Identity:
        identity = identify(access, authorization)
        check_role(identity, ANY_SCENARIO, Role.ADMIN)
        return identity

    @router.post("/certificate")
    async def certify(request: Request) -> dict[str, Any]:
        """Issue a certificate for the key of a `CertificateBody`: at enrolment with a token, later without.

        An id is bound to its key. Another key needs a token for this id, and revokes the one before.
        """
        body = await _parsed(request, CertificateBody)
        issued = await identities.certify(body.device_id, body.request, body.token)
        if issued.is_enrolment:
            # Afterwards, in contrast to what people do: before, nobody knows whether the token is one, and strangers
            # could fill the log. There are as many records as the tokens of administrators admit devices.
            details = {"key": issued.generation}
            await log.record("device.enrol", who="enrolment token", subject=body.device_id, details=details, must=False)
        return {"certificate": issued.certificate, "life_s": issued.life_s}

    @router.post("/challenge")
    async def challenge() -> dict[str, str]:
        """Give a text that a device signs within a minute, to prove its key."""
        return {"challenge": await identities.challenge()}

    @router.post("/session")
    async def session(request: Request) -> dict[str, Any]:
        """Give a session token, for X-Walle-Device, to a device that proves its key with a `SessionBody`."""
        body = await _parsed(request, SessionBody)
        try:
            signature = base64.b64decode(body.signature, validate=True)
        except (binascii.Error, ValueError):
            raise ProtocolError("signature", "is not base64") from None
        given = await identities.session(body.device_id, body.challenge, signature)
        return {"token": given.token, "life_s": given.life_s, "certificate_left_s": given.certificate_left_s}

    @router.post("/tokens", status_code=201)
    async def make_token(body: TokenBody, authorization: Annotated[str, Header()] = "") -> dict[str, str]:
        """Make an enrolment token. This needs the role `admin`."""
        who = admin(authorization).name
        details = {"uses": body.uses, "life_s": body.life_s}
        await log.record("device.enrolment_token", who=who, subject=body.device_id, details=details)
        return {"token": await identities.make_token(body.device_id, body.uses, body.life_s)}

    @router.post("/revoke")
    async def revoke(body: RevokeBody, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Revoke the key of a device: gateways and tunnels refuse it within 5 s. It keeps its installed tasks."""
        who = admin(authorization).name
        await log.record("device.revoke", who=who, subject=body.device_id, details={"reason": body.reason}, must=False)
        return (await identities.revoke(body.device_id, body.reason)).to_plain()

    @router.get("/devices")
    async def devices(
        *,
        after: Annotated[str, Query(max_length=MAX_ID_CHARS)] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        search: Annotated[str, Query(max_length=MAX_ID_CHARS, description="a part of the device's id")] = "",
        authorization: Annotated[str, Header()] = "",
    ) -> dict[str, Any]:
        """List enrolled devices by id: state, end of the certificate, when they were last seen."""
        admin(authorization)
        found = await identities.records(after, limit, search)
        return {"devices": [record.to_plain() for record in found]}

    return router


async def _parsed[B: _Body](request: Request, kind: type[B]) -> B:
    """Return the body, of which no more is read than a device needs: anyone may send it."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MAX_BODY_BYTES:
            raise ProtocolError("body", f"is larger than {_MAX_BODY_BYTES} bytes")
    try:
        return kind.model_validate(json.loads(data))
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise ProtocolError(".".join(["body", *map(str, first["loc"])]), first["msg"]) from None
    except (ValueError, RecursionError) as error:
        raise ProtocolError("body", f"is not JSON ({error})") from error
