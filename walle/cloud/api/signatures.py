"""Routes with which authors sign versions: the manifest that the cloud built, and signatures of it."""

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Header
from pydantic import BaseModel, ConfigDict, Field

from walle.access.access import Identifier, Identity, Role
from walle.access.audit import Audit, NoAudit
from walle.cloud.api.releases import check_role, identify
from walle.deploy.releases.signatures import SigningState
from walle.protocol import ProtocolError


class SignedVersions(Protocol):
    """Methods of `walle.deploy.releases.service.ReleaseService` that the routes call."""

    async def signing(self, scenario: str, task: str, version: str) -> SigningState: ...
    async def add_signatures(
        self, scenario: str, task: str, version: str, signatures: Mapping[str, bytes]
    ) -> SigningState: ...
    async def sign_again(self, scenario: str, task: str, version: str) -> list[str]: ...


class SignaturesBody(BaseModel):
    """Signatures of a version's manifest."""

    model_config = ConfigDict(extra="forbid")

    signatures: dict[str, Annotated[str, Field(max_length=200)]] = Field(
        max_length=16, description="key id to Ed25519 signature in base64"
    )
    again: bool = Field(
        default=False,
        description="releases that devices may get continue with it, instead of a revoked key's signature",
    )


def signature_router(versions: SignedVersions, access: Identifier, audit: Audit | None = None) -> APIRouter:
    """Return the routes below /v1/versions."""
    log = audit or NoAudit()
    router = APIRouter(prefix="/v1/versions/{scenario}/{task}/{version}", tags=["releases"])

    @router.get("/manifest")
    async def manifest(
        scenario: str, task: str, version: str, authorization: Annotated[str, Header()] = ""
    ) -> dict[str, Any]:
        """Return the manifest of a version as this cloud built it, and the keys that sign its scenario."""
        check_role(identify(access, authorization), scenario, Role.READER)
        return _shown(await versions.signing(scenario, task, version))

    def author(scenario: str, authorization: Annotated[str, Header()] = "") -> Identity:
        """Check the role: as a dependency before the body, of which who lacks it learns nothing."""
        identity = identify(access, authorization)
        check_role(identity, scenario, Role.AUTHOR)
        return identity

    @router.post("/signatures")
    async def add(
        scenario: str, task: str, version: str, body: SignaturesBody, identity: Annotated[Identity, Depends(author)]
    ) -> dict[str, Any]:
        """Keep signatures of a version's manifest; a release that waits for them continues.

        With `again`, `releases` of the answer are those that devices may get and that have new signatures now.
        """
        try:
            signatures = {name: base64.b64decode(text, validate=True) for name, text in body.signatures.items()}
        except (ValueError, binascii.Error) as error:
            raise ProtocolError("signatures", f"not base64 ({error})") from error
        # What does not count is refused below, and leaves no record: an author could fill the log with it.
        if (await versions.signing(scenario, task, version)).is_news(signatures):
            details = {"version": version, "keys": sorted(signatures)}
            await log.record("version.sign", who=identity.name, subject=f"{scenario}/{task}", details=details)
        state = await versions.add_signatures(scenario, task, version, signatures)
        is_enough = body.again and len(state.signed_by) >= state.threshold
        changed = await versions.sign_again(scenario, task, version) if is_enough else []
        if changed:  # what does not change a release leaves no record, as above
            details = {"version": version, "releases": changed}
            await log.record("version.sign_again", who=identity.name, subject=f"{scenario}/{task}", details=details)
        return _shown(state) | {"releases": changed}

    return router


def _shown(state: SigningState) -> dict[str, Any]:
    return {
        "payload": base64.b64encode(state.payload).decode(),
        "threshold": state.threshold,
        "keys": {name: key.hex() for name, key in sorted(state.keys.items())},
        "signed_by": sorted(state.signed_by),
    }
