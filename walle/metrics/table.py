"""Table of the metrics of a cloud: the name, type, unit, labels and meaning of each.

Every metric is made by `counter`, `gauge` or `histogram` with a name of this table, and its page in docs is written
from it. Names follow Prometheus' conventions: base units, `_total` for counters, `_timestamp_seconds` for times since
the Unix epoch. Values of labels are bounded: no metric has a device's id.
"""

import dataclasses
import enum
from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

UNITS = ("seconds", "bytes", "ratio", "uploads", "devices", "requests")
FURTHER_GATEWAYS = "Further gateways"  # the part that `walle cloud gateway` alone has
DATABASE = "Database"  # the part that a cloud with its state in PostgreSQL has
EDGE_GATEWAYS = "Edge gateways"  # the part that edge gateways alone have
MAX_RELEASES = 500  # releases with series of their own
MAX_SCENARIOS = 200
TEST_NAMES = (  # tests of a gate
    "failed runs",
    "broken devices",
    "guards are broken",
    "groups of devices",
    "hindered devices",
    "silent devices",
    "runs are good",
    "few devices are broken",
    "guards hold",
)


class MetricType(enum.StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclasses.dataclass(frozen=True)
class MetricInfo:
    """One metric. `labels` says for each label which values it has; `part` is what of the cloud it is about."""

    part: str
    type: MetricType
    name: str
    help: str
    labels: Mapping[str, str]

    @property
    def unit(self) -> str:
        """Return the unit in the name, "timestamp" for a time since the epoch, or "" for a number without one."""
        name = self.name.removesuffix("_total")
        if name.endswith("_timestamp_seconds"):
            return "timestamp"
        return next((unit for unit in UNITS if name.endswith(f"_{unit}")), "")


type _Row = tuple[MetricType, str, str] | tuple[MetricType, str, str, Mapping[str, str]]


def _part(part: str, *rows: _Row) -> list[MetricInfo]:
    return [MetricInfo(part, row[0], f"walle_{row[1]}", row[2], row[3] if len(row) == 4 else {}) for row in rows]


_COUNTER, _GAUGE, _HISTOGRAM = MetricType
_OF_RELEASE = {"release": f"ids of releases, at most {MAX_RELEASES}", "task": "scenario/task"}
_GUARD = {"guard": "guards of the release, as it was started with them"}
_TEST = {"test": ", ".join(TEST_NAMES), "does": "rolls back, pauses, accepts"}
_TOPIC = {"topic": "the 500 largest topics, `*` for all others"}
_VERSION = {"version": "task and version, the 200 that were asked for last"}

_ALL = [
    *_part(
        "Releases",
        (_GAUGE, "releases", "Releases by state", {"state": "states of a release"}),
        (_COUNTER, "releases_ended", "Releases that ended without being full", {"result": "rolled_back, failed"}),
        (
            _GAUGE,
            "release_info",
            "1 for each release that is under way, bakes, or is the latest full one of its task",
            {**_OF_RELEASE, "version": "such as v3", "state": "states of a release", "stage": "such as gray 0.25"},
        ),
        (
            _GAUGE,
            "release_step",
            "Step: 0 before the beta, 1 in it, from 2 on the steps of the percentage rollout, then full",
            _OF_RELEASE,
        ),
        (_GAUGE, "release_coverage_ratio", "Share of the devices of its policy to which it is rolled out", _OF_RELEASE),
        (
            _GAUGE,
            "release_changed_timestamp_seconds",
            "Time of the release's last change of state or step",
            _OF_RELEASE,
        ),
        (
            _GAUGE,
            "release_heard_timestamp_seconds",
            "Time at which a further device last counted at the step that is judged",
            _OF_RELEASE,
        ),
        (
            _GAUGE,
            "release_stage_devices",
            "Devices that count at the step that is judged",
            {**_OF_RELEASE, "kind": "sound, broken, control (with the version before)"},
        ),
        (
            _GAUGE,
            "release_failing_ratio",
            "Share of broken devices among those that count at the step that is judged",
            _OF_RELEASE,
        ),
        (
            _GAUGE,
            "release_verdict",
            "1 for the present verdict of the gate and its reason",
            {
                **_OF_RELEASE,
                "verdict": "continue, accept, reject, pause",
                "cause": "none, test, group, guard, silent (devices), silence, inconclusive, or the class of failure: "
                "device, network, cloud",
            },
        ),
        (
            _GAUGE,
            "release_test_evidence",
            "Value of each test of the step that is judged, a logarithm: it decides at its boundary; at most 10 s old",
            {**_OF_RELEASE, **_TEST},
        ),
        (
            _GAUGE,
            "release_test_boundary",
            "Value at which each test of the step that is judged decides, a logarithm",
            {**_OF_RELEASE, **_TEST},
        ),
        (
            _GAUGE,
            "release_devices",
            "Devices that reported this of the release",
            {**_OF_RELEASE, "what": "installed, rejected, reverted, removed"},
        ),
        (
            _GAUGE,
            "release_hindered_devices",
            "Devices that could not install the release's version, by what is at fault",
            {**_OF_RELEASE, "at_fault": "device, network, cloud"},
        ),
        (
            _COUNTER,
            "release_executions",
            "Executions reported for the release",
            {**_OF_RELEASE, "result": "ok, failed"},
        ),
        (
            _COUNTER,
            "release_dropped",
            "What devices dropped for want of room, as they reported it for the release",
            {
                **_OF_RELEASE,
                "what": (
                    "triggers (that gave no run), uploads (outputs that are stored on the device alone),"
                    " entries (of ctx.state, evicted at its bound)"
                ),
            },
        ),
        (
            _GAUGE,
            "release_state_bytes",
            "Largest state of the task (ctx.state) that a device reported for the release",
            _OF_RELEASE,
        ),
        (_GAUGE, "release_state_limit_bytes", "Bound of that state, max_bytes in task.toml", _OF_RELEASE),
        (
            _COUNTER,
            "release_states_refused",
            "Reports of a state beyond its bound, ignored: they are false, or an older version's state is kept",
            _OF_RELEASE,
        ),
        (
            _GAUGE,
            "release_guard_median",
            "Median over the latest devices of the number that a guard of the release is on, in its unit",
            {**_OF_RELEASE, **_GUARD, "version": "new, control (the version before)"},
        ),
        (
            _GAUGE,
            "release_guard_state",
            "1 for the present state of a guard of the release",
            {**_OF_RELEASE, **_GUARD, "state": "states of a guard"},
        ),
    ),
    *_part(
        "Push answers",
        (
            _COUNTER,
            "profiles",
            "Profiles checked by this gateway",
            {"kind": "repeated, fresh, broken, foreign (of another device), asked (for parts)"},
        ),
        (_COUNTER, "profiles_answered", "Fresh profiles that were answered with directives"),
        (_GAUGE, "table_generation", "Generation of this gateway's release table"),
        (_GAUGE, "table_issued_timestamp_seconds", "Time at which the timestamp of this gateway's answers was signed"),
        (
            _GAUGE,
            "table_expires_timestamp_seconds",
            "Time after which devices install nothing new from this gateway, as its timestamp has expired",
        ),
        (
            _COUNTER,
            "sightings",
            "Devices that further gateways saw, and reported to this one",
            {"kind": "taken, refused"},
        ),
        (_COUNTER, "pulls", "Pulls by the gateway's pull budget", {"kind": "admitted, delayed"}),
        (
            _COUNTER,
            "device_alarms",
            "Alarms that devices reported of answers and clocks",
            {"kind": "kinds of alarm"},
        ),
    ),
    *_part(
        FURTHER_GATEWAYS,
        (_GAUGE, "table_late_seconds", "Time since the cloud has answered about its table"),
        (_COUNTER, "reported_devices", "Devices that were seen", {"kind": "reported, refused, lost (never reported)"}),
    ),
    *_part(
        EDGE_GATEWAYS,
        (_COUNTER, "edge_passed", "Answers of the gateway that were passed back", {"status": "2xx and so on"}),
        (_COUNTER, "edge_held", "Requests that waited for the gateway"),
        (_GAUGE, "edge_waiting_requests", "Requests that wait for the gateway now"),
        (
            _COUNTER,
            "edge_refused",
            "Requests that were not passed on, or only in part",
            {"reason": "away (the gateway), cut (within its answer), gone (the client), invalid"},
        ),
        (
            _COUNTER,
            "edge_reports",
            "Reports of outcomes that went to the monitor",
            {"result": "taken, failed (the device sends it again), refused (too many waited)"},
        ),
        (_COUNTER, "edge_report_calls", "Calls of the monitor, each with several reports"),
        (_GAUGE, "edge_waiting_reports", "Reports that wait for the monitor now"),
        (
            _GAUGE,
            "edge_report_interval_seconds",
            "Interval between reports that the gateway asks devices for, 0 for none",
        ),
    ),
    *_part(
        "HTTP",
        (_GAUGE, "http_connections", "Connections of HTTP"),
        (_GAUGE, "http_connections_limit", "Connections of HTTP at most"),
        (_COUNTER, "http_refused", "Requests and connections that a limit ended", {"kind": "limits of HTTP"}),
        (
            _HISTOGRAM,
            "http_duration_seconds",
            "Time from a request's head to the end of its answer; streams of events are not in it",
            {"route": "api, business, cdn, cen, git, identity, outcomes, pages, push, refused, watch"},
        ),
    ),
    *_part(
        "Tunnel",
        (_GAUGE, "tunnel_pump_up", "1 while uploads are stored, 0 while they are not"),
        (_GAUGE, "tunnel_queue_uploads", "Uploads that wait to be stored"),
        (_GAUGE, "tunnel_lag_seconds", "Age of the oldest upload that is not stored, and so not acknowledged"),
        (_GAUGE, "tunnel_open_connections", "Connections of devices that are open"),
        (_GAUGE, "tunnel_processes", "Tunnel processes that run"),
        (_GAUGE, "tunnel_servers", "Tunnel servers among which the devices are divided"),
        (
            _GAUGE,
            "tunnel_server_connections",
            "Connections of devices by tunnel server",
            {"server": "such as tunnel-1f2e3d4c-0"},
        ),
        (_COUNTER, "tunnel_servers_lost", "Tunnel servers that stopped reporting"),
        (_COUNTER, "tunnel_sent_on", "Connections of devices that a tunnel server sent to the device's own"),
        (_GAUGE, "tunnel_waiting_devices", "Devices whose uploads wait to be stored"),
        (
            _GAUGE,
            "tunnel_held_back",
            "Connections that are not read until there is room",
            {"for": "queue: of uploads; memory: for bytes that are received and not processed"},
        ),
        (_GAUGE, "tunnel_held_bytes", "Bytes held for devices", {"account": "buffered, requests, uploads"}),
        (_COUNTER, "tunnel_connections", "Connections of devices that were accepted"),
        (_COUNTER, "tunnel_uploads", "Uploads that were received"),
        (_COUNTER, "tunnel_duplicates", "Uploads that were received again and dropped"),
        (_COUNTER, "tunnel_requests", "Requests of devices"),
        (_COUNTER, "tunnel_failed_requests", "Requests that were answered with an error"),
        (_COUNTER, "tunnel_expired_requests", "Requests whose deadline passed before their answer"),
        (_COUNTER, "tunnel_cancelled_requests", "Requests that devices cancelled"),
        (_COUNTER, "tunnel_resumed", "Connections whose TLS session was resumed"),
        (_COUNTER, "tunnel_queue_wait_seconds", "Time that uploads waited until their turn to be stored, together"),
        (_COUNTER, "tunnel_pauses", "Times that a connection was not read until there was room"),
        (_COUNTER, "tunnel_slowed", "Times that a device was read slowly, since many of its requests were refused"),
        (
            _COUNTER,
            "tunnel_foreign_uploads",
            "Uploads, not stored, of tasks that no release gave their device",
        ),
        (_COUNTER, "tunnel_received_bytes", "Bytes received from devices"),
        (_COUNTER, "tunnel_sent_bytes", "Bytes sent to devices"),
        (_COUNTER, "tunnel_stored", "New uploads that were stored"),
        (_COUNTER, "tunnel_commits", "Batches of uploads that were stored, each in one transaction"),
        (_COUNTER, "tunnel_pump_failures", "Failures to store uploads"),
        (_COUNTER, "tunnel_hangs", "Tunnel processes that were killed because they did not report"),
        (_COUNTER, "tunnel_restarts", "Tunnel processes that ended and were started again"),
        (
            _COUNTER,
            "tunnel_refusals",
            "Connections refused or closed",
            {"reason": "codes of a refusal; quota: the device has used its share of the store"},
        ),
    ),
    *_part(
        "Uploads",
        (
            _HISTOGRAM,
            "upload_delay_seconds",
            "Time from an output, by the device's clock, to its receipt; a clock that is ahead counts as 0",
        ),
        (_GAUGE, "uploads_stored", "Uploads that are stored", _TOPIC),
        (_GAUGE, "uploads_bytes", "Payload bytes that are stored", _TOPIC),
        (_GAUGE, "uploads_refused", "Uploads that the database refuses for their contents, in the quarantine"),
        (
            _GAUGE,
            "uploads_log_bytes",
            "Bytes of the write-ahead log of uploads.db; it grows while a program reads in one go",
        ),
        (_COUNTER, "uploads_deleted", "Uploads deleted by retention", _TOPIC),
        (_COUNTER, "uploads_deleted_bytes", "Payload bytes deleted by retention", _TOPIC),
        (_COUNTER, "uploads_retention_failures", "Failures to delete old uploads"),
        (_COUNTER, "uploads_deleted_unconsumed", "Uploads deleted by retention before a consumer group committed them"),
        (
            _GAUGE,
            "consumer_lag_uploads",
            "Uploads after a group's least committed position",
            {"group": "consumer groups"},
        ),
        (
            _GAUGE,
            "consumer_lag_seconds",
            "Age of the oldest upload that a group has not committed",
            {"group": "consumer groups"},
        ),
        (
            _COUNTER,
            "lost_uploads",
            "Uploads that are lost or may have arrived twice; a loss whose end is unknown counts one",
            {"cause": "causes of a loss"},
        ),
        (_COUNTER, "loss_reports", "Recorded losses, each a range of uploads", {"cause": "causes of a loss"}),
        (
            _COUNTER,
            "loss_open_reports",
            "Recorded losses whose end is unknown: the lost uploads of the cause are at least those counted",
            {"cause": "causes of a loss"},
        ),
    ),
    *_part(
        "Fallback inference",
        (_GAUGE, "inference_process_up", "Whether a process can be reached", {"process": "numbers from 0"}),
        (_GAUGE, "inference_process_batches", "Batches that a process runs", {"process": "numbers from 0"}),
        (
            _GAUGE,
            "inference_loaded_vms",
            "VMs that have a version loaded",
            {"process": "numbers from 0", "version": "task and version"},
        ),
        (
            _GAUGE,
            "inference_loaded_bytes",
            "Bytes of the files that they have loaded",
            {"process": "numbers from 0", "version": "task and version"},
        ),
        (_GAUGE, "inference_queue_requests", "Requests that wait for a replica", _VERSION),
        (_GAUGE, "inference_running_batches", "Batches that run", _VERSION),
        (_COUNTER, "inference_requests", "Requests of devices to run a phase", _VERSION),
        (_COUNTER, "inference_failed", "Requests that were accepted and got an error", _VERSION),
        (_COUNTER, "inference_repeated", "Requests that ran again because their replica was lost", _VERSION),
        (_COUNTER, "inference_cancelled", "Requests that devices cancelled before their result", _VERSION),
        (
            _COUNTER,
            "inference_refused",
            "Requests without a result",
            {**_VERSION, "reason": "queue, share, wait, expired, down"},
        ),
        (_COUNTER, "inference_lost_processes", "Processes that ended or could not be reached"),
        (
            _COUNTER,
            "inference_loads",
            "Versions to be loaded before a device asks",
            {"result": "loaded, room, failed"},
        ),
        (
            _COUNTER,
            "inference_discarded_interpreters",
            "Interpreters that were discarded, because what a version did in them could not be undone",
            {"version": "task and version, the 200 latest, `*` for all others"},
        ),
        (_HISTOGRAM, "inference_batch_requests", "Requests of a batch", _VERSION),
        (_HISTOGRAM, "inference_wait_seconds", "Time from a request's arrival to the start of its batch", _VERSION),
        (_HISTOGRAM, "inference_latency_seconds", "Time from a request's arrival to its result", _VERSION),
    ),
    *_part(
        "Identities",
        (_COUNTER, "device_sessions", "Session tokens of devices by result", {"kind": "verified, refused"}),
        (_GAUGE, "devices_revoked", "Devices of which a key is revoked"),
        (_GAUGE, "tokens", "Tokens of people and programs"),
    ),
    *_part(
        "Traces",
        (_COUNTER, "trace_spans_exported", "Spans that the receiver of traces accepted"),
        (
            _COUNTER,
            "trace_spans_dropped",
            "Spans that were lost",
            {"cause": "device (more than its share of a minute), queue (it was full), export (receiver refused)"},
        ),
        (_GAUGE, "trace_queue_spans", "Spans that wait to be sent"),
    ),
    *_part(
        "Disk",
        (_GAUGE, "disk_free_bytes", "Free space of the cloud's disk"),
        (_GAUGE, "disk_size_bytes", "Size of the cloud's disk"),
        (_GAUGE, "disk_reserve_bytes", "Free space below which pushes and new releases are refused"),
        (
            _GAUGE,
            "git_bytes",
            "Objects of a scenario's git repository on the disk",
            {"scenario": f"the {MAX_SCENARIOS} with the largest repositories, `*` for all others"},
        ),
        (_GAUGE, "git_limit_bytes", "The most that such a repository may have"),
        (_COUNTER, "git_freed_bytes", "Bytes that repacking has freed: objects to which no branch or version led"),
        (_GAUGE, "git_repack_errors", "Repositories that could not be repacked"),
        (_GAUGE, "stored_file_faults", "Stored files of releases that are damaged or missing"),
        (_COUNTER, "stored_file_repairs", "Stored files that were repaired, since the cloud was made"),
        (_GAUGE, "stored_file_checked_bytes", "Bytes that the present pass has checked"),
        (_GAUGE, "stored_file_last_pass_timestamp_seconds", "End of the last complete pass"),
        (_GAUGE, "audit_head_records", "Number of the record at the last signed head of the audit log"),
        (_GAUGE, "audit_head_timestamp_seconds", "Time of the last signed head of the audit log"),
    ),
    *_part(
        DATABASE,
        (_GAUGE, "database_up", "1 while the database with the cloud's state answers, 0 while it does not"),
        (_GAUGE, "database_answer_seconds", "Time of its last answer"),
        (_COUNTER, "database_outages", "Times that it stopped answering"),
    ),
]


def _public_name(metric: MetricInfo) -> str:
    return f"{metric.name}_total" if metric.type is MetricType.COUNTER else metric.name


METRICS: Mapping[str, MetricInfo] = {
    one.name: one for one in (dataclasses.replace(metric, name=_public_name(metric)) for metric in _ALL)
}


def counter(name: str) -> CounterMetricFamily:
    """Return the counter of that name, with `_total`, without values. Raises KeyError for one not in the table."""
    info = _of(name, MetricType.COUNTER)
    return CounterMetricFamily(name, info.help, labels=list(info.labels))


def gauge(name: str) -> GaugeMetricFamily:
    """Return the gauge of that name, without values. Raises KeyError for one not in the table."""
    info = _of(name, MetricType.GAUGE)
    return GaugeMetricFamily(name, info.help, labels=list(info.labels))


def histogram(name: str) -> HistogramMetricFamily:
    """Return the histogram of that name, without values. Raises KeyError for one not in the table."""
    info = _of(name, MetricType.HISTOGRAM)
    return HistogramMetricFamily(name, info.help, labels=list(info.labels))


def gauge_of(name: str, value: float) -> GaugeMetricFamily:
    """Return a gauge without labels that has the value."""
    family = gauge(name)
    family.add_metric([], value)
    return family


def counter_of(name: str, value: float) -> CounterMetricFamily:
    """Return a counter without labels that has the value."""
    family = counter(name)
    family.add_metric([], value)
    return family


def _of(name: str, kind: MetricType) -> MetricInfo:
    info = METRICS[name]
    if info.type is not kind:
        raise KeyError(f"{name} is a {info.type}, not a {kind}")
    return info
