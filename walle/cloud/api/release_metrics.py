"""Metrics of releases, push answers and the alarms of devices, for one scrape."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from walle.deploy.monitor.release_evidence import Totals
from walle.deploy.push.answerer import Answerer
from walle.deploy.releases.release import Release, ReleaseOverview, ReleaseState
from walle.metrics.table import counter, counter_of, gauge, gauge_of
from walle.protocol import ProtocolError, Timestamp

_CAUSES = ("silence", "silent", "inconclusive", "group", "guard", "device", "network", "cloud")


def release_metrics(overview: ReleaseOverview, totals: Mapping[str, Totals]) -> list[Metric]:
    """Return the metrics of releases. Only those in use have their own series, so that their number is bounded."""
    states = gauge("walle_releases")
    for state, count in overview.counts.items():
        states.add_metric([state.value], count)
    ended = counter("walle_releases_ended_total")
    for state in (ReleaseState.ROLLED_BACK, ReleaseState.FAILED):
        ended.add_metric([state.value], overview.counts[state])
    shown = [(release, totals.get(release.id, Totals())) for release in overview.in_use]
    return [states, ended, *_states(overview.in_use), *_evidence(shown), *_counts(shown)]


def _states(releases: tuple[Release, ...]) -> Iterator[Metric]:
    info = gauge("walle_release_info")
    step = gauge("walle_release_step")
    coverage = gauge("walle_release_coverage_ratio")
    changed = gauge("walle_release_changed_timestamp_seconds")
    for release in releases:
        labels = [release.id, release.request.name]
        info.add_metric([*labels, release.request.version, release.state.value, release.stage], 1)
        step.add_metric(labels, _step(release))
        coverage.add_metric(labels, _coverage(release))
        changed.add_metric(labels, release.updated_s)
    yield from (info, step, coverage, changed)


def _step(release: Release) -> int:
    state = release.resumes or release.state
    if state is ReleaseState.FULL:
        return 2 + len(release.request.steps)
    return {ReleaseState.BETA: 1, ReleaseState.GRAY: 2 + release.step}.get(state, 0)


def _coverage(release: Release) -> float:
    if release.state is ReleaseState.FULL:
        return 1.0
    admission = release.admission
    return admission.share if admission is not None else 0.0


def _evidence(shown: list[tuple[Release, Totals]]) -> Iterator[Metric]:
    heard = gauge("walle_release_heard_timestamp_seconds")
    devices = gauge("walle_release_stage_devices")
    failing = gauge("walle_release_failing_ratio")
    verdict = gauge("walle_release_verdict")
    evidence = gauge("walle_release_test_evidence")
    boundary = gauge("walle_release_test_boundary")
    for release, totals in shown:
        if not totals.verdict:
            continue
        labels = [release.id, release.request.name]
        if totals.heard_s:
            heard.add_metric(labels, totals.heard_s)
        devices.add_metric([*labels, "sound"], totals.stage_devices - totals.stage_broken)
        devices.add_metric([*labels, "broken"], totals.stage_broken)
        devices.add_metric([*labels, "control"], totals.control_devices)
        if totals.stage_devices:
            failing.add_metric(labels, totals.stage_broken / totals.stage_devices)
        verdict.add_metric([*labels, totals.verdict, _cause(release.cause or totals.cause, totals.verdict)], 1)
        for test in totals.tests:
            evidence.add_metric([*labels, test.name, test.does], test.value)
            boundary.add_metric([*labels, test.name, test.does], test.limit)
    yield from (heard, devices, failing, verdict, evidence, boundary)


def _cause(cause: str, verdict: str) -> str:
    """Return the kind of a verdict's cause, without the names of stages and groups in it."""
    if not cause:
        return "test" if verdict == "reject" else "none"
    kind = cause.removeprefix("unreported ").partition(" ")[0]
    return kind if kind in _CAUSES else "test"


def _counts(shown: list[tuple[Release, Totals]]) -> Iterator[Metric]:
    devices = gauge("walle_release_devices")
    hindered = gauge("walle_release_hindered_devices")
    executions = counter("walle_release_executions_total")
    dropped = counter("walle_release_dropped_total")
    states = gauge("walle_release_state_bytes")
    bounds = gauge("walle_release_state_limit_bytes")
    refused = counter("walle_release_states_refused_total")
    guarded = gauge("walle_release_guard_median")
    guards = gauge("walle_release_guard_state")
    for release, totals in shown:
        labels = [release.id, release.request.name]
        for what in ("installed", "rejected", "reverted", "removed"):
            devices.add_metric([*labels, what], getattr(totals, what))
        for what, count in totals.hindered.items():
            hindered.add_metric([*labels, what], count)
        for result in ("ok", "failed"):
            executions.add_metric([*labels, result], getattr(totals, result))
        dropped.add_metric([*labels, "triggers"], totals.dropped)
        dropped.add_metric([*labels, "uploads"], totals.uploads_dropped)
        dropped.add_metric([*labels, "entries"], totals.entries_evicted)
        if totals.state_max_bytes:
            states.add_metric(labels, totals.state_bytes)
            bounds.add_metric(labels, totals.state_max_bytes)
        refused.add_metric(labels, totals.states_refused)
        for guard in totals.guards:
            guards.add_metric([*labels, guard["guard"], guard["state"]], 1)
            for version in ("new", "control"):
                if guard[version] is not None:
                    guarded.add_metric([*labels, guard["guard"], version], guard[version])
    yield from (devices, hindered, executions, dropped, states, bounds, refused, guarded, guards)


def push_metrics(answerer: Answerer) -> list[Metric]:
    """Return the metrics of a gateway's push answers."""
    profiles = counter("walle_profiles_total")
    for kind in ("repeated", "fresh", "broken", "foreign", "asked"):
        profiles.add_metric([kind], getattr(answerer, kind))
    issued = gauge("walle_table_issued_timestamp_seconds")
    expires = gauge("walle_table_expires_timestamp_seconds")
    try:
        timestamp = Timestamp.from_header(answerer.table.timestamp)
    except ProtocolError:
        pass  # before the first table, there is none
    else:
        issued.add_metric([], timestamp.time_s)
        expires.add_metric([], timestamp.expires_s)
    answered = counter_of("walle_profiles_answered_total", answerer.answered)
    return [profiles, answered, gauge_of("walle_table_generation", answerer.table.generation), issued, expires]


def alarm_metrics(alarms: Mapping[str, int]) -> list[Metric]:
    """Return the metrics of the alarms that devices reported."""
    found = counter("walle_device_alarms_total")
    for kind, count in alarms.items():
        found.add_metric([kind], count)
    return [found]
