"""The deployment platform over HTTP: releases, outcomes, heartbeat, health, metrics and the dashboard.

It depends on two interfaces, `Releases` and `Outcomes`, whose methods are asynchronous and pass plain values or
frozen dataclasses: both the services and handles to them in other processes implement them.
"""

import dataclasses
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from sse_starlette import EventSourceResponse, ServerSentEvent

from walle.access.access import ANY_SCENARIO, Identifier, Identity, Role
from walle.access.access_file import LastAdminError, TokenExistsError, UnknownTokenError
from walle.access.audit import Audit, AuditError, NoAudit
from walle.access.errors import AccessError
from walle.cloud.api.release_bodies import CreateBody, RetireBody, RollbackBody
from walle.cloud.api.release_metrics import alarm_metrics, push_metrics, release_metrics
from walle.deploy.fleet.registry import UnknownDeviceError
from walle.deploy.monitor.failure_groups import FailureGroup
from walle.deploy.monitor.release_evidence import Totals
from walle.deploy.policies.policy import Policy
from walle.deploy.push.answerer import Answerer
from walle.deploy.releases.errors import TaskBusyError, TooManyGroupsError, UnknownReleaseError
from walle.deploy.releases.journal import Transition
from walle.deploy.releases.query import MAX_PAGE, ReleasePage, ReleaseQuery
from walle.deploy.releases.release import Release, ReleaseOverview, ReleaseState, TransitionError
from walle.deploy.releases.request import ReleaseRequest
from walle.errors import ConfigError, DeployError, WalleError
from walle.metrics.table import MAX_RELEASES
from walle.protocol import MAX_ID_CHARS, OutcomeBatch, ProtocolError, printable
from walle.store.disk_space import DiskFullError
from walle.store.errors import StateError

STREAM_TICK_S = 1.0  # interval at which a stream reads new totals
MAX_TEXT_CHARS = 16_000  # limit of a reason, a traceback or a log in an answer


class Releases(Protocol):
    """Methods of `walle.deploy.releases.service.ReleaseService` that the routes call."""

    async def create(self, request: ReleaseRequest, *, by: str = "", start: bool = True) -> Release: ...
    async def typed_policy(self, policy: Policy) -> Policy: ...
    async def get(self, release_id: str) -> Release: ...
    async def all(self) -> tuple[Release, ...]: ...
    async def page(self, query: ReleaseQuery) -> ReleasePage: ...
    async def overview(self, limit: int) -> ReleaseOverview: ...
    async def history(self, release_id: str) -> list[Transition]: ...
    async def beta_found(self, release_ids: Sequence[str]) -> dict[str, int]: ...
    async def start(self, release_id: str) -> Release: ...
    async def pause(self, release_id: str) -> Release: ...
    async def resume(self, release_id: str) -> Release: ...
    async def rollback(self, release_id: str, by: str, reason: str) -> Release: ...
    async def retry(self, release_id: str, by: str = "") -> Release: ...
    async def retire(
        self, scenario: str, task: str, by: str, *, keep_versions: int, dry_run: bool = False
    ) -> list[Release]: ...
    async def wait_change(self, release_id: str, revision: int, timeout_s: float) -> Release: ...


class Outcomes(Protocol):
    """Methods of `walle.deploy.monitor.service.MonitorService` that the routes call."""

    async def take(self, batch: OutcomeBatch) -> int | None: ...
    async def totals(self, release_id: str) -> Totals: ...
    async def totals_of(self, release_ids: Sequence[str]) -> dict[str, Totals]: ...
    async def course(self, release_id: str) -> dict[str, Any]: ...
    async def failures(self, release_id: str) -> tuple[list[FailureGroup], int]: ...
    async def evidence(self, release_id: str) -> dict[str, Any]: ...
    async def alarms(self) -> Mapping[str, int]: ...


class WatchedPart(Protocol):
    """A part of the gateway whose state /healthz and /metrics show."""

    def health(self) -> Mapping[str, Any]:
        """Return the state as JSON, with `ok`."""

    def metrics(self) -> list[Metric]: ...


def identify(access: Identifier, authorization: str) -> Identity:
    """Return the owner of the token in an Authorization header. Raises AccessError."""
    identity = access.identify_header(authorization)
    if identity is None:
        raise AccessError(401, "this needs a valid token: send the header Authorization: Bearer TOKEN")
    return identity


def check_role(identity: Identity, scenario: str, role: Role) -> None:
    """Raise AccessError unless a person has the role in the scenario."""
    if identity.role(scenario) < role:
        raise AccessError(403, f"{identity.name} does not have the role {role} in scenario {scenario[:100]!r}")


class ReleaseAccess:
    """Releases as a caller may see and change them: for the routes of the API and for the pages of the dashboard."""

    def __init__(self, releases: Releases, outcomes: Outcomes, log: Audit) -> None:
        self._releases = releases
        self._outcomes = outcomes
        self._log = log

    async def allowed(self, release_id: str, identity: Identity, role: Role) -> Release:
        """Return a release of a scenario in which the caller has the role.

        Raises:
            UnknownReleaseError: it does not exist, or the caller may not read it.
            AccessError: the caller's role is too low.
        """
        release = await self._releases.get(release_id)
        if identity.role(release.request.scenario) < Role.READER:
            raise UnknownReleaseError(release_id)
        check_role(identity, release.request.scenario, role)
        return release

    async def shown(self, release: Release) -> dict[str, Any]:
        """Return a release with its totals as JSON, whose texts are printable and bounded."""
        found = await self._beta_found([release])
        return _shown(release, await self._outcomes.totals(release.id), found.get(release.id, 0))

    async def all_shown(self, found: Sequence[Release]) -> list[dict[str, Any]]:
        totals = await self._outcomes.totals_of([one.id for one in found])
        beta_found = await self._beta_found(found)
        return [_shown(one, totals[one.id], beta_found.get(one.id, 0)) for one in found]

    async def _beta_found(self, releases: Sequence[Release]) -> Mapping[str, int]:
        waiting = [one.id for one in releases if one.awaits_beta]
        return await self._releases.beta_found(waiting) if waiting else {}

    async def create(self, body: CreateBody, identity: Identity) -> Release:
        """Make a release for a caller with the role `releaser` in its scenario, and start it if the body says so.

        Raises:
            AccessError: the caller's role is too low.
            AuditError: it could not be recorded, and was not done.
            DeployError: as `ReleaseService.create`.
        """
        check_role(identity, body.scenario, Role.RELEASER)
        request = body.to_request()
        details = {"scenario": request.scenario, "version": request.version, "start": body.start}
        await self._log.record("release.create", who=identity.name, subject=request.name, details=details)
        return await self._releases.create(request, by=identity.name, start=body.start)

    async def retire(self, body: RetireBody, identity: Identity) -> list[Release]:
        """Give up old releases for a caller with the role `releaser`. Raises AccessError, AuditError."""
        check_role(identity, body.scenario, Role.RELEASER)
        keep, dry_run = body.keep_versions, body.dry_run
        if not dry_run:
            details = {"task": body.task, "keep_versions": keep}
            await self._log.record("release.retire", who=identity.name, subject=body.scenario, details=details)
        return await self._releases.retire(body.scenario, body.task, identity.name, keep_versions=keep, dry_run=dry_run)

    async def change(self, release_id: str, identity: Identity, verb: str, reason: str = "") -> Release:
        """Start, pause, resume, roll back or retry a release for a caller with the role `releaser`.

        It is in the audit log, under the caller's name, before it is done; `reason` is of a rollback.

        Raises:
            TransitionError: the release's state does not allow it.
            UnknownReleaseError, AccessError: as `allowed`.
            AuditError: it could not be recorded, and was not done.
        """
        release = await self.allowed(release_id, identity, Role.RELEASER)
        await self._log.record(
            f"release.{verb}",
            who=identity.name,
            subject=release.id,
            details={"scenario": release.request.scenario},
            must=verb not in ("pause", "rollback"),
        )
        if verb == "rollback":
            return await self._releases.rollback(release_id, identity.name, reason)
        if verb == "retry":
            return await self._releases.retry(release_id, identity.name)
        methods = {
            "start": self._releases.start,
            "pause": self._releases.pause,
            "resume": self._releases.resume,
        }
        return await methods[verb](release_id)


def _shown(release: Release, totals: Totals, beta_found: int) -> dict[str, Any]:
    reason = release.reason or release.waits_for(beta_found)
    view = {"stage": release.stage, "reason": reason, "totals": totals.to_plain()}
    return safe_map({**release.to_plain(), **view})


def release_router(releases: Releases, outcomes: Outcomes, access: Identifier, audit: Audit | None = None) -> APIRouter:
    """Return the routes of /v1/releases. A release of a scenario that the caller may not read does not exist for them.

    A change is in the audit log before it is made, but for a pause and a rollback, which no full disk hinders.
    Its texts come from the task's author and from devices: each is printable, and at most 16,000 characters.
    """
    router = APIRouter(prefix="/v1/releases", tags=["releases"])
    reached = ReleaseAccess(releases, outcomes, audit or NoAudit())
    _add_creation(router, reached, access)
    _add_list(router, releases, reached, access)
    _add_details(router, releases, outcomes, reached, access)
    _add_changes(router, reached, access)
    _add_stream(router, releases, reached, access)
    return router


def _add_creation(router: APIRouter, reached: ReleaseAccess, access: Identifier) -> None:
    @router.post("", status_code=201)
    async def create(body: CreateBody, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Make a release and start it with the simulation, or leave it to be started later where `start` is false."""
        return await reached.shown(await reached.create(body, identify(access, authorization)))

    @router.post("/retire")
    async def retire(body: RetireBody, authorization: Annotated[str, Header()] = "") -> list[dict[str, Any]]:
        """Give up full releases that `keep_versions` newer versions or more have taken the place of; return them.

        What devices get is unchanged, and no rollback leads to such a release any more: its files may be removed.
        """
        return [await reached.shown(one) for one in await reached.retire(body, identify(access, authorization))]


def _add_list(router: APIRouter, releases: Releases, reached: ReleaseAccess, access: Identifier) -> None:
    @router.get("")
    async def all_releases(
        response: Response,
        *,
        limit: Annotated[int, Query(ge=0, le=MAX_PAGE, description="releases of a page; 0: all of them")] = 0,
        before: Annotated[int, Query(ge=0, lt=1 << 53, description="only with numbers below this one")] = 0,
        state: Annotated[list[ReleaseState], Query(description="states, any if none is given")] = [],  # noqa: B006
        task: Annotated[str, Query(max_length=200, description="scenario/task")] = "",
        search: Annotated[str, Query(max_length=200, description="a part of the id, the task or the version")] = "",
        group: Annotated[str, Query(max_length=MAX_ID_CHARS, description="of its scenarios; all if empty")] = "",
        authorization: Annotated[str, Header()] = "",
    ) -> list[dict[str, Any]]:
        """List the releases of the scenarios in which the token has the role `reader`, newest first.

        With `limit`, the header `X-Walle-Before` has the number for `before` of the next page, 0 at the end, and
        `X-Walle-Total` counts the releases of all pages.
        """
        identity = identify(access, authorization)
        scenarios = identity.readable_scenarios()
        if group:
            members = identity.groups.members(group)
            scenarios = members if scenarios is None else scenarios & members
        query = ReleaseQuery(
            scenarios=scenarios,
            before=before,
            limit=limit or MAX_PAGE,
            states=frozenset(one.value for one in state),
            task=task,
            search=search,
        )
        page = await releases.page(query)
        found = list(page.releases)
        while page.before and not limit:  # clients without pages get all
            page = await releases.page(dataclasses.replace(query, before=page.before))
            found += page.releases
        response.headers["X-Walle-Before"] = str(page.before)
        response.headers["X-Walle-Total"] = str(page.total)
        return await reached.all_shown(found)


def _add_details(
    router: APIRouter, releases: Releases, outcomes: Outcomes, reached: ReleaseAccess, access: Identifier
) -> None:
    async def readable(release_id: str, authorization: str) -> Release:
        return await reached.allowed(release_id, identify(access, authorization), Role.READER)

    @router.get("/{release_id}")
    async def get(release_id: str, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Show one release with its history; this needs the role `reader` in its scenario."""
        release = await readable(release_id, authorization)
        history = [
            {"at_s": one.at_s, "event": one.event, "state": one.state, "details": dict(one.details)}
            for one in await releases.history(release_id)
        ]
        return {**await reached.shown(release), "history": safe(history)}

    @router.get("/{release_id}/failures")
    async def failures(release_id: str, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Show its distinct failures, those of most devices first: place, traceback, last log lines, counts and times.

        This needs the role `reader` in its scenario. `others` counts failures without a group: at most 20 are kept, and
        those of the fewest devices make room for new ones.
        """
        await readable(release_id, authorization)
        groups, others = await outcomes.failures(release_id)
        return {"failures": safe([group.to_plain() for group in groups]), "others": others}

    @router.get("/{release_id}/evidence")
    async def evidence(release_id: str, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Show what the gate has on the step that is judged: its devices, the control, each test's value and boundary.

        A test decides when its value reaches its boundary; both are logarithms. Where none is judged any more, it is
        that of the last step; empty where none ever was. This needs the role `reader` in its scenario.
        """
        await readable(release_id, authorization)
        return safe_map(await outcomes.evidence(release_id))

    @router.get("/{release_id}/course")
    async def course(release_id: str, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Show its course: `points` are counts over time, at most 240, `verdicts` the evidence that ended each step.

        `tests` has for each of the latest 20 steps its tests, with what each does at its boundary, and their values
        over time, at most 160 times in all. Values and boundaries are logarithms; of groups, hindering and guards, it
        is the one that is nearest to its boundary. This needs the role `reader` in its scenario.
        """
        await readable(release_id, authorization)
        return safe_map(await outcomes.course(release_id))


def _add_changes(router: APIRouter, reached: ReleaseAccess, access: Identifier) -> None:
    async def change(release_id: str, authorization: str, verb: str, reason: str = "") -> dict[str, Any]:
        return await reached.shown(await reached.change(release_id, identify(access, authorization), verb, reason))

    @router.post("/{release_id}/start")
    async def start(release_id: str, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Begin with the simulation of a release that was made without a start; the dashboard has a button for it."""
        return await change(release_id, authorization, "start")

    @router.post("/{release_id}/pause")
    async def pause(release_id: str, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Pause the release: no further device gets the version."""
        return await change(release_id, authorization, "pause")

    @router.post("/{release_id}/resume")
    async def resume(release_id: str, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Resume the release in the state where it was paused."""
        return await change(release_id, authorization, "resume")

    @router.post("/{release_id}/rollback")
    async def rollback(
        release_id: str, body: RollbackBody | None = None, authorization: Annotated[str, Header()] = ""
    ) -> dict[str, Any]:
        """Take the version back from every device that has it."""
        return await change(release_id, authorization, "rollback", body.reason if body else "")

    @router.post("/{release_id}/retry", status_code=201)
    async def retry(release_id: str, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Make and start another release as this one, which is rolled back or has failed.

        The history and the evidence of this one stay; the new one names it in `retries`, and begins without evidence.
        """
        return await change(release_id, authorization, "retry")


def _add_stream(router: APIRouter, releases: Releases, reached: ReleaseAccess, access: Identifier) -> None:
    @router.get("/{release_id}/stream", response_class=EventSourceResponse)
    async def stream(release_id: str, authorization: Annotated[str, Header()] = "") -> EventSourceResponse:
        """Server-sent events `release`: the release now, and whenever it or its totals change, until it is over.

        This needs the role `reader` in its scenario, and ends when the token is revoked.
        """
        first = await reached.allowed(release_id, identify(access, authorization), Role.READER)

        async def events() -> AsyncIterator[ServerSentEvent]:
            release, sent = first, ""
            while True:
                text = json.dumps(await reached.shown(release))
                if text != sent:
                    yield ServerSentEvent(data=text, event="release", id=str(release.revision))
                    sent = text
                if release.state.terminal:
                    return
                release = await releases.wait_change(release_id, release.revision, STREAM_TICK_S)
                identity = access.identify_header(authorization)
                if identity is None or identity.role(release.request.scenario) < Role.READER:
                    return

        return EventSourceResponse(events())


def safe(value: Any) -> Any:
    """Return a copy of plain data whose texts are printable, except for line breaks, and bounded."""
    match value:
        case str():
            if len(value) > MAX_TEXT_CHARS:
                value = f"{value[:MAX_TEXT_CHARS]}… ({len(value)} characters)"
            return "\n".join(map(printable, value.split("\n")))
        case Mapping():
            return safe_map(value)
        case list() | tuple():
            return [safe(one) for one in value]
        case _:
            return value


def safe_map(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {key: safe(one) for key, one in plain.items()}


def watch_router(
    releases: Releases,
    outcomes: Outcomes,
    answerer: Answerer,
    access: Identifier,
    parts: Mapping[str, WatchedPart] | None = None,
) -> APIRouter:
    """Return /, /metrics and /healthz, the latter two with the state of `parts` too.

    Without a token of the role `metrics` for all scenarios, /healthz says only whether everything works.
    """
    watched = dict(parts or {})
    router = APIRouter(tags=["watching"])

    @router.get("/healthz")
    async def healthz(response: Response, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        """Answer with status 503 if a part of the gateway does not work.

        Everyone is told `ok`, which asks nobody else; with the role `metrics` for all scenarios, the state of each part
        and the number of releases, by the release service, which must answer then.
        """
        states = {name: part.health() for name, part in watched.items()}
        ok = all(state["ok"] for state in states.values())
        if not ok:
            response.status_code = 503
        identity = access.identify_header(authorization)
        if identity is None or identity.role(ANY_SCENARIO) < Role.METRICS:
            return {"ok": ok}
        known = await releases.all()
        return {"ok": ok, "generation": answerer.table.generation, "releases": len(known), **states}

    @router.get("/metrics")
    async def metrics(authorization: Annotated[str, Header()] = "") -> Response:
        """Return metrics for Prometheus; this needs the role `metrics` for all scenarios."""
        check_role(identify(access, authorization), ANY_SCENARIO, Role.METRICS)
        overview = await releases.overview(MAX_RELEASES)
        totals = await outcomes.totals_of([release.id for release in overview.in_use])
        found = release_metrics(overview, totals) + push_metrics(answerer) + alarm_metrics(await outcomes.alarms())
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Scrape([*found, *(metric for part in watched.values() for metric in part.metrics())]))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router


class Scrape(Collector):
    """The metrics of one scrape."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def install_error_handlers(app: FastAPI) -> None:
    """Make `app` answer walle's errors as {"error": message, "type": name} with `error_status`."""

    async def known_error(_: Request, error: Exception) -> JSONResponse:
        return error_answer(error)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        parts = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        return JSONResponse({"error": "; ".join(parts), "type": "RequestError"}, 422)

    app.add_exception_handler(WalleError, known_error)
    app.add_exception_handler(ProtocolError, known_error)
    app.add_exception_handler(RequestValidationError, invalid)


def error_answer(error: Exception) -> JSONResponse:
    """Return the answer to a request that failed with an error of walle's."""
    status = error_status(error)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    if (again_s := retry_after_s(error)) is not None:
        headers = {"Retry-After": str(again_s)}
    return JSONResponse({"error": str(error), "type": type(error).__name__}, status, headers)


def retry_after_s(error: Exception) -> int | None:
    """Return after how many seconds a request that failed with this error may be tried again, None if that is open."""
    return getattr(error, "retry_after_s", None)


def error_status(error: Exception) -> int:
    """Return the HTTP status for an error of walle's."""
    match error:
        case DeployError() if isinstance(status := getattr(error, "status", None), int):
            return status
        case AuditError():
            return 507 if error.is_full else 503
        case UnknownReleaseError() | UnknownDeviceError() | UnknownTokenError():
            return 404
        case TransitionError() | TaskBusyError() | TooManyGroupsError() | TokenExistsError() | LastAdminError():
            return 409
        case DiskFullError() | StateError(is_full=True):
            return 507
        case DeployError() | ConfigError() | ProtocolError():
            return 422
        case _:
            return 500
