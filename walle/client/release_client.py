"""HTTP client of releases (`/v1/releases`, DESIGN section 3) and of the signatures of versions (`/v1/versions`)."""

import asyncio
import base64
import contextlib
import json
import urllib.parse
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NotRequired, TypedDict, Unpack

from walle.client.cloud_client import CloudClient, CloudClientError, CloudRefusedError, CloudUnreachableError

_PATH = "/v1/releases"
_PAGE = 1_000  # releases in an answer
_SILENCE_S = 60.0  # the cloud sends a ping every 15 s
_RECONNECT_S = 0.5
_RECONNECTS = 20  # attempts in a row
_UNKNOWN_FIELD = "Extra inputs are not permitted"  # answer of a cloud that does not know a field of a body


class PolicyJson(TypedDict):
    """Policy of a release: what is given holds for each of its devices. The cloud adds the types of the attributes."""

    app_version: NotRequired[str]
    rule: NotRequired[str]
    devices: NotRequired[list[str]]
    columns: NotRequired[dict[str, str]]


class RequestFields(TypedDict, total=False):
    """Fields of a release's request that may be given, of `walle.deploy.releases.request.ReleaseRequest`."""

    policy: PolicyJson
    beta: int | Sequence[str]
    steps: Sequence[float]
    gate: Mapping[str, Any]


class RequestJson(RequestFields):
    """A release request, as the cloud shows it: with each field."""

    scenario: str
    task: str
    version: str


class TransitionJson(TypedDict):
    """One line of a release's history."""

    at_s: float
    event: str
    state: str
    details: dict[str, Any]


class FailureJson(TypedDict):
    """A distinct failure of a release: counts and times, and texts of the latest report of it."""

    kind: str
    error_type: str
    error: str
    place: str
    traceback: str
    log: str
    device_id: str
    count: int
    devices: int
    first_s: float
    last_s: float


class FailuresJson(TypedDict):
    """The distinct failures of a release, and the number of the others."""

    failures: list[FailureJson]
    others: int


class SimulatedGroupJson(TypedDict):
    """Runs of a version's simulation for devices of one app version and system."""

    app_version: str
    os: str
    devices: int
    runs: int
    failures: int
    played: bool


class ReleaseJson(TypedDict):
    """A release, as the cloud shows it. Only `get` gives `history`."""

    id: str
    number: int
    request: RequestJson
    state: str
    stage: str
    step: int
    beta_devices: list[str]
    manifest: str
    retries: NotRequired[str]  # the release that it is another attempt of
    created_by: NotRequired[str]
    variants: NotRequired[list[dict[str, Any]]]  # name, policy and manifest of each; an older cloud sends none
    reads: NotRequired[list[str]]  # topics of other tasks; an older cloud sends none
    groups: NotRequired[list[SimulatedGroupJson]]
    other_groups: NotRequired[int]
    other_names: NotRequired[list[str]]
    resumes: str | None
    reason: str
    totals: dict[str, Any]
    history: NotRequired[list[TransitionJson]]


class TermJson(TypedDict):
    """A term of a policy, and what the device says of it."""

    term: str
    holds: bool
    device: str


class ExplainedReleaseJson(TypedDict):
    """A release of a task as it concerns one device."""

    release: str
    version: str
    stage: str
    kind: str
    terms: list[TermJson]
    applies: bool
    result: str


class ExplainedTaskJson(TypedDict):
    """A task of one device: the versions that it has and should have, "" for none, and its releases in their order."""

    task: str
    has: str
    gets: str
    because: str
    releases: list[ExplainedReleaseJson]


class ExplanationJson(TypedDict):
    """Explanation of what a device gets, by the profile that it sent at `last_seen_s`."""

    device_id: str
    app_version: str
    last_seen_s: float
    tasks: list[ExplainedTaskJson]


class ReachedTermJson(TypedDict):
    """A term of a rule, and how many devices it reaches by itself."""

    term: str
    reached: int


class MetReleaseJson(TypedDict):
    """A release whose devices a policy would share: `goes_first` where a new release would go before it."""

    release: str
    task: str
    version: str
    stage: str
    kind: str
    policy: PolicyJson
    devices: int
    goes_first: bool


class PreviewJson(TypedDict):
    """The reach of a policy among the `seen` devices; there are more where `is_full`, or where `is_partial`.

    An older cloud does not send `is_partial`.
    """

    policy: PolicyJson
    kind: str
    seen: int
    reached: int
    is_full: bool
    is_partial: NotRequired[bool]
    terms: list[ReachedTermJson]
    meets: list[MetReleaseJson]


class SigningJson(TypedDict):
    """A version's manifest (`payload`, base64), the public keys of its scenario (id to hex), and those that signed."""

    payload: str
    threshold: int
    keys: dict[str, str]
    signed_by: list[str]
    releases: NotRequired[list[str]]  # those that go on with new signatures


class OlderCloudError(CloudClientError):
    """A cloud that is of an older version than this client. `url` is its address."""

    def __init__(self, url: str, found: str) -> None:
        super().__init__(f"the cloud at {url} is of an older version than this program: {found}; upgrade the cloud")
        self.url = url


class ReleaseClient(CloudClient):
    """The releases and versions of one cloud, within `async with`; errors as `CloudClient`."""

    async def create(
        self, scenario: str, task: str, version: str, *, start: bool = True, **fields: Unpack[RequestFields]
    ) -> ReleaseJson:
        """Make a release and, with `start`, start it; the cloud chooses what is not given.

        Raises:
            OlderCloudError: the cloud does not know a field, or has not started the release.
        """
        name = {"scenario": scenario, "task": task, "version": version}
        try:
            release: ReleaseJson = await self.call(
                "POST", _PATH, {**name, **fields, **({} if start else {"start": False})}
            )
        except CloudRefusedError as error:
            if error.kind == "RequestError" and _UNKNOWN_FIELD in str(error):
                raise OlderCloudError(self.url, f"it does not know a field of the request ({error})") from error
            raise
        if start and release["state"] == "created":
            raise OlderCloudError(self.url, f"it has made the release {release['id']} and not started it")
        return release

    async def get(self, release_id: str) -> ReleaseJson:
        """Return one release with its history."""
        release: ReleaseJson = await self.call("GET", f"{_PATH}/{release_id}")
        return release

    async def failures(self, release_id: str) -> FailuresJson:
        """Return the distinct failures of a release; this needs the role `reader`."""
        failures: FailuresJson = await self.call("GET", f"{_PATH}/{release_id}/failures")
        return failures

    async def evidence(self, release_id: str) -> dict[str, Any]:
        """Return what the gate has on the step that is judged, empty where none is; this needs the role `reader`.

        A cloud from before there was this answers with an error: then empty too.
        """
        try:
            evidence: dict[str, Any] = await self.call("GET", f"{_PATH}/{release_id}/evidence")
        except CloudRefusedError as error:
            if error.status != 404:
                raise
            return {}
        return evidence

    async def list_all(self, group: str = "") -> list[ReleaseJson]:
        """Return every release, newest first, or those of the scenarios of a group."""
        releases: list[ReleaseJson] = []
        before = 0
        while True:
            parameters: dict[str, str | int] = {"limit": _PAGE, **({"group": group} if group else {})}
            answer = await self.send("GET", _PATH, parameters={**parameters, **({"before": before} if before else {})})
            releases += json.loads(answer.body)
            before = int(answer.headers["X-Walle-Before"])
            if not before:
                return releases

    async def explain(self, device_id: str, task: str = "") -> ExplanationJson:
        """Say why a device gets what it gets, of one task (scenario/task) or of all; this needs the role `reader`."""
        path = f"/v1/explain/{urllib.parse.quote(device_id, safe='')}"
        explanation: ExplanationJson = await self.call("GET", path, parameters={"task": task})
        return explanation

    async def attribute_values(self, attribute: str, task: str, seen_within_s: float) -> dict[str, int]:
        """Return how many devices with the task (scenario/task) have each value of an attribute; needs `reader`."""
        path = f"/v1/device-attributes/{urllib.parse.quote(attribute, safe='')}"
        parameters: dict[str, str | float] = {"task": task, "seen_within_s": seen_within_s}
        counts: list[dict[str, Any]] = await self.call("GET", path, parameters=parameters)
        return {one["value"]: one["devices"] for one in counts}

    async def preview(
        self, scenario: str, task: str, *, rule: str, app_version: str, seen_within_s: float
    ) -> PreviewJson:
        """Say how many devices a policy reaches and which releases it meets; this needs the role `reader`."""
        body = {"scenario": scenario, "task": task, "rule": rule, "app_version": app_version}
        preview: PreviewJson = await self.call("POST", "/v1/preview", {**body, "seen_within_s": seen_within_s})
        return preview

    async def start(self, release_id: str) -> ReleaseJson:
        """Begin with the simulation of a release that was made without a start."""
        return await self._act("start", release_id)

    async def pause(self, release_id: str) -> ReleaseJson:
        """Stop where it is: no further device gets the version."""
        return await self._act("pause", release_id)

    async def resume(self, release_id: str) -> ReleaseJson:
        """Continue a paused release."""
        return await self._act("resume", release_id)

    async def retry(self, release_id: str) -> ReleaseJson:
        """Make and start another attempt of a release that is rolled back or has failed."""
        return await self._act("retry", release_id)

    async def retire(
        self, scenario: str, task: str = "", *, keep_versions: int, dry_run: bool = False
    ) -> list[ReleaseJson]:
        """Give up full releases of which `keep_versions` newer versions took the place, so that their files may go."""
        body = {"scenario": scenario, "task": task, "keep_versions": keep_versions, "dry_run": dry_run}
        releases: list[ReleaseJson] = await self.call("POST", f"{_PATH}/retire", body)
        return releases

    async def rollback(self, release_id: str, reason: str = "") -> ReleaseJson:
        """Take the version back from every device that has it."""
        return await self._act("rollback", release_id, {"reason": reason})

    async def stream(self, release_id: str) -> AsyncIterator[ReleaseJson]:
        """Yield the release now and after each change until it is over; reconnect after a dropped connection."""
        path = f"{_PATH}/{release_id}/stream"
        failures = 0
        while True:
            try:
                async with contextlib.aclosing(self.lines(path, silence_s=_SILENCE_S)) as lines:
                    async for line in lines:
                        if line.startswith("data:"):  # each event of this stream has one data line
                            failures = 0
                            yield json.loads(line.removeprefix("data:"))
            except CloudUnreachableError:
                failures += 1
                if failures > _RECONNECTS:
                    raise
                await asyncio.sleep(_RECONNECT_S)
            else:
                return

    async def _act(self, action: str, release_id: str, body: Mapping[str, Any] | None = None) -> ReleaseJson:
        release: ReleaseJson = await self.call("POST", f"{_PATH}/{release_id}/{action}", body)
        return release

    # --- signatures of versions ---------------------------------------------------------------------------------------

    async def manifest(self, scenario: str, task: str, version: str) -> SigningJson:
        """Return the manifest of a version as the cloud built it."""
        found: SigningJson = await self.call("GET", f"{_version_path(scenario, task, version)}/manifest")
        return found

    async def sign(
        self, scenario: str, task: str, version: str, signatures: Mapping[str, bytes], *, again: bool = False
    ) -> SigningJson:
        """Hand over signatures, key id → bytes; `again` for releases that devices may get already."""
        encoded = {name: base64.b64encode(data).decode() for name, data in signatures.items()}
        body = {"signatures": encoded, "again": again}
        found: SigningJson = await self.call("POST", f"{_version_path(scenario, task, version)}/signatures", body)
        return found


def _version_path(*parts: str) -> str:
    return "/v1/versions/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)
