"""Release service (§6): moves releases through their states and runs the effects of each transition.

Every transition is journalled, then its effects run: build and simulate the bundle, find beta devices, sign and publish
the task's row of the release table, set the monitor's gate. Each effect reads the state at the time when it
runs and may run twice, so a service that was killed continues: entering it loads the journal and runs what was left.
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Self

from walle.access.audit import Audit, NoAudit
from walle.base.clock import Clock
from walle.deploy.exclusive_files.groups import GroupPart
from walle.deploy.gate.gate import Verdict
from walle.deploy.policies.policy import Policy
from walle.deploy.releases.conflicts import refuse_conflicts
from walle.deploy.releases.effects import Effects
from walle.deploy.releases.errors import SignedAgainError, UnknownReleaseError
from walle.deploy.releases.journal import Journal, PendingEffect, Transition
from walle.deploy.releases.query import ReleasePage, ReleaseQuery
from walle.deploy.releases.release import (
    BetaResolved,
    Effect,
    GateAccepted,
    GatePaused,
    GateRejected,
    Pause,
    Release,
    ReleaseEvent,
    ReleaseOverview,
    ReleaseState,
    Resume,
    Retire,
    Rollback,
    SignatureAwaited,
    SignedAgain,
    SimulationFailed,
    Start,
    TransitionError,
    advance,
    allowed,
)
from walle.deploy.releases.request import MAX_BETA_DEVICES, ReleaseRequest, ReleaseRequestError
from walle.deploy.releases.signatures import SigningState
from walle.deploy.releases.simulations import Simulations, envelopes
from walle.deploy.releases.stage_text import stage_text
from walle.deploy.releases.table import superseded, versions_behind
from walle.deploy.releases.table_keeper import TableKeeper
from walle.deploy.releases.variants import ReleaseVariant, variants_of
from walle.errors import DeployError
from walle.protocol import Envelope
from walle.task.format.config import TaskConfig

_LOG = logging.getLogger(__name__)
_WHO = "release service"  # name in the audit log
_VERSIONS_OF_DEVICES = 3  # versions of a task to which differences are made
_TELLING = frozenset({Effect.PUBLISH, Effect.SET_GATE})
MIN_KEEP_VERSIONS = 2  # the one in force, and one to go back to
_RETRY_S = (0.1, 0.5, 2.0, 10.0)  # the last one is repeated


class ReleaseService:
    """All releases. One instance per journal; single event loop.

    `cdn_url` returns the prefix of the files' addresses, which may change with time; a directive expires after
    `lifetime_s` and is renewed after half of that. The table's timestamp is renewed every `restamp_s` seconds.
    """

    def __init__(
        self,
        journal: Journal,
        effects: Effects,
        clock: Clock,
        *,
        cdn_url: Callable[[], str],
        lifetime_s: float = 86_400.0,
        restamp_s: float = 900.0,
        audit: Audit | None = None,
    ) -> None:
        self._table = TableKeeper(journal, effects, clock, self._of_task, cdn_url=cdn_url, lifetime_s=lifetime_s)
        self._journal = journal
        self._effects = effects
        self._clock = clock
        self._lifetime_s = lifetime_s
        self._audit: Audit = audit or NoAudit()
        self._restamp_s = restamp_s
        self._releases: dict[str, Release] = {}
        self._changing = asyncio.Lock()  # journal and memory change together
        self._changed = asyncio.Event()  # replaced at each transition
        self._tasks: dict[asyncio.Task[Any], bool] = {}  # running task → whether `settled` waits for it
        self._simulations = Simulations(effects, clock)
        self._beta_found: dict[str, int] = {}  # devices found for a beta that waits for more, by id of the release

    # --- lifetime ---

    async def __aenter__(self) -> Self:
        """Load the journal, publish the table, and run the effects that were left."""
        self._releases = {release.id: release for release in await self._journal.releases()}
        await self._table.load()
        pending = await self._journal.pending()
        self._hold(self._retrying("publish the table", self._table.publish_all), settles=True)
        for effect in pending:
            self._run_effect(effect)
        for release in self._releases.values():
            if release.judged:  # the monitor may have lost its gate
                set_gate = functools.partial(self._set_gate, release.id)
                self._hold(self._retrying(f"set the gate of {release.id}", set_gate), settles=True)
        self._hold(self._refresh())
        self._hold(self._restamp_periodically())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel everything that runs; effects that have not run stay journalled."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settled(self) -> None:
        """Return once the effects of every transition so far have run in the gateways and the monitor."""
        while telling := [task for task, settles in self._tasks.items() if settles]:
            await asyncio.wait(telling)

    # --- requests of users ---

    async def create(self, request: ReleaseRequest, *, by: str = "", start: bool = True, retries: str = "") -> Release:
        """Return a new release, which is started unless `start` is false.

        Its `reads` are those that task.toml declares. `by` is the name of the person; `retries` is the release
        that it is another attempt of.

        Raises:
            ReleaseRequestError: a beta device is none of those that the policy names.
            TaskBusyError: another one of the task with the same policy is under way, or MAX_UNDER_WAY are.
            TooManyGroupsError: its releases are for MAX_GROUPS_OF_TASK other policies.
            PatternBudgetError: its rule has too many patterns beside those of the scenario's releases.
            RuleError, SchemaError: the policy's rule is invalid, or cannot be checked.
            RepoError: the version does not exist.
        """
        request = dataclasses.replace(request, policy=await self.typed_policy(request.policy))
        named = request.policy.devices
        strangers = [] if isinstance(request.beta, int) or not named else sorted({*request.beta} - {*named})
        if strangers:
            raise ReleaseRequestError(
                "beta", f"{strangers[0][:100]!r} is not one of the devices that the release is for"
            )
        refuse_conflicts(request, (), self._releases.values())
        await self._effects.check_version(request.scenario, request.task, request.version)
        reads: tuple[str, ...] = ()
        config: TaskConfig | None = None
        with contextlib.suppress(DeployError):  # a version that cannot be read fails in its simulation, with the reason
            config = await self._effects.read_config(request.scenario, request.task, request.version)
            reads = tuple(f"{request.scenario}/{topic}" for topic in config.reads)
        declared = config.variants if config is not None else ()
        variants = await variants_of(request.policy, declared, self.typed_policy)
        refuse_conflicts(request, variants, self._releases.values())
        return await self._whole(self._create(request, reads, variants, by=by, start=start, retries=retries))

    async def get(self, release_id: str) -> Release:
        """Return the release. Raises UnknownReleaseError."""
        return self._known(release_id)

    async def all(self) -> tuple[Release, ...]:
        """Return every release, newest first."""
        return tuple(sorted(self._releases.values(), key=lambda release: -release.number))

    async def page(self, query: ReleaseQuery) -> ReleasePage:
        """Return a page of the releases, newest first, and counts of all that the query may show."""
        return query.page(self._releases.values())

    async def overview(self, limit: int) -> ReleaseOverview:
        """Return the number of releases in each state, and the `limit` newest of those that are in use."""
        return ReleaseOverview.of(self._releases.values(), limit)

    async def beta_found(self, release_ids: Sequence[str]) -> dict[str, int]:
        """Return how many devices are found for the beta of each of these releases that waits for more, by its id."""
        return {one: self._beta_found[one] for one in release_ids if one in self._beta_found}

    async def exclusive_files(self, device_id: str, generation: int, groups: GroupPart) -> bytes:
        """Return the signed list of the exclusive files of a device's key (`walle.protocol.ExclusiveList`).

        `groups` is what its groups give it; its own files go first.
        """
        return await self._effects.exclusive_files(device_id, generation, groups)

    async def history(self, release_id: str) -> list[Transition]:
        """Return the release's transitions, oldest first. Raises UnknownReleaseError."""
        return await self._journal.history(self._known(release_id).id)

    async def start(self, release_id: str) -> Release:
        """Start a release that was made without a start.

        Raises:
            UnknownReleaseError, TransitionError: as for the three methods below.
        """
        return await self._apply(release_id, Start(self._clock.time()))

    async def pause(self, release_id: str) -> Release:
        """Pause the release: devices that have the version keep it, and no other device gets it."""
        return await self._apply(release_id, Pause(self._clock.time()))

    async def resume(self, release_id: str) -> Release:
        return await self._apply(release_id, Resume(self._clock.time()))

    async def rollback(self, release_id: str, by: str, reason: str) -> Release:
        """Take the version back from every device that has it."""
        return await self._apply(release_id, Rollback(self._clock.time(), by, reason))

    async def retry(self, release_id: str, by: str = "") -> Release:
        """Make and start another release as this one, for the same request; it begins without evidence.

        `by` is the name of the person.

        Raises:
            TransitionError: it is neither rolled back nor has it failed.
            UnknownReleaseError, and others as `create`.
        """
        before = self._known(release_id)
        if not before.state.terminal:
            raise TransitionError(release_id, before.state, "Retry", allowed(before))
        return await self.create(before.request, by=by, retries=before.id)

    async def retire(
        self, scenario: str, task: str, by: str, *, keep_versions: int, dry_run: bool = False
    ) -> list[Release]:
        """Give up the full releases to which fewer than `keep_versions` rollbacks lead no device; return them.

        `task` "" is for all tasks of the scenario. What devices get is unchanged, and no rollback leads to them any
        more, so that their files may be removed. Each is looked at again when it is retired: a release or rollback
        that came meanwhile counts. With `dry_run` they stay.

        Raises:
            ReleaseRequestError: `keep_versions` is below 2: a rollback would leave devices without any version.
        """
        if keep_versions < MIN_KEEP_VERSIONS:
            what = f"{keep_versions} is below {MIN_KEEP_VERSIONS}: a rollback must find a version before"
            raise ReleaseRequestError("keep_versions", what)
        names = {one.request.name for one in self._releases.values() if one.request.scenario == scenario}
        found = []
        for name in sorted(names if not task else names & {f"{scenario}/{task}"}):
            for release_id in superseded(self._of_task(name), keep_versions):
                if dry_run:
                    found.append(self._known(release_id))
                    continue
                retired = await self._whole(self._retire(self._known(release_id), by, keep_versions))
                if retired.state is ReleaseState.RETIRED:
                    found.append(retired)
        return found

    async def _retire(self, release: Release, by: str, keep_versions: int) -> Release:
        async with self._changing:
            rollbacks = superseded(self._of_task(release.request.name), keep_versions).get(release.id)
            if rollbacks is None:
                return self._known(release.id)
            return await self._changed_by(self._known(release.id), Retire(self._clock.time(), by, rollbacks))

    async def wait_change(self, release_id: str, revision: int, timeout_s: float) -> Release:
        """Return the release once its revision is above `revision`, or unchanged after `timeout_s`.

        Raises:
            UnknownReleaseError: the release does not exist.
        """
        release = self._known(release_id)
        deadline = asyncio.ensure_future(self._clock.sleep(timeout_s))
        try:
            while release.revision <= revision and not deadline.done():
                changed = asyncio.ensure_future(self._changed.wait())
                try:
                    await asyncio.wait([changed, deadline], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                release = self._known(release_id)
        finally:
            deadline.cancel()
        return release

    async def watch(self, release_id: str) -> AsyncIterator[Release]:
        """Yield the release now and after changes, the last of fast ones, until it is in a terminal state."""
        release = self._known(release_id)
        yield release
        while not release.state.terminal:
            changed = await self.wait_change(release_id, release.revision, 3600.0)
            if changed.revision > release.revision:
                release = changed
                yield release

    # --- signatures ---

    async def signing(self, scenario: str, task: str, version: str) -> SigningState:
        """Return a version's manifest, the keys that may sign it, and those that did.

        Raises:
            RepoError, DeployError: the version does not exist, or cannot be built.
            SignatureAwaitedError: no key is delegated to its scenario.
        """
        return await self._effects.signing(await self._effects.read_version(scenario, task, version))

    async def add_signatures(
        self, scenario: str, task: str, version: str, signatures: Mapping[str, bytes]
    ) -> SigningState:
        """Keep signatures (key id → bytes) of a version's manifest; a release that waits for them continues.

        Raises:
            SignatureError: one of them does not count; none is kept. Others as `signing`.
        """
        state = await self._effects.add_signatures(
            await self._effects.read_version(scenario, task, version), signatures
        )
        self.check_signatures()
        return state

    async def sign_again(self, scenario: str, task: str, version: str) -> list[str]:
        """Give the releases of a version that devices may get the signatures that count now; return the changed ones.

        Raises:
            SignatureAwaitedError: too few keys have signed it.
            SignedAgainError: this cloud builds another manifest of it than the one that was simulated.
        """
        bundle = await self._effects.build(await self._effects.read_version(scenario, task, version))
        payload = Envelope.from_bytes(bundle.envelope).payload
        changed = []
        for release in await self.all():
            request = release.request
            is_of_version = (request.scenario, request.task, request.version) == (scenario, task, version)
            if not is_of_version or "SignedAgain" not in allowed(release) or release.manifest == bundle.sha256:
                continue
            if Envelope.from_bytes(await self._effects.read_envelope(release.manifest)).payload != payload:
                raise SignedAgainError(release.id)
            for one in (bundle, *bundle.variants):
                await self._effects.store_envelope(one.envelope)
            again = envelopes(bundle.variants)
            event = SignedAgain(self._clock.time(), bundle.sha256, len(bundle.envelope), again)
            await self._apply(release.id, event)
            changed.append(release.id)
        return changed

    def check_signatures(self) -> None:
        """Check again whether the versions that wait for a signature have one; call it when metadata changed too."""
        self._simulations.check_signatures()

    # --- verdicts of the monitor ---

    async def verdict(self, release_id: str, stage: str, verdict: Verdict, reason: str, cause: str = "") -> None:
        """Take the monitor's verdict; ignored where the stage is over, and while it is paused, unless it rejects.

        `cause` is the key of what a pause is for.
        """
        release = self._releases.get(release_id)
        if release is None or release.stage != stage:
            return
        event: ReleaseEvent
        if verdict is Verdict.ACCEPT:
            event = GateAccepted(self._clock.time())
        elif verdict is Verdict.REJECT:
            event = GateRejected(self._clock.time(), reason)
        elif verdict is Verdict.PAUSE:
            _LOG.warning("release %s is paused by its gate, %s: %s", release_id, stage_text(stage), reason)
            event = GatePaused(self._clock.time(), cause, reason)
        else:
            return
        await self._apply_if_still(release, event)

    # --- transitions ---

    def _known(self, release_id: str) -> Release:
        release = self._releases.get(release_id)
        if release is None:
            raise UnknownReleaseError(release_id)
        return release

    async def typed_policy(self, policy: Policy) -> Policy:
        """Return a policy with the columns of its rule, as `create` stores it. Raises RuleError, SchemaError."""
        # In a thread: the longest rule takes tens of milliseconds to compile, and devices wait for this event loop.
        return await asyncio.to_thread(policy.typed, await self._effects.read_schema())

    async def _create(
        self,
        request: ReleaseRequest,
        reads: tuple[str, ...],
        variants: tuple[ReleaseVariant, ...],
        *,
        by: str,
        start: bool,
        retries: str,
    ) -> Release:
        async with self._changing:
            refuse_conflicts(request, variants, self._releases.values())
            number = await self._journal.draw("release")
            now_s = self._clock.time()
            release = Release(
                id=f"{request.task}-{request.version}-{number}",
                number=number,
                request=request,
                created_s=now_s,
                updated_s=now_s,
                reads=reads,
                variants=variants,
                retries=retries,
                created_by=by,
            )
            effects: tuple[Effect, ...] = ()
            if start:
                release, effects = advance(release, Start(now_s))
            details = {"number": number, "request": release.to_plain()["request"], "retries": retries, "by": by}
            details["state"] = release.state.value
            await self._audit.record("release.created", who=_WHO, subject=release.id, details=details)
            return await self._journalled(release, None, effects)

    async def _apply(self, release_id: str, event: ReleaseEvent) -> Release:
        return await self._whole(self._transition(self._known(release_id), event, None))

    async def _apply_if_still(self, release: Release, event: ReleaseEvent) -> None:
        """Apply an event that this revision of `release` caused; if its revision has changed, the event is ignored."""
        await self._whole(self._transition(release, event, release.revision))

    async def _transition(self, release: Release, event: ReleaseEvent, revision: int | None) -> Release:
        async with self._changing:
            release = self._known(release.id)
            if revision is not None and (release.revision != revision or type(event).__name__ not in allowed(release)):
                return release
            return await self._changed_by(release, event)

    async def _changed_by(self, release: Release, event: ReleaseEvent) -> Release:
        """Record a transition, and run its effects; the caller holds `_changing`."""
        after, effects = advance(release, event)
        await self._record(release, event, after)
        return await self._journalled(after, event, effects)

    async def _journalled(self, after: Release, event: ReleaseEvent | None, effects: tuple[Effect, ...]) -> Release:
        """Write a release into the journal, then run the effects of its transition; the caller holds `_changing`."""
        pending = await self._journal.record(after, event, effects)
        self._take(after)
        for effect in pending:
            self._run_effect(effect)
        return after

    async def _record(self, before: Release, event: ReleaseEvent, after: Release) -> None:
        """Write a transition into the audit log. What takes a version from devices or keeps it off waits for no log."""
        details = {
            "event": type(event).__name__,
            "from": before.state.value,
            "to": after.state.value,
            "stage": before.stage,
            **dataclasses.asdict(event),
        }
        details.pop("faults", None)  # texts of a task, which the release's history has
        must = not isinstance(event, (Rollback, GateRejected, GatePaused, SimulationFailed, Pause))
        if not must:  # a record that is owed must not be of a transition that the journal cannot take
            await self._journal.confirm()
        await self._audit.record("release.moved", who=_WHO, subject=after.id, details=details, must=must)

    def _take(self, release: Release) -> None:
        self._releases[release.id] = release
        if release.state is not ReleaseState.SIMULATING:
            self._simulations.cancel(release.id)
        if not release.awaits_beta:
            self._beta_found.pop(release.id, None)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _whole(self, work: Coroutine[Any, Any, Release]) -> Release:
        """Run a transition to its end even where the caller is cancelled: the journal and the memory stay equal."""
        return await asyncio.shield(self._hold(work))

    # --- effects ---

    def _hold[T](self, work: Coroutine[Any, Any, T], *, settles: bool = False) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = settles
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def _run_effect(self, pending: PendingEffect) -> None:
        self._hold(self._effect(pending), settles=pending.effect in _TELLING)

    async def _effect(self, pending: PendingEffect) -> None:
        action = {
            Effect.RUN_SIMULATION: self._simulate,
            Effect.RESOLVE_BETA: self._resolve_beta,
            Effect.PUBLISH: self._publish,
            Effect.SET_GATE: self._set_gate,
        }[pending.effect]

        async def run() -> None:
            await action(pending.release_id)
            await self._journal.strike(pending)

        await self._retrying(f"{pending.effect} of {pending.release_id}", run)

    async def _retrying(self, what: str, action: Callable[[], Awaitable[None]]) -> None:
        failures = 0
        while True:
            try:
                await action()
            except Exception as error:  # noqa: BLE001 - a journalled effect is retried after any error
                wait_s = _RETRY_S[min(failures, len(_RETRY_S) - 1)]
                failures += 1
                if not getattr(error, "may_pass", False):  # else its database has logged it
                    _LOG.exception("cannot %s; retrying in %g s", what, wait_s)
                await self._clock.sleep(wait_s)
            else:
                return

    async def _simulate(self, release_id: str) -> None:
        """Run the simulation, which ends early where the release is rolled back meanwhile."""
        release = self._known(release_id)
        if release.state is not ReleaseState.SIMULATING:
            return

        async def wait_signature(reason: str) -> None:
            waiting = self._known(release_id)
            if waiting.reason != reason:
                await self._apply_if_still(waiting, SignatureAwaited(self._clock.time(), reason))

        event = await self._simulations.run(release, self._manifests_of_devices, wait_signature)
        await self._apply_if_still(self._known(release_id), event)  # ignored where a rollback cancelled it

    def _manifests_of_devices(self, request: ReleaseRequest) -> list[str]:
        """Return the manifests of the task's latest versions that devices may have, newest first."""
        newest_first = sorted(self._of_task(request.name), key=lambda release: -release.number)
        manifests = [one.manifest for one in newest_first if one.manifest and not one.state.terminal]
        return list(dict.fromkeys(manifests))[:_VERSIONS_OF_DEVICES]

    async def _resolve_beta(self, release_id: str) -> None:
        """Wait until enough devices of the policy were seen, or the release leaves the beta."""
        while True:
            release = self._known(release_id)
            count = release.request.beta_count
            if not release.awaits_beta or count is None:
                return
            devices = await self._effects.recent_devices(
                min(count, MAX_BETA_DEVICES), release.request.policy, release.request.name
            )
            if len(devices) >= count:
                await self._apply_if_still(release, BetaResolved(self._clock.time(), tuple(devices[:count])))
                return
            if release is self._known(release_id):  # no transition came meanwhile
                self._beta_found[release_id] = len(devices)
            await self.wait_change(release_id, release.revision, 1.0)

    async def _set_gate(self, release_id: str) -> None:
        release = self._known(release_id)
        if release.judged:
            await self._watch(release)
            return
        await self._effects.unwatch(release_id)
        for other in self._of_task(release.request.name):
            if other.judged:  # the version before it may be another one now
                await self._watch(other)

    async def _watch(self, release: Release) -> None:
        before = versions_behind(release, self._of_task(release.request.name))
        await self._effects.watch(release.judged_step(before))

    def _of_task(self, task: str) -> list[Release]:
        return [release for release in self._releases.values() if release.request.name == task]

    # --- the release table ---

    async def _publish(self, release_id: str) -> None:
        release = self._known(release_id)
        if release.judged and release.state is not ReleaseState.PAUSED:
            await self._set_gate(release_id)  # a device's confirmation must find the gate of its step
        task = self._known(release_id).request.name
        await self._table.publish(task)

    async def publish_again(self) -> None:
        """Give the gateways the table: one of them is new, and has none."""
        await self._table.publish_all()

    async def backlog(self) -> tuple[int, int]:
        """Return how many journalled effects have not run, and the generation of the table that was published last."""
        return len(await self._journal.pending()), self._table.generation

    async def set_gates(self) -> None:
        """Set the gate of each release that is judged: the monitor was started again, and may lack the latest."""
        for release in list(self._releases.values()):
            if release.judged:
                await self._set_gate(release.id)

    async def restamp(self) -> None:
        """Give the gateways the table with a new timestamp: it nears expiry, or the metadata that it names changed."""
        await self._table.restamp()

    async def _restamp_periodically(self) -> None:
        while True:
            await self._clock.sleep(self._restamp_s)
            await self._retrying("renew the timestamp", self.restamp)

    async def _refresh(self) -> None:
        """Sign directives again before they expire, until cancelled."""
        while True:
            await self._clock.sleep(self._lifetime_s / 8)
            await self._retrying("refresh the table", self._table.refresh)
