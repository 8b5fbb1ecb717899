"""Monitor of releases (§6, exception handling): counts outcome reports and delivers a verdict on each step.

Memory is bounded: per release a `Monitor` and a few counts, and the ids of recent batches, so that a batch that is sent
again counts once. The evidence is journalled every `flush_s` seconds, in one transaction with the ids of the batches
that it counts; a crash loses the reports since then, or none with `group_s`, where a report is answered afterwards.
"""

import asyncio
import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Self

from walle.access.audit import Audit, NoAudit
from walle.base.clock import Clock
from walle.deploy.fleet.device_group import TargetedGroups
from walle.deploy.fleet.registry import (
    AttributeCount,
    DeviceFailure,
    DevicePage,
    DeviceQuery,
    DeviceRegistry,
    KnownDevice,
    Reach,
    UnknownDeviceError,
    VersionHealth,
)
from walle.deploy.gate.gate import Verdict
from walle.deploy.gate.monitor import Monitor
from walle.deploy.gate.step import Step
from walle.deploy.monitor.failure_groups import FailureGroup
from walle.deploy.monitor.release_evidence import ReleaseEvidence, Totals
from walle.deploy.monitor.report_pace import ReportPace
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.uploaded_attributes import UploadedAttributes
from walle.deploy.releases.journal import Journal
from walle.protocol import Alarm, Outcome, OutcomeBatch, Profile, printable
from walle.store.errors import StateError
from walle.store.lease import LeaseLostError

_LOG = logging.getLogger(__name__)

type OnVerdict = Callable[[str, str, Verdict, str, str], Awaitable[None]]


@dataclasses.dataclass(frozen=True)
class ReportsTaken:
    """Results of the reports of one call, by their numbers in it.

    `failed` could not be counted; the monitor's log says why. Devices are to report again after `interval_s`, None
    where they are told nothing; those of `awaited` ones as they like.
    """

    failed: frozenset[int] = frozenset()
    interval_s: int | None = None
    awaited: frozenset[int] = frozenset()

    def interval_of(self, number: int) -> int | None:
        """Return what the device of a report is told."""
        return 0 if number in self.awaited else self.interval_s


class MonitorService:
    """Feeds the monitors of the releases that are judged, and calls `on_verdict(release id, stage, verdict, reason)`.

    A verdict whose delivery fails is delivered again with the next report of its release. The service runs between
    `start` and `close`, or within `async with`. With `group_s`, a report is answered once it is journalled, together
    with those that come in that time, or in nine times what the last group took, which bounds the journal's share. With
    `reports_s`, devices are told to report that often in all in a second.
    """

    MAX_BATCH_IDS = 1 << 16

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        *,
        devices: DeviceRegistry | None = None,
        uploaded: UploadedAttributes | None = None,
        audit: Audit | None = None,
        flush_s: float = 1.0,
        group_s: float | None = None,
        reports_s: float = 0.0,
    ) -> None:
        self.on_verdict: OnVerdict | None = None
        self.duplicates = 0  # batches that had been counted before
        self.strangers = 0  # outcomes of unknown releases
        self._alarms = dict.fromkeys(Alarm.KINDS, 0)
        self._journal = journal
        self._clock = clock
        self._devices = devices
        self._uploaded = uploaded
        self._audit: Audit = audit or NoAudit()
        self._flush_s = flush_s
        self._group_s = group_s
        self._pace = ReportPace(reports_s, clock) if reports_s else None
        self._group: asyncio.Task[StateError | None] | None = None  # reports that are journalled together
        self._can_join = False
        self._group_took_s = 0.0
        self._evidence: dict[str, ReleaseEvidence] = {}
        self._judged: set[str] = set()  # releases with a monitor
        self._unsaved: set[str] = set()
        self._batch_ids: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._unsaved_batches: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._flushing = asyncio.Lock()
        self._is_away = False  # the journal, at the last write
        self._saving: asyncio.Task[None] | None = None
        self._counting = asyncio.Lock()  # one count of devices at a time: it takes a core for a while

    async def start(self) -> Self:
        """Load the journalled evidence, and journal it from now on."""
        if self._saving is not None:
            raise RuntimeError("the monitor is started already")
        for release_id, plain in (await self._journal.evidence()).items():
            evidence = self._evidence[release_id] = ReleaseEvidence.from_plain(plain)
            if evidence.monitor is not None:
                evidence.monitor.join = self._join
                self._judged.add(release_id)
        self._batch_ids = OrderedDict.fromkeys(await self._journal.batches())
        self._saving = asyncio.create_task(self._save_periodically(), name="monitor evidence")
        return self

    async def close(self) -> None:
        """Journal the evidence and stop. A second call saves what the first could not, and else does nothing.

        Raises:
            StateError: the evidence could not be saved.
        """
        saving, self._saving = self._saving, None
        try:
            if saving is not None:
                saving.cancel()
                await asyncio.gather(saving, return_exceptions=True)  # a write that was begun is ended
            if self._group is not None:
                await self._group
        finally:
            await self.flush()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _save_periodically(self) -> None:
        while True:
            await self._clock.sleep(self._flush_s)
            await self._tick()
            try:
                await self.flush()
            except LeaseLostError as error:
                _LOG.warning("the monitor's evidence is not saved: %s", error)
            except StateError as error:
                if not error.may_pass:
                    _LOG.exception("the monitor's evidence could not be saved; trying again")

    async def flush(self) -> None:
        """Journal changed evidence, with the reports that it counts: after a crash, they are known to be counted.

        What another call is journalling is journalled when this one returns.
        """
        async with self._flushing:
            unsaved, self._unsaved = self._unsaved, set()
            batches = list(self._unsaved_batches)
            if not unsaved:
                return
            for release_id in unsaved:
                self._evidence[release_id].note(self._clock.time())
            evidence = {one: self._evidence[one].to_plain() for one in unsaved}
            try:
                await self._journal.save_evidence(evidence, batches, keep=self.MAX_BATCH_IDS)
            except BaseException as error:
                self._is_away = isinstance(error, StateError) and error.may_pass
                self._unsaved |= unsaved
                while len(self._unsaved_batches) > self.MAX_BATCH_IDS:
                    self._unsaved_batches.popitem(last=False)
                raise
            self._is_away = False
            for one in batches:
                self._unsaved_batches.pop(one, None)

    async def _tick(self) -> None:
        """Count the devices whose first runs have settled."""
        now_s = self._clock.time()
        for release_id in list(self._judged):
            evidence = self._evidence[release_id]
            try:
                if evidence.monitor is not None and evidence.monitor.tick(now_s):
                    self._unsaved.add(release_id)
                    await self._deliver(release_id, evidence)
                elif evidence.has_due_tests(now_s):
                    self._unsaved.add(release_id)
            except Exception:  # noqa: BLE001 - of one release: the others are judged, and all evidence is saved
                _LOG.exception("the evidence on release %s could not be judged; trying again", release_id)

    async def watch(self, step: Step) -> None:
        """Judge the release's reports from now on as evidence on `step`.

        Where that step is judged already, its evidence is kept, and its verdict, if any, is delivered again.
        """
        release_id = step.release
        evidence = self._evidence.setdefault(release_id, ReleaseEvidence())
        evidence.stage = step.stage
        evidence.states.limit(step.state_max_bytes)
        self._judged.add(release_id)
        if evidence.monitor is None:
            evidence.monitor = Monitor(step)
            evidence.monitor.join = self._join
        else:
            evidence.monitor.begin(step)
        evidence.delivered = Verdict.CONTINUE
        self._unsaved.add(release_id)
        await self._deliver(release_id, evidence)

    async def unwatch(self, release_id: str) -> None:
        """Stop judging the release; continue counting."""
        evidence = self._evidence.setdefault(release_id, ReleaseEvidence())
        if evidence.monitor is not None:
            evidence.ended = evidence.monitor.evidence()
        evidence.stage, evidence.monitor, evidence.delivered = "", None, Verdict.CONTINUE
        self._judged.discard(release_id)
        self._unsaved.add(release_id)

    async def take(self, batch: OutcomeBatch) -> int | None:
        """Count a report; one that was counted recently is ignored. With `group_s`, return once it is journalled.

        What is returned is after how many seconds the device is to report again, 0 for its choice, None for nothing.

        Raises:
            StateError: with `group_s`, the report is counted and the journal's database is away: the device is to
                send it again, since it would be lost with this process.
        """
        await self._reach_journal()
        touched = self._count(batch, self._clock.time())
        await self._judge(touched)
        await self._journalled([batch])
        if self._pace is None:
            return None
        return 0 if self._is_awaited(batch) else self._pace.interval_s

    async def take_reports(self, batches: Sequence[OutcomeBatch]) -> ReportsTaken:
        """Count reports as `take` does, and journal them together. One that cannot be counted costs no other.

        Raises:
            StateError: as `take`, for all of them.
        """
        await self._reach_journal()
        now_s = self._clock.time()
        touched: set[str] = set()
        failed = set()
        for number, batch in enumerate(batches):
            try:
                touched |= self._count(batch, now_s)
            except Exception:  # noqa: BLE001 - of one device: the reports of others count
                _LOG.exception("a report of device %s could not be counted", printable(batch.device_id[:80]))
                failed.add(number)
        await self._judge(touched)
        await self._journalled(batches)
        if self._pace is None:
            return ReportsTaken(frozenset(failed))
        awaited = frozenset(number for number, batch in enumerate(batches) if self._is_awaited(batch))
        return ReportsTaken(frozenset(failed), self._pace.interval_s, awaited)

    async def _reach_journal(self) -> None:
        """Try to write what is unsaved, where the journal was away at the last write.

        A report that was counted while the journal is away is refused, and sent again: of thousands a second, its id
        would be forgotten by then, and it would count twice. So nothing is counted until the journal is back.

        Raises:
            StateError: it is still away.
        """
        if self._is_away and self._group_s is not None:
            try:
                await self.flush()
            except StateError as error:
                if error.may_pass:
                    raise

    def _is_awaited(self, batch: OutcomeBatch) -> bool:
        """Return whether a release waits for this device by name, or for its runs, as in a trial: they are few."""
        for release_id in self._judged:
            monitor = self._evidence[release_id].monitor
            if monitor is None:
                continue
            step = monitor.step
            if batch.device_id in step.devices or batch.device_id in step.earlier_devices:
                return True
            if step.gate.trial_runs and any(one.release == release_id for one in batch.outcomes):
                return True
        return False

    def _count(self, batch: OutcomeBatch, now_s: float) -> set[str]:
        """Count a report, and return the releases of which it changed the evidence."""
        key = (batch.device_id, batch.batch_id)
        if key in self._batch_ids:
            self.duplicates += 1
            return set()
        self._batch_ids[key] = None
        if self._pace is not None:
            self._pace.note(batch.device_id)
        if len(self._batch_ids) > self.MAX_BATCH_IDS:
            self._batch_ids.popitem(last=False)  # a `dict` would scan all that went before
        if self._devices is not None:
            self._devices.take(batch)
        for alarm in batch.alarms:
            self._alarms[alarm.kind] += 1
            off_s = alarm.time_s - now_s
            device = printable(batch.device_id[:80])
            text = printable(alarm.text[:200])
            _LOG.warning("device %s: alarm %s: %s (its clock: %+.0f s)", device, alarm.kind, text, off_s)
        touched: set[str] = set()
        of_task: dict[str, list[Outcome]] = {}
        for outcome in batch.outcomes:
            of_task.setdefault(outcome.task, []).append(outcome)
            evidence = self._evidence.get(outcome.release)
            if evidence is None:
                self.strangers += bool(outcome.release)
                continue
            evidence.take(batch.device_id, outcome, now_s)
            touched.add(outcome.release)
        for release_id in self._judged:
            monitor = self._evidence[release_id].monitor
            assert monitor is not None
            outcomes = of_task.get(monitor.step.task)
            if monitor.hear({batch.device_id: None}, now_s):
                touched.add(release_id)
            if outcomes and monitor.take(batch.device_id, outcomes, batch.groups, now_s):
                touched.add(release_id)
        if touched:
            self._unsaved |= touched
            self._unsaved_batches[key] = None
        return touched

    async def _judge(self, touched: Collection[str]) -> None:
        """Deliver what follows for releases of which the evidence changed."""
        for release_id in touched:
            await self._deliver(release_id, self._evidence[release_id])

    async def _journalled(self, batches: Sequence[OutcomeBatch]) -> None:
        """Return once the reports are journalled, with `group_s`: also those that were sent and counted before.

        They are journalled together with those that come meanwhile.
        """
        waiting = any((one.device_id, one.batch_id) in self._unsaved_batches for one in batches)
        if self._group_s is None or not waiting:
            return
        if self._group is None or not self._can_join:
            self._group = asyncio.create_task(self._save_group(self._group_s), name="reports of outcomes")
            self._can_join = True
        if (error := await asyncio.shield(self._group)) is not None:
            raise error

    async def _save_group(self, group_s: float) -> StateError | None:
        """Journal the reports of some time; where that fails, they are journalled by and by, as without groups.

        Return the error of a journal whose database is away.
        """
        await self._clock.sleep(max(group_s, 9 * self._group_took_s))
        self._can_join = False
        began_s = self._clock.monotonic()
        try:
            await self.flush()
        except StateError as error:
            if error.may_pass:
                return error
            _LOG.exception("reports of outcomes could not be journalled; trying again")
        self._group_took_s = self._clock.monotonic() - began_s
        return None

    async def totals(self, release_id: str) -> Totals:
        """Return the counts of a release, zeros where it is unknown."""
        evidence = self._evidence.get(release_id)
        return evidence.totals() if evidence else Totals()

    async def totals_of(self, release_ids: Sequence[str]) -> dict[str, Totals]:
        """Return the counts of several releases, in one call."""
        return {release_id: await self.totals(release_id) for release_id in release_ids}

    async def course(self, release_id: str) -> dict[str, Any]:
        """Return the course of a release.

        It has `points` in time, `verdicts`, the evidence on which each step ended, and `tests`, as `GateCourse.shown`.
        """
        evidence = self._evidence.get(release_id)
        if evidence is None:
            return {"points": [], "verdicts": [], "tests": []}
        course = evidence.course
        return {
            "points": [point.to_plain() for point in course.points],
            "verdicts": course.verdicts,
            "tests": evidence.gate_course.shown(),
        }

    async def evidence(self, release_id: str) -> dict[str, Any]:
        """Return the evidence of the step that is or was judged last, as `Monitor.evidence`; empty where none was."""
        evidence = self._evidence.get(release_id)
        if evidence is None:
            return {}
        return evidence.monitor.evidence() if evidence.monitor else evidence.ended

    async def alarms(self) -> dict[str, int]:
        """Return how many alarms devices have reported since this start, by kind."""
        return dict(self._alarms)

    async def failures(self, release_id: str) -> tuple[list[FailureGroup], int]:
        """Return the distinct failures of a release, and the number of failures without a group."""
        evidence = self._evidence.get(release_id)
        return (evidence.failures.all(), evidence.failures.others) if evidence else ([], 0)

    # --- devices; without a registry, none is known ---

    async def note_profiles(self, profiles: Mapping[str, bytes]) -> None:
        """Take note of devices that sent profiles: the header's bytes by device."""
        now_s = self._clock.time()
        for release_id in self._judged:
            monitor = self._evidence[release_id].monitor
            if monitor is not None and monitor.hear(profiles, now_s):
                self._unsaved.add(release_id)
        if self._devices is not None:
            self._devices.note(profiles)

    async def devices(self, query: DeviceQuery) -> DevicePage:
        """Return the devices of a query."""
        if self._devices is None:
            return DevicePage(devices=(), after="", total=0, unlisted=0)
        return await self._devices.page(query)

    async def device(self, device_id: str, scenarios: frozenset[str] | None) -> KnownDevice:
        """Return a device with its tasks of these scenarios, None for all. Raises UnknownDeviceError."""
        if self._devices is None:
            raise UnknownDeviceError(device_id)
        return await self._devices.get(device_id, scenarios)

    async def device_failures(
        self, device_id: str, scenarios: frozenset[str] | None, task: str, before: int, limit: int
    ) -> list[DeviceFailure]:
        """Return failures that a device reported, as `DeviceRegistry.failures`. Raises UnknownDeviceError."""
        if self._devices is None:
            raise UnknownDeviceError(device_id)
        return await self._devices.failures(device_id, scenarios, task=task, before=before, limit=limit)

    async def attribute_keys(self) -> list[str]:
        """Return attributes that devices have, as `DeviceRegistry.attribute_keys`."""
        return [] if self._devices is None else await self._devices.attribute_keys()

    async def attribute_counts(self, query: DeviceQuery, key: str) -> list[AttributeCount]:
        """Return how many devices have each value of an attribute, as `DeviceRegistry.attribute_counts`."""
        return [] if self._devices is None else await self._devices.attribute_counts(query, key)

    async def versions(self, task: str) -> list[VersionHealth]:
        """Return the health of each version of a task, as `DeviceRegistry.versions`."""
        return [] if self._devices is None else await self._devices.versions(task)

    async def reach(self, policies: Sequence[Policy], seen_within_s: float) -> Reach:
        """Return how many devices the policies take, as `DeviceRegistry.reach`; one call at a time is at work."""
        if self._devices is None:
            return Reach(seen=0, taken=(0,) * len(policies), shared=(0,) * len(policies), is_full=False)
        async with self._counting:
            return await self._devices.reach(policies, seen_within_s)

    async def groups(self, policy: Policy, seen_within_s: float) -> TargetedGroups:
        """Return the groups of the devices that a policy takes, as `DeviceRegistry.groups`."""
        if self._devices is None:
            return TargetedGroups()
        async with self._counting:
            return await self._devices.groups(policy, seen_within_s)

    def _join(self, profile: Profile) -> Profile:
        return profile if self._uploaded is None else self._uploaded.current.join(profile)

    # --- verdicts ---

    async def _deliver(self, release_id: str, evidence: ReleaseEvidence) -> None:
        monitor = evidence.monitor
        if self.on_verdict is None or monitor is None or monitor.verdict is evidence.delivered:
            return
        if monitor.step.is_paused and monitor.verdict is not Verdict.REJECT:
            return  # `watch` delivers it when the release goes on
        before, evidence.delivered = evidence.delivered, monitor.verdict
        reason = evidence.reason() if monitor.verdict in (Verdict.REJECT, Verdict.PAUSE) else ""
        try:
            await self._journal.confirm()  # a monitor that was replaced judges no more
            if monitor.verdict is not Verdict.CONTINUE:
                stage, verdict, numbers = evidence.stage, monitor.verdict, monitor.evidence()
                await self._audit.record(
                    f"gate.{verdict.value}",
                    who="monitor",
                    subject=release_id,
                    details={"stage": stage, "reason": reason, **numbers},
                    must=verdict is Verdict.ACCEPT,
                )
                evidence.course.end_step(stage, verdict.value, reason, self._clock.time(), numbers)
                evidence.note_tests(self._clock.time(), numbers)
                self._unsaved.add(release_id)
            await self.on_verdict(release_id, evidence.stage, monitor.verdict, reason, monitor.cause)
        except Exception as error:  # noqa: BLE001 - the report was taken; its verdict is delivered again with the next one
            if evidence.monitor is monitor:
                evidence.delivered = before
            if getattr(error, "may_pass", False):
                return
            _LOG.exception("the verdict %s on release %s was not delivered", monitor.verdict, release_id)
