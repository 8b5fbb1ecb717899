"""HTTP client for who runs a cloud: tokens, groups of scenarios, devices, features, and nodes."""

import json
import urllib.parse
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, NotRequired, TypedDict

from walle.client.cloud_client import CloudClient, CloudRefusedError, CutAnswerError


class TokenJson(TypedDict):
    """A token, without its secret. Times are in seconds since the epoch."""

    name: str
    roles: dict[str, str]
    branches: dict[str, list[str]]
    expires_s: float | None
    made_s: float | None
    made_by: str
    used_s: NotRequired[float | None]  # absent in the answer of `whoami`


class NewTokenJson(TypedDict):
    """A token that was made. `token` is the secret, which the cloud does not keep."""

    name: str
    token: str
    expires_s: float | None


class GroupedJson(TypedDict):
    """A scenario with its group, "" for none, and the role of who asks in it."""

    group: str
    scenario: str
    role: str


class MovedJson(TypedDict):
    """A scenario that was put into a group. `was` is the one of before, "" for none."""

    group: str
    scenario: str
    was: str


class IdentityJson(TypedDict):
    """An enrolled device: see `walle.access.identity.store.IdentityRecord`."""

    device_id: str
    generation: int
    enrolled_s: float
    expires_s: float
    seen_s: float
    revoked_s: float | None
    reason: str


class DeviceTaskJson(TypedDict):
    """A task of a device: see `walle.deploy.fleet.registry.DeviceTask`."""

    task: str
    active: str
    version: str
    state: str
    release: str
    reported_s: float | None
    ok: int
    failed: int


class DeviceJson(TypedDict):
    """A device that the cloud has heard of. Times are in seconds since the epoch.

    `key` is "enrolled", "revoked" or "" for none.
    """

    device_id: str
    app_version: str
    attributes: dict[str, Any]
    first_seen_s: float
    last_seen_s: float
    reported_s: float | None
    tasks: list[DeviceTaskJson]
    key: str
    certificate_until_s: float | None


class DevicePageJson(TypedDict):
    """A page of devices: `after` is for the next one, "" at the end; `total` counts those of all pages.

    Where `is_full`, the cloud had to forget devices: there are more than it lists.
    """

    devices: list[DeviceJson]
    after: str
    total: int
    unlisted: int
    is_full: NotRequired[bool]  # a cloud of before does not say


class DeviceFailureJson(TypedDict):
    """A failure that a device reported, `count` times in one report."""

    number: int
    at_s: float
    task: str
    version: str
    release: str
    kind: str
    error_type: str
    error: str
    place: str
    traceback: str
    log: str
    count: int


class ClientPage(NamedTuple):
    """Features as the cloud shows them; the next page is after `after`, the newest upload at `head`.

    `head` is below `after` if the store of uploads went back in time.
    """

    rows: list[dict[str, Any]]
    after: int
    head: int
    more: bool


class AdminClient(CloudClient):
    """Access, devices, features and nodes of one cloud, within `async with`; errors as there.

    Devices, features and the state need the role `reader`, all others but `whoami` and `groups` the role `admin`.
    """

    # --- tokens (`/v1/tokens`, `/v1/whoami`) and groups of scenarios (`/v1/groups`) -----------------------------------

    async def whoami(self) -> TokenJson:
        """Return the token that asks."""
        found: TokenJson = await self.call("GET", "/v1/whoami")
        return found

    async def tokens(self) -> list[TokenJson]:
        """Return the tokens, by name."""
        found: list[TokenJson] = await self.call("GET", "/v1/tokens")
        return found

    async def add_token(
        self,
        name: str,
        roles: Mapping[str, str],
        *,
        branches: Mapping[str, Sequence[str]] | None = None,
        days: float | None = None,
    ) -> NewTokenJson:
        """Make a token; `days` None: it does not expire."""
        kept = {scenario: list(patterns) for scenario, patterns in (branches or {}).items()}
        body = {"name": name, "roles": dict(roles), "branches": kept, "days": days}
        made: NewTokenJson = await self.call("POST", "/v1/tokens", body)
        return made

    async def revoke_token(self, name: str) -> None:
        """Revoke a token; every gateway refuses it within 5 s."""
        await self.call("DELETE", _path("/v1/tokens", name))

    async def groups(self) -> list[GroupedJson]:
        """Return the scenarios that the token may read, by group."""
        found: list[GroupedJson] = await self.call("GET", "/v1/groups")
        return found

    async def add_to_group(self, group: str, scenario: str) -> MovedJson:
        """Put a scenario into a group, out of the one that it is in."""
        moved: MovedJson = await self.call("PUT", _path("/v1/groups", group, scenario))
        return moved

    async def remove_from_group(self, group: str, scenario: str) -> None:
        """Take a scenario out of a group."""
        await self.call("DELETE", _path("/v1/groups", group, scenario))

    # --- identities of devices (`/v1/identity`) -----------------------------------------------------------------------

    async def make_enrolment_token(self, device_id: str, *, uses: int, life_s: float) -> str:
        """Return an enrolment token for one device, or for `uses` new ones if `device_id` is empty."""
        body = {"device_id": device_id, "uses": uses, "life_s": life_s}
        token: str = (await self.call("POST", "/v1/identity/tokens", body))["token"]
        return token

    async def revoke_device(self, device_id: str, reason: str) -> IdentityJson:
        """Revoke the key of a device."""
        body = {"device_id": device_id, "reason": reason}
        revoked: IdentityJson = await self.call("POST", "/v1/identity/revoke", body)
        return revoked

    async def enrolled_devices(self, *, after: str = "", limit: int = 100, search: str = "") -> list[IdentityJson]:
        """Return enrolled devices in the order of their ids, after the id `after`."""
        parameters: dict[str, str | int] = {"after": after, "limit": limit, "search": search}
        found: list[IdentityJson] = (await self.call("GET", "/v1/identity/devices", parameters=parameters))["devices"]
        return found

    # --- devices that the cloud has heard of (`/v1/devices`, `/v1/device-log`), and their features --------------------

    async def devices(self, **query: str | float) -> DevicePageJson:
        """Return one page of devices; `query` are the parameters of GET /v1/devices."""
        page: DevicePageJson = await self.call("GET", "/v1/devices", parameters=query)
        return page

    async def device(self, device_id: str) -> DeviceJson:
        """Return one device with its tasks."""
        device: DeviceJson = await self.call("GET", _path("/v1/devices", device_id))
        return device

    async def device_failures(
        self, device_id: str, *, task: str = "", before: int = 0, limit: int = 100
    ) -> list[DeviceFailureJson]:
        """Return failures that the device reported, newest first: those of numbers below `before`, 0 for all."""
        parameters: dict[str, str | int] = {"task": task, "before": before, "limit": limit}
        found: list[DeviceFailureJson] = (
            await self.call("GET", _path("/v1/device-log", device_id), parameters=parameters)
        )["failures"]
        return found

    async def features(self, query: Mapping[str, str | int]) -> ClientPage:
        """Return a page of features in the order of receipt; `query` are the parameters of GET /v1/features.

        Raises:
            CutAnswerError: the answer ended early.
        """
        answer = await self.send("GET", "/v1/features", parameters=query)
        try:
            lines: list[dict[str, Any]] = [json.loads(line) for line in answer.body.splitlines()]
        except ValueError as error:
            what = f"{self.url} is not a Walle cloud: its answer is not JSON lines"
            raise CloudRefusedError(HTTPStatus.OK, what) from error
        end = lines.pop() if lines else {}
        if not isinstance(end, dict) or not {"after", "head", "more"} <= end.keys():
            raise CutAnswerError(self.url)
        return ClientPage(lines, end["after"], end["head"], end["more"])

    # --- state and nodes (`/v1/cloud`): those of nodes return `walle.cloud.nodes.node_plan.progress` ------------------

    async def status(self) -> dict[str, Any]:
        """Return the cloud's nodes, processes, leases and lag: see `walle.cloud.telemetry.status.CloudStatus.read`."""
        found: dict[str, Any] = await self.call("GET", "/v1/cloud")
        return found

    async def progress(self) -> dict[str, Any]:
        """Return what is left of drained nodes, and what is still to be started again."""
        found: dict[str, Any] = await self.call("GET", "/v1/cloud/nodes")
        return found

    async def drain(self, node: str, over_s: float) -> dict[str, Any]:
        """Have everything leave a node, its devices over `over_s` seconds."""
        found: dict[str, Any] = await self.call("POST", "/v1/cloud/nodes/drain", {"node": node, "over_s": over_s})
        return found

    async def undrain(self, node: str) -> dict[str, Any]:
        """Let a node have processes again."""
        found: dict[str, Any] = await self.call("POST", "/v1/cloud/nodes/undrain", {"node": node})
        return found

    async def restart(self, node: str) -> dict[str, Any]:
        """Start the processes of a node again, of every node if empty."""
        found: dict[str, Any] = await self.call("POST", "/v1/cloud/nodes/restart", {"node": node})
        return found


def _path(place: str, *parts: str) -> str:
    return "/".join((place, *(urllib.parse.quote(part, safe="") for part in parts)))
