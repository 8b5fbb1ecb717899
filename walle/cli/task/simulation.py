"""`walle task simulate`: a task on this machine, as the cloud runs it before it releases it."""

import asyncio
import collections
import dataclasses
import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from walle.cli.output import JsonFlag, emit, working
from walle.cli.task.modules import ModulesOption, read_version
from walle.errors import WalleError

if TYPE_CHECKING:
    from walle.cloud.simulation.simulation import SimulatedRun
    from walle.deploy.fleet.device_group import DeviceGroup
    from walle.deploy.releases.simulated_fault import SimulatedFault
    from walle.deploy.releases.simulation_result import SimulationResult
    from walle.pipeline.events.event_log import EventLog, LineReport
    from walle.pipeline.features.put import Put
    from walle.task.format.bundle import TaskVersion
    from walle.task.run.event_play import Until
    from walle.task.run.log import LogLine

_MAX_LOG_LINES = 1_000  # lines of a simulation's log in its report
_SHOWN_LOG_LINES = 20  # log lines shown as text
_MAX_RESULTS = 1_000  # runs in the report; failed ones are always in it
_MAX_RESULT_BYTES = 16 << 20  # size of all outputs and puts in the report, as JSON, about
_MAX_VALUE_CHARS = 2_000  # characters of an output shown as text
_SHOWN_SKIPPED = 5  # lines, in text
_USERS = 20  # DEFAULT_USERS of the cloud's simulation, walle.cloud.simulation.simulation
_NUMBER_BYTES = 20  # size of a float in JSON, with the comma


def simulate(
    folder: Annotated[Path, typer.Argument(help="The task's folder: task.toml, main.py and what they need.")],
    events: Annotated[
        Path | None, typer.Option(help="Play this event log instead of the task's own simulation events.")
    ] = None,
    mapping: Annotated[Path | None, typer.Option(help="A TOML file that maps the log's columns to events.")] = None,
    limit: Annotated[int, typer.Option(help="How many events of the log to play at most.", min=1)] = 20_000,
    users: Annotated[
        int, typer.Option(help="How many users of the log to play at most, each on a separate device.", min=1)
    ] = _USERS,
    until: Annotated[
        str,
        typer.Option(
            help="Let time pass to this moment after the last event: +30m, 2026-11-22T10:00, or milliseconds since the"
            " epoch. Without it each timer is due once."
        ),
    ] = "",
    app_version: Annotated[str, typer.Option(help="Play on one device of this app version.")] = "",
    os: Annotated[str, typer.Option("--os", help="Play on one device of this system, such as android.")] = "",
    show: Annotated[bool, typer.Option("--show", help="Show the output of each run.")] = False,
    modules: ModulesOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a task on this machine as the cloud does before it releases it.

    The task is compiled, signed with a temporary key, laid out as on a device, and run in VMs on each kind of simulated
    device, or on the one that --app-version and --os name. Each user of the log (each stream) has a separate device.
    The cloud also plays them for each app version and system of the devices that a release is for. The
    report has what it puts out (--show), logs and prints, its faults, each with the first event and its line in the
    log, which lines were skipped and why, and the time of its phases, without the start of VMs and loading. After the
    last event of each device time passes, so that the timers of [trigger] are due; the report counts those that still
    run at the end.

    Exit status: 0 if it passed; 1 if a run failed, it does not load, no event triggered it, or the task or the log
    cannot be read; 2 for wrong usage. After 10 failed runs it stops, as the cloud does.
    """
    if mapping is not None and events is None:
        raise typer.BadParameter("says how to read a log; name the log with --events", param_hint="--mapping")
    from walle.deploy.fleet.device_group import DeviceGroup

    version = read_version(folder, modules)
    task = version.tree.task
    with working(f"simulating {task}", as_json=as_json):
        if events is not None:
            played: PlayedLog | None = read_log(events, mapping, limit)
        elif version.simulation_events is not None:
            played = own_events(folder / version.config.simulation_events, version.simulation_events)
        else:
            played = None
        end = _end_of(until, version.config.trigger.longest_ms, played)
        started_s = time.monotonic()
        record = _Record(played)
        result = asyncio.run(
            _simulate(version, played, record, DeviceGroup(app_version=app_version, os=os), users, end)
        )
        took_ms = (time.monotonic() - started_s) * 1000
    name, files = version.name, version.traced_files
    own_folder = "" if folder == Path() else str(folder)
    log_name = "" if played is None else str(played.path)
    faults = [record.with_line(one.in_sources(name, files, own_folder, log_name)) for one in result.faults]
    report = _report(task, result, played, record, took_ms, faults)
    state = version.config.state
    report["state_max_bytes"] = 0 if state is None else state.max_bytes
    emit(report, as_json=as_json, text="\n".join(_lines(report, show=show)))
    if not result.ok:
        raise typer.Exit(1)


# --- events -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PlayedLog:
    """Events for a simulation, as JSON lines in the order of play, and what was skipped of the log at `path`.

    `lines` has the line of each event in that log, 0 for the page exits at its end, and `latest_ms` is the largest time
    of an event. `reports` are the first skipped
    lines, `skipped` counts them all by fault.
    """

    path: Path
    data: bytes
    lines: tuple[int, ...]
    latest_ms: int
    skipped: Mapping[str, int]
    reports: "tuple[LineReport, ...]"
    is_cut: bool  # the log has more events than were asked for


def read_log(path: Path, mapping: Path | None, limit: int) -> PlayedLog:
    """Return the log's first events, each stream in one piece.

    Raises:
        WalleError: no event could be read; the message has the first reason.
    """
    from walle.pipeline.events.event_log import EventLog, LoggedEvent

    log = EventLog(path, mapping)
    streams: dict[str, list[LoggedEvent]] = {}
    is_cut = False
    for record in log.records():
        if log.events > limit:
            is_cut = True
            break
        streams.setdefault(record.stream, []).append(record)
    skipped = sum(log.skipped.values())
    if not streams:
        why = f"; line {log.reports[0].line}: {log.reports[0].reason}" if log.reports else ""
        raise WalleError(f"event log {path}: no event could be read; {skipped} lines were skipped{why}")
    records = [record for each in streams.values() for record in each]
    data = b"".join(
        json.dumps({"stream": record.stream, "id": str(record.position), **record.event.to_dict()}).encode() + b"\n"
        for record in records
    )
    lines = tuple(record.line for record in records)
    latest_ms = max(record.event.ts_ms for record in records)
    return PlayedLog(path, data, lines, latest_ms, _counts(log), tuple(log.reports), is_cut)


def own_events(path: Path, data: bytes) -> PlayedLog:
    """Return a task's own simulation events, which are JSON lines at `path`, unchanged and in their order."""
    from walle.pipeline.events.event_log import EventLog

    with tempfile.NamedTemporaryFile(prefix="walle-events-", suffix=".jsonl") as file:
        file.write(data)
        file.flush()
        log = EventLog(file.name)
        found = [(record.line, record.event.ts_ms) for record in log.records()]
    lines, latest_ms = tuple(line for line, _ in found), max((ts_ms for _, ts_ms in found), default=0)
    return PlayedLog(path, data, lines, latest_ms, _counts(log), tuple(log.reports), is_cut=False)


def _counts(log: "EventLog") -> dict[str, int]:
    return {fault.value: count for fault, count in log.skipped.items() if count}


def _end_of(text: str, longest_ms: int, played: PlayedLog | None) -> "Until | None":
    """Return the end that --until names, None without one."""
    from walle.cli.feature_time import parse_until
    from walle.task.run.event_play import Until

    if not text:
        return None
    until = Until(*parse_until(text))
    if not longest_ms:
        what = "[trigger] has no timer that time could trigger; leave --until out, or add one, such as idle_s"
        raise typer.BadParameter(what, param_hint="--until")
    if played is not None and not until.is_relative and until.ms < played.latest_ms:
        what = f"is before the last event of {played.path}, whose ts_ms is {played.latest_ms}"
        raise typer.BadParameter(f"{text} {what}; give a later time, or +30m", param_hint="--until")
    return until


# --- the simulation ---------------------------------------------------------------------------------------------------


class _Record:
    """Record of a simulation's runs: outputs, failures, log lines and times, as plain data of bounded size."""

    def __init__(self, played: PlayedLog | None) -> None:
        self.log: list[dict[str, Any]] = []
        self.dropped_log_lines = 0
        self.results: list[dict[str, Any]] = []
        self.dropped_results = 0
        self.result_bytes = 0
        self.left_out = {"outputs": 0, "bytes": 0}  # runs in the report whose outputs were too large for it
        self.phase_ms: collections.defaultdict[str, list[float]] = collections.defaultdict(list)
        self._lines = played.lines if played is not None else ()

    def line_of(self, position: int | None) -> int:
        """Return the line of an event in its log, 0 if it has none, and None, the time after the last event."""
        return self._lines[position] if position is not None and position < len(self._lines) else 0

    def with_line(self, fault: "SimulatedFault") -> "SimulatedFault":
        """Return the fault with the line of its event in the log as its user has it."""
        if not fault.event:
            return fault
        return dataclasses.replace(fault, event={**fault.event, "line": self.line_of(fault.event["position"])})

    def add_log(self, device: str, position: int | None, lines: "Sequence[LogLine]") -> None:
        kept = lines[: _MAX_LOG_LINES - len(self.log)]
        line = None if position is None else self.line_of(position)  # None also of a load
        where = {"device": device, "event": position, "line": line}
        self.log += [{**where, "level": one.level, "text": one.text} for one in kept]
        self.dropped_log_lines += len(lines) - len(kept)

    def add_run(self, run: "SimulatedRun") -> None:
        event, position = run.trigger.event, run.position
        result: dict[str, Any] = {
            "device": run.device,
            "user": run.user,
            "event": position,
            "line": self.line_of(position),
            "event_id": event.event_id,
            "page_id": event.page_id,
            "ok": run.failure is None,
        }
        if run.failure is not None:
            failure = dataclasses.asdict(run.failure)
            result |= {key: failure[key] for key in ("error_type", "error", "place", "traceback")}
        if run.output is not None:
            result |= self._outputs(run.output.output, run.output.puts)
            result["phase_ms"] = {phase: round(ms, 4) for phase, ms in run.output.phase_ms.items()}
            for phase, ms in run.output.phase_ms.items():
                self.phase_ms[phase].append(ms)
        if len(self.results) < _MAX_RESULTS or run.failure is not None:
            self.results.append(result)
        else:
            self.dropped_results += 1

    def _outputs(self, output: Any, puts: "Sequence[Put]") -> dict[str, Any]:
        """Return the outputs of one run for the report; their size alone where the report has no room for them."""
        from walle.base import plain

        if len(self.results) >= _MAX_RESULTS:
            return {}
        values = [(put.topic, plain.decode(put.payload)) for put in puts]
        size_bytes = _json_bytes(output) + sum(len(topic) + _json_bytes(value) for topic, value in values)
        if self.result_bytes + size_bytes > _MAX_RESULT_BYTES:
            self.left_out["outputs"] += 1
            self.left_out["bytes"] += size_bytes
            return {"left_out_bytes": size_bytes}
        self.result_bytes += size_bytes
        return {"output": _json_of(output), "puts": [(topic, _json_of(value)) for topic, value in values]}


def _json_bytes(value: Any) -> int:
    """Return about how many bytes plain data takes as JSON. It is not made: lists of an array may not fit in memory."""
    match value:
        case dict():
            return 2 + sum(len(str(key)) + 4 + _json_bytes(one) for key, one in value.items())
        case list() | tuple():
            return 2 + sum(2 + _json_bytes(one) for one in value)
        case str():
            return 2 + len(value)
        case bool() | None:
            return 5
        case int():
            return 2 + value.bit_length() // 3
        case memoryview():  # an array of a put
            return 2 + _NUMBER_BYTES * (value.nbytes // value.itemsize)
        case _ if hasattr(value, "tolist"):
            return 2 + _NUMBER_BYTES * int(value.size)
        case _:
            return _NUMBER_BYTES


def _json_of(value: Any) -> Any:
    """Return plain data as JSON has it: arrays as nested lists, bytes as their number."""
    match value:
        case dict():
            return {str(key): _json_of(one) for key, one in value.items()}
        case list() | tuple():
            return [_json_of(one) for one in value]
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return f"<{len(value)} bytes>"
        case _ if hasattr(value, "tolist"):
            return _json_of(value.tolist())
        case _:
            return str(value)


async def _simulate(
    version: "TaskVersion",
    played: PlayedLog | None,
    record: _Record,
    group: "DeviceGroup",
    users: int,
    until: "Until | None",
) -> "SimulationResult":
    from walle.cloud.simulation.simulation import DEVICE_KINDS, Simulator
    from walle.pipeline.events.event_files import EventFiles
    from walle.task.format.bundle import build_bundle
    from walle.trust.signing import Signer

    bundle = build_bundle(version, Signer.generate())
    simulator = Simulator(1, on_log=record.add_log, on_run=record.add_run)
    data = None if played is None else played.data
    kinds = [group.device] if group.app_version or group.os else DEVICE_KINDS
    files = None if played is None else EventFiles.beside(played.path)
    return await simulator.run(bundle, data, kinds, files=files, users=users, until=until)


# --- the report -------------------------------------------------------------------------------------------------------


def _report(
    task: str,
    result: "SimulationResult",
    played: PlayedLog | None,
    record: _Record,
    took_ms: float,
    faults: "Sequence[SimulatedFault]",
) -> dict[str, Any]:
    refused = [
        {"event": position, "line": record.line_of(position), "reason": reason} for position, reason in result.refused
    ]
    return {
        "task": task,
        "ok": result.ok,
        "events_file": "" if played is None else str(played.path),
        "events": result.events,
        "users": result.users,
        "other_users": result.other_users,
        "runs": result.runs,
        "timers": dict(result.timers),
        "window_evicted": result.window_evicted,
        "failures": result.failures,
        "first_error": result.first_error,
        "faults": [dataclasses.asdict(one) for one in faults],
        "stopped_early": result.is_cut,
        "cut_by_limit": played is not None and played.is_cut,
        "phases": {phase: _times(times) for phase, times in record.phase_ms.items()},
        "took_ms": round(took_ms, 1),
        "skipped_lines": 0 if played is None else sum(played.skipped.values()),
        "skipped": {} if played is None else dict(played.skipped),
        "skipped_reports": [
            {"line": one.line, "fault": one.fault.value, "reason": one.reason}
            for one in (played.reports if played is not None else ())
        ],
        "state_bytes": result.state_bytes,
        "state_entries_evicted": result.entries_evicted,
        "refused_events": refused,
        "results": record.results,
        "dropped_results": record.dropped_results,
        "left_out_outputs": record.left_out["outputs"],
        "left_out_bytes": record.left_out["bytes"],
        "log": record.log,
        "dropped_log_lines": record.dropped_log_lines,
    }


def _times(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)

    def percentile(share: float) -> float:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 4)

    return {"runs": len(ordered), "p50_ms": percentile(0.5), "p99_ms": percentile(0.99), "max_ms": percentile(1.0)}


def _lines(report: Mapping[str, Any], *, show: bool) -> list[str]:
    """Return the report as lines of rich markup."""
    from walle.deploy.releases.simulated_fault import SimulatedFault

    path = report["events_file"]
    counts = f"{report['runs']} runs, {report['failures']} failures, {report['took_ms']:.0f} ms in all"
    lines = [f"{'[green]passed[/]' if report['ok'] else '[red]failed[/]'}: {report['task']}, {counts}"]
    for phase, times in report["phases"].items():
        lines.append(f"{phase}: p50 {times['p50_ms']:.3g} ms, p99 {times['p99_ms']:.3g} ms, of {times['runs']} runs")
    if report["phases"]:
        lines.append("(the time of successful phases in their VM, without its start and loading)")
    elif report["ok"]:
        lines.append(escape("it loads; give it events to run on: [simulation] events in task.toml, or --events"))
    if (all_users := report["users"] + report["other_users"]) > 1:
        others = f" of {all_users} (--users plays more)" if report["other_users"] else ""
        lines.append(f"{report['users']} users{others}, each on a separate device of each kind")
    if timers := report["timers"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in timers.items())
        lines.append(f"timers that were still running at the end: {kinds} (--until lets more time pass)")
    if evicted := report["window_evicted"]:
        lines.append(f"{evicted} events were too many for their windows and are missing in them")
    if report["state_max_bytes"] and report["runs"]:
        share = report["state_bytes"] / report["state_max_bytes"]
        removed = f"; {count} entries were evicted" if (count := report["state_entries_evicted"]) else ""
        size = f"{report['state_bytes']:,} of {report['state_max_bytes']:,} bytes ({share:.0%})"
        lines.append(f"the state reached {size} on one device{removed}")
    if report["cut_by_limit"]:
        lines.append(f"the first {report['events']} events of {escape(path)} were played; --limit plays more")
    if report["skipped_lines"]:
        what = ", ".join(f"{count} {fault}" for fault, count in report["skipped"].items())
        lines.append(f"{report['skipped_lines']} lines of {escape(path)} were skipped: {what}")
        shown = report["skipped_reports"][:_SHOWN_SKIPPED]
        lines += [f"  line {one['line']}: {escape(one['reason'])}" for one in shown]
        if (hidden := report["skipped_lines"] - len(shown)) > 0:
            lines.append(f"  {hidden} more; --json gives the first {len(report['skipped_reports'])}")
    for one in report["refused_events"][:_SHOWN_SKIPPED]:
        lines.append(f"{_event_of(one)} was not played, a device refuses it: {escape(one['reason'])}")
    if (hidden := len(report["refused_events"]) - _SHOWN_SKIPPED) > 0:
        lines.append(f"{hidden} more events were refused; --json gives all")
    for fault in report["faults"]:
        head, *more = SimulatedFault.from_plain(fault).lines()
        lines += [f"[red]{escape(head)}[/]", *map(escape, more)]
    if show:
        lines += [line for result in report["results"] if result["ok"] for line in _result_lines(result, path)]
    if show and report["dropped_results"]:
        lines.append(f"{report['dropped_results']} more outputs were not kept; play fewer events with --limit")
    if show and (count := report["left_out_outputs"]):
        what = f"{count} outputs of about {report['left_out_bytes'] / 1e6:.1f} MB as JSON were left out"
        lines.append(f"{what}: the report has room for {_MAX_RESULT_BYTES >> 20} MB; play fewer events with --limit")
    lines += [f"log: {escape(_log_line(line))}" for line in report["log"][:_SHOWN_LOG_LINES]]
    if hidden := len(report["log"][_SHOWN_LOG_LINES:]) + report["dropped_log_lines"]:
        lines.append(f"log: {hidden} more lines; --json gives the first {_MAX_LOG_LINES}")
    if report["stopped_early"]:
        lines.append(f"it was stopped after {report['failures']} failures; later events were not played")
    if report["first_error"] and not report["faults"]:
        lines.append(f"first error: {escape(report['first_error'])}")
    return lines


def _event_of(result: Mapping[str, Any]) -> str:
    if result["event"] is None:
        return "after the last event"
    return f"event {result['event']}" + (f", line {result['line']}" if result["line"] else "")


def _result_lines(result: Mapping[str, Any], path: str) -> list[str]:
    where = f"{_event_of(result)}{f' of {path}' if path else ''} ({result['event_id']} {result['page_id']}".rstrip()
    where += f", {result['device']})" if not result["user"] else f", {result['device']}, user {result['user']})"
    if "left_out_bytes" in result:
        return [escape(f"{where} → (left out: about {result['left_out_bytes']} bytes as JSON)")]
    lines = [f"{where} → {_shown(result['output'])}"]
    lines += [f"    put {topic}: {_shown(value)}" for topic, value in result["puts"]]
    return [escape(line) for line in lines]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}… ({len(text)} characters)"


def _log_line(line: Mapping[str, Any]) -> str:
    where = "loading" if line["event"] is None and not line["device"] else line["device"]
    if line["event"] is not None:
        where += f", {_event_of(line)}"
    return f"{line['level']}: {line['text']} ({where})"
