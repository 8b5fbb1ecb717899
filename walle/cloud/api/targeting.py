"""Targeting over HTTP: why a device gets what it gets, and how many devices a policy reaches."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, ConfigDict, Field

from walle.access.access import Identifier, Identity, Role
from walle.access.errors import AccessError
from walle.base.clock import Clock, SystemClock
from walle.cloud.api.devices import Scenarios
from walle.cloud.api.preview_pace import PreviewPace, PreviewTurn
from walle.cloud.api.releases import Releases, check_role, identify
from walle.deploy.fleet.registry import KnownDevice, Reach
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule import MAX_RULE_CHARS, unparse
from walle.deploy.policies.uploaded_attributes import UploadedTables
from walle.deploy.releases.explanation import explain
from walle.deploy.releases.release import Release
from walle.deploy.releases.table import ReleaseTable
from walle.protocol import MAX_ID_CHARS, Profile, printable

WEEK_S = 7 * 86_400.0
MAX_MET = 200  # releases that a preview counts, the newest
MAX_TERMS = 50  # terms of a rule that a preview counts


class TargetedDevices(Protocol):
    """Methods of `walle.deploy.monitor.service.MonitorService` that the routes call."""

    async def device(self, device_id: str, scenarios: Scenarios) -> KnownDevice: ...
    async def reach(self, policies: Sequence[Policy], seen_within_s: float) -> Reach: ...


class PreviewBody(BaseModel):
    """A policy to try, for a task of a scenario or for all of its tasks. Ids are not to be guessed: it has none."""

    model_config = ConfigDict(extra="forbid")

    scenario: str
    task: str = Field(default="", description="count the releases of this task only")
    app_version: str = Field(default="", description="PEP 440 range such as '>=10,<11'")
    rule: str = Field(default="", max_length=MAX_RULE_CHARS, description="CEL over declared attributes")
    seen_within_s: float = Field(default=WEEK_S, gt=0, le=1e9, description="of devices seen in these last seconds")


class Targeting:
    """Explanations and previews for a caller: for the routes of the API and for the pages of the dashboard.

    `table` and `uploaded` return the release table and the uploaded attributes by which this gateway answers.
    """

    def __init__(
        self,
        releases: Releases,
        devices: TargetedDevices,
        table: Callable[[], ReleaseTable],
        *,
        uploaded: Callable[[], UploadedTables] = UploadedTables,
        clock: Clock | None = None,
    ) -> None:
        self._releases = releases
        self._devices = devices
        self._table = table
        self._uploaded = uploaded
        self._pace = PreviewPace(clock or SystemClock())

    async def explain(self, identity: Identity, device_id: str, task: str = "") -> dict[str, Any]:
        """Return why a device gets what it gets; see the route /v1/explain. Raises AccessError, UnknownDeviceError."""
        scenarios = identity.readable_scenarios()
        if scenarios is not None and not scenarios:
            raise AccessError(403, f"{identity.name} does not have the role reader in any scenario")
        device = await self._devices.device(device_id, scenarios)
        has = {one.task: one.active for one in device.tasks if one.active}
        profile = Profile(device.device_id, device.app_version, device.attributes, has)
        joined = self._uploaded().explain(profile)
        found = explain(self._table(), joined, await self._releases.all(), scenarios)
        return {
            "device_id": printable(device.device_id),
            "app_version": printable(device.app_version),
            "last_seen_s": device.last_seen_s,
            "tasks": [one.to_plain() for one in found if task in ("", one.task)],
        }

    async def preview(self, identity: Identity, body: PreviewBody) -> dict[str, Any]:
        """Return how many devices a policy reaches; see the route /v1/preview.

        Raises:
            AccessError: the caller may not read the scenario.
            PreviewBusyError: the caller's previews take too much, or too many callers wait.
            RuleError: the rule is refused.
        """
        check_role(identity, body.scenario, Role.READER)
        async with self._pace.turn(identity.name, body.rule) as turn:
            return await self._preview(body, turn)

    async def _preview(self, body: PreviewBody, turn: PreviewTurn) -> dict[str, Any]:
        policy = await self._releases.typed_policy(Policy(body.app_version, body.rule))
        terms = (await asyncio.to_thread(policy.compiled)).terms[:MAX_TERMS] if policy.rule else ()
        alone = [Policy(rule=unparse(term), columns=policy.columns) for term in terms]
        met = [
            release
            for release in await self._releases.all()
            if release.request.scenario == body.scenario
            and body.task in ("", release.request.task)
            and not release.state.terminal
        ][:MAX_MET]
        policies = [policy, *alone, *(release.request.policy for release in met)]
        reach = await self._devices.reach(policies, body.seen_within_s)
        turn.used_s += reach.cpu_s
        shared = reach.shared[1 + len(alone) :]
        return {
            "policy": policy.to_plain(),
            "kind": policy.tier.words,
            "seen": reach.seen,
            "reached": reach.taken[0],
            "is_full": reach.is_full,
            "is_partial": reach.is_partial,
            "terms": [
                {"term": term.rule, "reached": count}
                for term, count in zip(alone, reach.taken[1 : 1 + len(alone)], strict=True)
            ],
            "meets": [_met(release, policy, count) for release, count in zip(met, shared, strict=True) if count],
        }


def targeting_router(targeting: Targeting, access: Identifier) -> APIRouter:
    """Return /v1/explain and /v1/preview, which need the role `reader`."""
    router = APIRouter(tags=["releases"])

    @router.get("/v1/explain/{device_id:path}")
    async def explain_device(
        device_id: str,
        *,
        task: Annotated[str, Query(max_length=MAX_ID_CHARS, description="scenario/task; all if not given")] = "",
        authorization: Annotated[str, Header()] = "",
    ) -> dict[str, Any]:
        """Say why a device gets what it gets: each task, each release of it, each term of its policy.

        It is what the gateway answers to the latest profile that the cloud keeps of the device: of large profiles the
        first attributes. A device of which you may read no task is unknown.
        """
        return await targeting.explain(identify(access, authorization), device_id, task)

    @router.post("/v1/preview")
    async def preview(body: PreviewBody, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Say how many devices a policy reaches, and which releases it meets, before a release is made.

        Counted are the devices that the cloud keeps, at most 100,000: `is_full` says that there are more. A count ends
        after 5 s of CPU time: `is_partial` says that it did, and `seen` how many devices were counted. A token has one
        preview at a time and 10 s of CPU time, of which a fifth of a second comes back each second; then it gets 429.
        `goes_first` says of a release that it meets whether a new release of this policy would go before it.
        """
        return await targeting.preview(identify(access, authorization), body)

    return router


def _met(release: Release, policy: Policy, count: int) -> dict[str, Any]:
    request = release.request
    return {
        "release": release.id,
        "task": request.name,
        "version": request.version,
        "stage": release.stage,
        "kind": request.policy.tier.words,
        "policy": request.policy.to_plain(),
        "devices": count,
        "goes_first": policy.tier >= request.policy.tier,  # a new one is the newest
    }
