"""Pages of releases: a list, one release live with its actions, and read-only links to it."""

import collections
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse

from walle.access.access import Identity, Role
from walle.access.audit import Audit
from walle.access.errors import AccessError
from walle.cloud.api.releases import Outcomes, ReleaseAccess, Releases
from walle.cloud.dashboard.evidence import charts_of, shown_tests
from walle.cloud.dashboard.pages import HEADERS
from walle.cloud.dashboard.record_quota import RecordQuota
from walle.cloud.dashboard.sessions import LINK_HOURS, Session
from walle.cloud.dashboard.shell import TICK_S, Shell
from walle.deploy.fleet.registry import VersionHealth
from walle.deploy.gate.gate import Verdict
from walle.deploy.releases.query import ReleasePage, ReleaseQuery
from walle.deploy.releases.release import Release, ReleaseState, TransitionError, allowed

type Verb = Literal["start", "pause", "resume", "rollback", "retry"]
type VersionsOf = Callable[[str], Awaitable[list[VersionHealth]]]

PAGE = 50
_HEALTH_S = 10.0  # time for which counts of a task's versions are shown: counting reads all its devices
_MAX_ACTS = 256
_VERBS: Mapping[str, Verb] = {"Start": "start", "Pause": "pause", "Resume": "resume", "Rollback": "rollback"}
_STATES = {
    "active": [ReleaseState.CREATED, ReleaseState.SIMULATING, ReleaseState.BETA, ReleaseState.GRAY],
    "paused": [ReleaseState.PAUSED],
    "full": [ReleaseState.FULL],
    "over": [ReleaseState.ROLLED_BACK, ReleaseState.FAILED, ReleaseState.RETIRED],
}


@dataclasses.dataclass(frozen=True)
class _Act:
    """Act of a person on a release at this gateway."""

    who: str
    verb: str
    at_s: float


class ReleasePages:
    """Renders releases for sessions, and for read-only links, which have none."""

    def __init__(
        self,
        shell: Shell,
        releases: Releases,
        outcomes: Outcomes,
        versions_of: VersionsOf,
        log: Audit,
        quota: RecordQuota,
    ) -> None:
        self._shell = shell
        self._releases = releases
        self._outcomes = outcomes
        self._versions_of = versions_of
        self._log = log
        self._quota = quota
        self._reached = ReleaseAccess(releases, outcomes, log)
        self._health: dict[str, tuple[float, list[VersionHealth]]] = {}
        self._acts: collections.OrderedDict[str, _Act] = collections.OrderedDict()

    # --- the list ---

    async def list_values(self, session: Session, query: "ListQuery") -> dict[str, Any]:
        """Return what the list shows."""
        page = await self._releases.page(query.of(session.identity))
        shown = await self._reached.all_shown(page.releases)
        rows = [{**one, "covered": _covered(release)} for one, release in zip(shown, page.releases, strict=True)]
        return {"rows": rows, "page": page, "query": query, "tabs": _tabs(page), "here": "releases"}

    # --- one release ---

    async def values(self, release: Release, session: Session | None) -> dict[str, Any]:
        """Return what the page of a release shows; without a session, nothing that acts."""
        shown = await self._reached.shown(release)
        failures, others = await self._outcomes.failures(release.id)
        evidence = await self._outcomes.evidence(release.id)
        course = await self._outcomes.course(release.id)
        moved = await self._releases.history(release.id)
        history = [
            {"at_s": one.at_s, "event": one.event, "state": one.state, "details": dict(one.details)} for one in moved
        ]
        faults = [fault for one in moved for fault in one.details.get("faults", ())]
        simulated = next((one.details for one in moved if one.details.get("state_bytes")), {})
        may_act = session is not None and session.may(release.request.scenario, Role.RELEASER)
        return {
            "release": shown,
            "name": release.request.name,
            "covered": _covered(release),
            "verbs": verbs_of(release) if may_act else [],
            "may_act": may_act,
            "now_s": self._shell.clock.time(),
            "may_share": session is not None,
            "failures": [one.to_plain() for one in failures],
            "others": others,
            "evidence": evidence,
            "tests": shown_tests(evidence, is_rejected=release.state is ReleaseState.ROLLED_BACK),
            "steps": [
                {**one, "tests": shown_tests(one["evidence"], is_rejected=one["verdict"] == Verdict.REJECT)}
                for one in reversed(course["verdicts"])
            ],
            "charts": charts_of(course, history, shown["request"]["gate"]),
            "simulation_faults": faults,
            "simulated_state": simulated,
            "versions": await self._versions(release.request.name),
            "history": history[::-1],
            "last_act": self._acts.get(release.id) if may_act else None,
            "here": "releases",
        }

    async def _versions(self, task: str) -> list[VersionHealth]:
        now_s = self._shell.clock.monotonic()
        kept = self._health.get(task)
        if kept is not None and now_s - kept[0] < _HEALTH_S:
            return kept[1]
        self._health = {name: one for name, one in self._health.items() if now_s - one[0] < _HEALTH_S}
        found = await self._versions_of(task)
        self._health[task] = (now_s, found)
        return found

    async def page(self, release: Release, session: Session | None, *, status: int = 200, **more: Any) -> Response:
        """Return the page of a release; `more` has `text` and whether it `is_bad`, `link` and its address."""
        base = {
            "text": "",
            "is_bad": False,
            "link": "",
            "link_expires_s": 0,
            "live": f"/dashboard/releases/{release.id}/live",
        }
        values = await self.values(release, session)
        return self._shell.page("release.html", session, {**base, **values, "hours": LINK_HOURS, **more}, status=status)

    def live(self, release: Release, session: Session | None, may_go_on: Callable[[], bool]) -> Response:
        """Answer with the live part of a release's page, at once when the release changes."""
        current = release

        async def render() -> str:
            return self._shell.fragment("release_live.html", session, await self.values(current, session))

        async def wait() -> None:
            nonlocal current
            current = await self._releases.wait_change(current.id, current.revision, TICK_S)

        return self._shell.live(render, may_go_on=may_go_on, wait=wait)

    async def allowed(self, release_id: str, session: Session, role: Role) -> Release:
        return await self._reached.allowed(release_id, session.identity, role)

    async def allowed_to(self, release_id: str, maker: Identity) -> Release:
        """Return a release that a link shows, which its maker may still read."""
        return await self._reached.allowed(release_id, maker, Role.READER)

    # --- actions ---

    async def act(self, release: Release, session: Session, verb: Verb, fields: Mapping[str, str]) -> Response:
        """Do what a person confirmed; where another person was faster, say so and show the release of now."""
        seen = fields.get("revision", "")
        try:
            if verb == "resume" and seen.isdecimal() and int(seen) != release.revision:
                text = "it has changed since you opened the page: check why it is paused now, and then resume it"
                return await self._refused(release, session, text)
            done = await self._reached.change(release.id, session.identity, verb, fields.get("reason", ""))
        except TransitionError as error:
            return await self._refused(await self._releases.get(release.id), session, str(error))
        self._acts[release.id] = _Act(session.identity.name, verb, self._shell.clock.time())
        while len(self._acts) > _MAX_ACTS:
            self._acts.popitem(last=False)
        return RedirectResponse(f"/dashboard/releases/{done.id}?did={verb}", 303, headers=HEADERS)

    async def _refused(self, release: Release, session: Session, why: str) -> Response:
        last = self._acts.get(release.id)
        by = f" The last to act was {last.who} ({last.verb})." if last is not None else ""
        text = f"Nothing was done: {why}.{by}"
        return await self.page(release, session, status=409, text=text, is_bad=True)

    async def share(self, release: Release, session: Session, hours: int) -> Response:
        """Make a read-only link to a release, which is in the audit log with who made it.

        Raises:
            RecordQuotaError: the session's token has made as many as it may.
        """
        self._quota.take(session.identity.name)
        link, expires_s = self._shell.sessions.share(release.id, session.identity, hours)
        details = {"scenario": release.request.scenario, "hours": hours}
        await self._log.record("dashboard.link", who=session.identity.name, subject=release.id, details=details)
        return await self.page(release, session, link=f"/dashboard/shared/{link}", link_expires_s=expires_s)


@dataclasses.dataclass(frozen=True)
class ListQuery:
    """The address of a list of releases."""

    show: str = ""
    search: str = ""
    task: str = ""
    before: int = 0

    def of(self, identity: Identity) -> ReleaseQuery:
        return ReleaseQuery(
            scenarios=identity.readable_scenarios(),
            before=self.before,
            limit=PAGE,
            states=frozenset(state.value for state in _STATES.get(self.show, ())),
            task=self.task,
            search=self.search,
        )


def release_page_router(shell: Shell, pages: ReleasePages) -> APIRouter:
    """Return the routes of releases. A release of a scenario that the caller may not read does not exist for them."""
    router = shell.router()

    def list_query(
        show: Literal["", "active", "paused", "full", "over"] = "",
        search: Annotated[str, Query(max_length=200)] = "",
        task: Annotated[str, Query(max_length=200)] = "",
        before: Annotated[int, Query(ge=0, lt=1 << 53)] = 0,
    ) -> ListQuery:
        return ListQuery(show, search, task, before)

    type Listed = Annotated[ListQuery, Depends(list_query)]

    @router.get("")
    async def list_page(request: Request, query: Listed) -> Response:
        session = shell.session(request)
        return shell.page("releases.html", session, await pages.list_values(session, query))

    @router.get("/live")
    async def list_live(request: Request, query: Listed) -> Response:
        session = shell.session(request)

        async def render() -> str:
            return shell.fragment("release_rows.html", session, await pages.list_values(session, query))

        return shell.live(render, may_go_on=shell.may_go_on(request, session))

    @router.get("/releases/{release_id}")
    async def release_page(
        request: Request, release_id: str, did: Annotated[str, Query(max_length=20)] = ""
    ) -> Response:
        session = shell.session(request)
        release = await pages.allowed(release_id, session, Role.READER)
        return await pages.page(release, session, text=_DONE.get(did, ""))

    @router.get("/releases/{release_id}/live")
    async def release_live(request: Request, release_id: str) -> Response:
        session = shell.session(request)
        release = await pages.allowed(release_id, session, Role.READER)
        return pages.live(release, session, shell.may_go_on(request, session))

    @router.get("/releases/{release_id}/confirm/{verb}")
    async def confirm(request: Request, release_id: str, verb: Verb) -> Response:
        session = shell.session(request)
        release = await pages.allowed(release_id, session, Role.RELEASER)
        values = {**await pages.values(release, session), "verb": verb, "effect": _EFFECTS[verb]}
        return shell.page("confirm.html", session, values)

    @router.post("/releases/{release_id}/{verb}")
    async def act(request: Request, release_id: str, verb: Verb) -> Response:
        session, fields = await shell.form(request)
        release = await pages.allowed(release_id, session, Role.RELEASER)
        return await pages.act(release, session, verb, fields)

    @router.post("/links/{release_id}")
    async def share(request: Request, release_id: str) -> Response:
        session, fields = await shell.form(request)
        release = await pages.allowed(release_id, session, Role.READER)
        hours = fields.get("hours", "")
        if hours not in map(str, LINK_HOURS):
            raise AccessError(422, f"a link is valid for one of {', '.join(map(str, LINK_HOURS))} hours")
        return await pages.share(release, session, int(hours))

    @router.get("/shared/{link}")
    async def shared(link: str) -> Response:
        release = await _shared(link)
        return await pages.page(release, None, live=f"/dashboard/shared/{link}/live")

    @router.get("/shared/{link}/live")
    async def shared_live(link: str) -> Response:
        release = await _shared(link)
        scenario = release.request.scenario

        def may_go_on() -> bool:
            found = shell.sessions.shared(link)
            return found is not None and found.identity.role(scenario) >= Role.READER

        return pages.live(release, None, may_go_on)

    async def _shared(link: str) -> Release:
        found = shell.sessions.shared(link)
        if found is None:
            raise AccessError(403, "this link is not valid: it has expired, or its maker's token was revoked")
        return await pages.allowed_to(found.release_id, found.identity)

    return router


def verbs_of(release: Release) -> list[Verb]:
    """Return what a person may do to a release in its state, the least harmful first."""
    verbs = [_VERBS[name] for name in allowed(release) if name in _VERBS]
    return verbs if not release.state.terminal else ["retry"]


def _covered(release: Release) -> float:
    """Return the share of its devices that the version is rolled out to."""
    if release.state is ReleaseState.FULL:
        return 1.0
    is_gray = (release.resumes or release.state) is ReleaseState.GRAY
    return release.request.steps[release.step] if is_gray else 0.0


def _tabs(page: ReleasePage) -> list[tuple[str, str, int]]:
    """Return name, words and count of each choice of states."""
    count = {name: sum(page.by_state.get(one.value, 0) for one in states) for name, states in _STATES.items()}
    words = {"active": "Under way", "paused": "Paused", "full": "Full", "over": "Ended"}
    return [("", "All", sum(page.by_state.values())), *((name, words[name], count[name]) for name in _STATES)]


_DONE = {
    "start": "You started the release.",
    "pause": "You paused the release.",
    "resume": "You resumed the release.",
    "rollback": "You rolled the release back.",
    "retry": "You started this release as another attempt.",
}
_EFFECTS: Mapping[Verb, str] = {
    "start": "It is simulated, and then goes to its first devices.",
    "pause": "No further device gets the version; those that have it keep it.",
    "resume": "It continues where it was paused. The cause of the pause does not pause this step again.",
    "rollback": "Every device that has the version leaves it at its next request. This cannot be undone.",
    "retry": "A new release with the same request is made and started. It begins without evidence.",
}
