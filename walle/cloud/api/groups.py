"""Groups of scenarios over HTTP: /v1/groups. Who has the role `admin` moves scenarios between them."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header

from walle.access.access import ANY_SCENARIO, Role
from walle.access.access_file import AccessFile
from walle.access.audit import Audit, NoAudit
from walle.access.errors import AccessError
from walle.access.scenario_groups import ScenarioGroups
from walle.base.names import NAME_RULE, is_name
from walle.cloud.api.releases import check_role, identify
from walle.deploy.git.repo import RepoError, TaskRepos
from walle.errors import ConfigError

type Authorization = Annotated[str, Header()]


def group_router(repos: TaskRepos, access: AccessFile, audit: Audit | None = None) -> APIRouter:
    """Return the routes of /v1/groups."""
    router = APIRouter(prefix="/v1/groups", tags=["groups"])
    log = audit or NoAudit()

    def admin(authorization: str) -> str:
        identity = identify(access, authorization)
        check_role(identity, ANY_SCENARIO, Role.ADMIN)
        return identity.name

    def check_known(groups: ScenarioGroups) -> None:
        if not groups.is_known:
            raise AccessError(503, "the cloud's file of groups cannot be read; its log and /healthz say why")

    @router.get("")
    async def list_scenarios(authorization: Authorization = "") -> list[dict[str, Any]]:
        """List the scenarios in which the token has the role `reader`, each with its group ("": none) and that role."""
        identity = identify(access, authorization)
        check_known(identity.groups)
        found = [
            {"group": identity.groups.group_of(one), "scenario": one, "role": str(identity.role(one))}
            for one in await asyncio.to_thread(repos.scenarios)
            if identity.role(one) >= Role.READER
        ]
        return sorted(found, key=lambda row: (row["group"], row["scenario"]))

    @router.put("/{group}/{scenario}")
    async def add_scenario(group: str, scenario: str, authorization: Authorization = "") -> dict[str, Any]:
        """Put a scenario into a group, out of the one that it is in (`was` of the answer), in one step.

        Roles for the groups follow in every gateway within a second. This needs the role `admin`.
        """
        who = admin(authorization)
        check_known(access.groups.current())
        if not is_name(group):
            raise ConfigError(f"{group[:80]!r} cannot name a group; a name is {NAME_RULE}")
        if scenario not in await asyncio.to_thread(repos.scenarios):
            raise RepoError(f"scenario {scenario[:80]!r}", "does not exist; the cloud makes it with --scenario")
        await log.record("group.add", who=who, subject=f"{group}/{scenario}")
        was = await asyncio.to_thread(access.groups.put, scenario, group)
        return {"group": group, "scenario": scenario, "was": was}

    @router.delete("/{group}/{scenario}", status_code=204)
    async def remove_scenario(group: str, scenario: str, authorization: Authorization = "") -> None:
        """Take a scenario out of a group; it is in none then. This needs the role `admin`."""
        who = admin(authorization)
        groups = access.groups.current()
        check_known(groups)
        groups.check(scenario, group)  # what cannot be done leaves no record
        await log.record("group.remove", who=who, subject=f"{group}/{scenario}")
        await asyncio.to_thread(access.groups.remove, scenario, group)

    return router
