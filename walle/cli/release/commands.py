"""`walle release`: commands that start, watch and roll back releases through the release API."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, cast

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.declared_options import parameter, with_options
from walle.cli.output import JsonFlag, JsonLinesFlag, emit, emit_line, emit_rows, progress_console
from walle.cli.release import targeting as release_targeting
from walle.cli.release.targeting import run_client
from walle.client.cloud_client import CloudUnreachableError
from walle.client.release_client import (
    FailuresJson,
    ReleaseClient,
    ReleaseJson,
    RequestFields,
    TransitionJson,
)
from walle.deploy.fleet.device_group import not_simulated_text
from walle.deploy.gate.evidence_text import count_text, line_text, sample_text
from walle.deploy.gate.gate import GATE_OPTIONS
from walle.deploy.releases.request import start_flags
from walle.deploy.releases.stage_text import stage_text, state_text
from walle.deploy.releases.transition_text import event_text
from walle.errors import DeployError

# Fields of a transition that are shown elsewhere.
_NOT_IN_DETAILS = ("at_s", "by", "devices", "faults", "groups", "other_groups", "other_names")
_TIMES: tuple[Literal["first_s"], Literal["last_s"]] = ("first_s", "last_s")
_OVER = {"full": 0, "retired": 0, "failed": 1, "rolled_back": 1}  # state → exit status of a watcher

_START_FLAGS = start_flags()
_START_OPTIONS = [
    parameter(flag.parameter, flag.kind | None, None, flag.name, help=flag.help, min=flag.least, metavar=flag.metavar)
    for flags in _START_FLAGS.values()
    for flag in flags
]

ReleaseId = Annotated[str, typer.Argument(help="The release's id, such as ipv-v1-1.")]


# --- commands ---------------------------------------------------------------------------------------------------------


@with_options(_START_OPTIONS)
def start(
    scenario: Annotated[str, typer.Argument(help="The task's repository.")],
    task: Annotated[str, typer.Argument(help="The task, which is a branch of it.")],
    version: Annotated[str, typer.Argument(help="The version, such as v3: the tag TASK/v3 must have been pushed.")],
    *,
    url: UrlOption,
    token: TokenOption = "",
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow it until it is full, has failed or is rolled back.")
    ] = False,
    as_json: JsonLinesFlag = False,
    **given: Any,
) -> None:
    """Release a version: simulation, beta devices, percentage rollout, every device. A failing one is rolled back.

    With --watch the exit status is 0 only if the release became full. What is not given is chosen by the cloud.
    """
    fields = _fields_of(given)

    async def make(client: ReleaseClient) -> ReleaseJson:
        release = await client.create(scenario, task, version, **fields)
        if watch:
            raise typer.Exit(await _watch(client, release["id"], as_json=as_json))
        return release

    release = run_client(url, token, make)
    if as_json:
        emit_line(release)
        return
    name = escape(release["id"])
    reads = "".join(f"; it {line}" for line in [*_reads(release), *_variants(release)])
    emit(
        release,
        as_json=False,
        text=f"{name} is {state_text(release['state'])}{escape(reads)}; next: walle release status {name}",
    )


def _fields_of(given: Mapping[str, Any]) -> RequestFields:
    """Return the fields of a release's request that the options give.

    Raises:
        typer.BadParameter: two options give the same field, or a value is not one of its field.
    """
    fields: dict[str, Any] = {}
    for field, flags in _START_FLAGS.items():
        found = {flag: value for flag in flags if (value := given[flag.parameter]) not in (None, "", [])}
        whole = [flag.name for flag in found if not flag.key]
        if len(whole) > 1:
            raise typer.BadParameter("give one of them", param_hint=", ".join(whole))
        for flag, value in found.items():
            try:
                parsed = flag.parse(value) if flag.parse else value
            except DeployError as error:
                raise typer.BadParameter(str(error), param_hint=flag.name) from error
            fields[field] = {**fields.get(field, {}), flag.key: parsed} if flag.key else parsed
    return cast("RequestFields", fields)


def status(
    url: UrlOption,
    release_id: Annotated[str, typer.Argument(help="One release, with its history; all of them if not given.")] = "",
    group: Annotated[str, typer.Option(help="List those of the scenarios of this group only.")] = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """List the releases that you may read, newest first, or show one with its history and its distinct failures.

    A failure is shown with its place, its counts, and the traceback and last log lines of the latest report of it; one
    of the simulation with the simulated device, the event and the source line.
    """
    if release_id and group:
        raise typer.BadParameter("give a release or a group, not both", param_hint="--group")
    if not release_id:
        releases = run_client(url, token, lambda client: client.list_all(group))
        if as_json:
            emit(releases, as_json=True)
        else:
            emit_rows([_row(release) for release in releases], as_json=False)
        return
    release, found, evidence = run_client(url, token, lambda client: _get_with_failures(client, release_id))
    if as_json:
        emit({**release, **found, "evidence": evidence}, as_json=True)
        return
    emit_rows([_row(release)], as_json=False)
    if release["reason"]:
        emit(release, as_json=False, text=f"reason: {escape(release['reason'])}")
    if creator := release.get("created_by"):
        emit(release, as_json=False, text=f"created by {escape(creator)}")
    if retries := release.get("retries"):
        emit(release, as_json=False, text=f"another attempt of {escape(retries)}")
    lines = [
        *_reads(release),
        *_variants(release),
        *_group_lines(release),
        *_state_lines(release),
        *_evidence_lines(evidence, release["state"]),
        *_failure_lines(found),
    ]
    lines += _simulation_lines(release["history"])
    for line in lines:
        emit(release, as_json=False, text=escape(line))
    emit_rows([_history_row(entry) for entry in release["history"]], as_json=False, title="history")


def pause(release_id: ReleaseId, url: UrlOption, token: TokenOption = "", as_json: JsonFlag = False) -> None:
    """Stop a release where it is: devices that have the version keep it, no other gets it."""
    _act(url, token, lambda client: client.pause(release_id), as_json=as_json)


def resume(release_id: ReleaseId, url: UrlOption, token: TokenOption = "", as_json: JsonFlag = False) -> None:
    """Resume a paused release."""
    _act(url, token, lambda client: client.resume(release_id), as_json=as_json)


def rollback(
    release_id: ReleaseId,
    url: UrlOption,
    reason: Annotated[str, typer.Option(help="Why; it is kept in the history.")] = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Take a version back: each device leaves it at its next request."""
    _act(url, token, lambda client: client.rollback(release_id, reason), as_json=as_json)


def retry(release_id: ReleaseId, url: UrlOption, token: TokenOption = "", as_json: JsonFlag = False) -> None:
    """Make another attempt of a release that is rolled back or has failed; the history of that one stays."""
    release = run_client(url, token, lambda client: client.retry(release_id))
    name = escape(release["id"])
    emit(
        release,
        as_json=as_json,
        text=f"{name} is another attempt of {escape(release_id)}; next: walle release status {name}",
    )


def retire(
    scenario: Annotated[str, typer.Argument(help="The scenario.")],
    url: UrlOption,
    task: Annotated[str, typer.Option(help="Only this task of it.")] = "",
    keep_versions: Annotated[
        int, typer.Option(min=2, help="Full versions to keep for each group of devices: the one in force, and others.")
    ] = 5,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be retired, and change nothing.")] = False,
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Retire old full versions, so that `walle storage gc` removes their files after its grace time.

    A version goes once --keep-versions full ones have taken its place: of the same group of devices, or for all. What
    devices get is unchanged, also of one that still has it; rollbacks lead to the versions that are left. A release
    under way or in its bake is never retired, nor what a device is led to now.
    """
    releases = run_client(
        url, token, lambda client: client.retire(scenario, task, keep_versions=keep_versions, dry_run=dry_run)
    )
    verb = "would be retired" if dry_run else "retired"
    lines = [f"{len(releases)} releases {verb}", *(escape(one["id"]) for one in releases)]
    emit({"dry_run": dry_run, "releases": [one["id"] for one in releases]}, as_json=as_json, text="\n".join(lines))


def _act(
    url: str, token: str, action: Callable[[ReleaseClient], Coroutine[Any, Any, ReleaseJson]], *, as_json: bool
) -> None:
    release = run_client(url, token, action)
    emit(release, as_json=as_json, text=f"{escape(release['id'])} is {state_text(release['state'])}")


# --- showing ----------------------------------------------------------------------------------------------------------


def _row(release: ReleaseJson) -> dict[str, Any]:
    request, totals = release["request"], release["totals"]
    return {
        "release": release["id"],
        "task": f"{request['scenario']}/{request['task']}",
        "version": request["version"],
        "state": state_text(release["state"]),
        "stage": stage_text(release["stage"]),
        "devices": totals["installed"],
        "ok": totals["ok"],
        "failed": totals["failed"],
        "failure rate": f"{totals['failure_rate']:.2%}",
        "dropped": totals.get("dropped", 0) + totals.get("uploads_dropped", 0),
    }


def _reads(release: ReleaseJson) -> list[str]:
    """Return a line on the topics of other tasks that the version reads, none if it reads none."""
    reads = release.get("reads", [])
    return [f"reads topics of other tasks: {', '.join(reads)}"] if reads else []


def _variants(release: ReleaseJson) -> list[str]:
    """Return a line on the variants of the version with their rules, none if it has none."""
    variants = [f"{one['name']} ({one['policy']['rule']})" for one in release.get("variants", [])]
    return [f"has variants: {', '.join(variants)}"] if variants else []


async def _get_with_failures(
    client: ReleaseClient, release_id: str
) -> tuple[ReleaseJson, FailuresJson, dict[str, Any]]:
    return await client.get(release_id), await client.failures(release_id), await client.evidence(release_id)


def _group_lines(release: "ReleaseJson") -> list[str]:
    """Return the groups of devices on which the version was simulated."""
    lines = []
    for group in release.get("groups", ()):
        name = f"app {group['app_version'] or '?'} on {group['os'] or 'no stated os'}, {group['devices']} devices"
        result = (
            f"{group['runs']} runs, {group['failures']} failed" if group["played"] else "not played: no time was left"
        )
        lines.append(f"simulated for {name}: {result}")
    if others := release.get("other_groups", 0):
        lines.append(not_simulated_text(others, release.get("other_names", ())))
    return lines


def _state_lines(release: "ReleaseJson") -> list[str]:
    """Return lines on the largest state of the task, in the simulation and on devices; none where it has no state."""
    simulated = [one["details"] for one in release.get("history", ()) if one["details"].get("state_bytes")]
    lines = [
        f"largest state in the simulation: {_share(one['state_bytes'], one['state_max_bytes'])}" for one in simulated
    ]
    totals = release["totals"]
    if max_bytes := totals.get("state_max_bytes", 0):
        lines.append(f"largest state of a device: {_share(totals['state_bytes'], max_bytes)}")
    if refused := totals.get("states_refused", 0):
        lines.append(
            f"{refused:,} reports of a state beyond its bound were ignored: the device reports falsely, or its state is"
            " of a version with a larger bound"
        )
    if evicted := totals.get("entries_evicted", 0):
        lines.append(f"{evicted:,} entries of states were evicted")
    return lines


def _share(size_bytes: int, max_bytes: int) -> str:
    return f"{size_bytes:,} of {max_bytes:,} bytes ({size_bytes / max_bytes:.0%})"


def _simulation_lines(history: list[TransitionJson]) -> list[str]:
    """Return the faults for which the simulation failed, each with its device, event, source line and log."""
    from walle.deploy.releases.simulated_fault import SimulatedFault

    faults = [fault for entry in history for fault in entry["details"].get("faults", ())]
    return [line for fault in faults for line in SimulatedFault.from_plain(fault).lines()]


def _evidence_lines(evidence: dict[str, Any], state: str) -> list[str]:
    """Return what the gate has on the step that is judged, a line each, none if no step is.

    A release that is `rolled_back` is decided: the tests that could have accepted it are left out.
    """
    if not evidence:
        return []
    is_trial = bool(evidence["gate"].get("trial_runs"))
    lines = [f"{stage_text(evidence['stage'])}: {sample_text(evidence['new'], is_trial=is_trial)}"]
    if until_s := evidence.get("lasts_until_s"):
        until = f"{datetime.fromtimestamp(until_s).astimezone():%Y-%m-%d %H:%M:%S}"
        if evidence.get("bakes"):
            lines.append(f"  full, and judged on until {until}; a bad version is rolled back until then")
        elif evidence.get("is_held"):
            lines.append(f"  there are enough devices; the step lasts until {until} at least")
    if evidence["control"]:
        lines.append(f"  with the version before: {sample_text(evidence['control'])}")
    lines += _metric_lines(evidence)
    if (silent := evidence.get("silent")) and (silent["pairs"] or silent["alone"] or silent["watched"]):
        seen = f"{silent['silent']} of {silent['pairs']} devices are silent, {silent['silent_before']} of as many"
        alone = f"; {silent['silent_alone']} of {silent['alone']} without one to compare" if silent["alone"] else ""
        watched = f"{silent['watched']} are watched"
        lines.append(f"  {seen} with the version before{alone}; {watched}")
        lines.append(f"  {line_text(silent, 'pauses')}")
    for key in ("rejects", "groups", "hindered", *(("accepts",) if state != "rolled_back" else ())):
        lines += [f"  {line_text(test, key)}" for test in evidence.get(key, [])]
    return lines


def _metric_lines(evidence: dict[str, Any]) -> list[str]:
    """Return the guards with where they stand, and the latency where no guard has it."""
    lines = []
    guards = evidence.get("guards", [])
    for guard in guards:
        values = f"{_number(guard['new'])}, with the version before {_number(guard['control'])}"
        counts = f"{guard['devices']} and {guard['control_devices']} devices"
        state = f"{guard['state']}, {guard['why']}" if guard["why"] else guard["state"]
        lines.append(f"  guard {guard['guard']}: {state}; medians {values}, of {counts}")
        tests = (("guards are broken", guard["rejects"], "rejects"), ("guards hold", guard["accepts"], "accepts"))
        stands = "; ".join(line_text({**test, "test": name}, does) for name, test, does in tests)
        lines.append(f"    {count_text(guard['compared'], 'device')} compared: {stands}")
    guarded = {guard["metric"] for guard in guards}
    for metric in evidence.get("metrics", []):
        if metric["metric"] not in guarded:
            values = f"{_number(metric['new'])}, with the version before {_number(metric['control'])}"
            lines.append(f"  {metric['metric']}, no guard: medians {values}")
    return lines


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _failure_lines(found: FailuresJson) -> list[str]:
    lines = []
    for failure in found["failures"]:
        first, last = (f"{datetime.fromtimestamp(failure[key]).astimezone():%Y-%m-%d %H:%M:%S}" for key in _TIMES)
        kind = "failed runs" if failure["kind"] == "run" else failure["kind"]
        lines.append(f"failure: {failure['error']}")
        lines += [f"  at: {failure['place']}"] if failure["place"] else []
        counts = f"{failure['count']} {kind} on {failure['devices']} devices"
        lines.append(f"  {counts}; first {first}, last {last} on {failure['device_id']}")
        lines += [f"  {line}" for line in failure["traceback"].split("\n") if line]
        lines += [f"  logged: {line}" for line in failure["log"].split("\n") if line]
    return lines + ([f"{found['others']} other failures"] if found["others"] else [])


def _history_row(entry: TransitionJson) -> dict[str, Any]:
    at = datetime.fromtimestamp(entry["at_s"]).astimezone()
    details = ", ".join(f"{key} {value}" for key, value in entry["details"].items() if key not in _NOT_IN_DETAILS)
    return {
        "at": f"{at:%Y-%m-%d %H:%M:%S}",
        "event": event_text(entry["event"], entry["details"]),
        "state": state_text(entry["state"]),
        "details": details,
    }


def progress_of(release: ReleaseJson) -> float:
    """Return how far a release is, from 0 to 1: simulation, beta and each step of the rollout count the same."""
    steps = len(release["request"]["steps"])
    stages = {"created": 0, "simulating": 0, "beta": 1, "gray": 2 + release["step"], "full": 2 + steps}
    done = stages.get(release["resumes"] or release["state"], 2 + steps)
    return done / (2 + steps)


async def _watch(client: ReleaseClient, release_id: str, *, as_json: bool) -> int:
    """Follow a release to its end; return the exit status."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Progress(*columns, console=progress_console, disable=as_json or not progress_console.is_terminal) as progress:
        bar = progress.add_task(escape(release_id), total=1.0, note="")
        shown: tuple[str, ...] = ()
        async for release in client.stream(release_id):
            totals = release["totals"]
            devices = count_text(totals["installed"], "device")
            note = f"{stage_text(release['stage'])}: {devices}, {totals['ok']} runs ok, {totals['failed']} failed"
            progress.update(bar, completed=progress_of(release), note=note)
            if as_json:
                emit_line(release)
            elif shown != (shown := (release["state"], release["stage"], release["reason"])):
                reason = f": {release['reason']}" if release["reason"] else ""
                if release["state"] == "failed":
                    reason += f"; its event, traceback and log: walle release status {release_id}"
                emit(
                    release, as_json=False, text=escape(f"{release_id} {state_text(release['state'])} ({note}){reason}")
                )
            if release["state"] in _OVER:
                return _OVER[release["state"]]
    raise CloudUnreachableError(client.url, "the stream ended early")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Release versions to devices, watch them, and take them back.", no_args_is_help=True)
    options = "\n".join(f"- {key}: {one.help}" for key, one in GATE_OPTIONS.items())
    about_gate = f"Options of the gate (--gate KEY=VALUE; a list once for each value):\n\n{options}"
    group.command(
        help=f"{inspect.getdoc(start)}\n\n{about_gate}",
        epilog="Example: walle release start shop ipv v1 --beta 2 --step 0.25 --step 1 --gate hold_s=3600 --watch",
    )(start)
    group.command(epilog="Example: walle release status ipv-v1-1 --url https://127.0.0.1:8470")(status)
    group.command(epilog="Example: walle release pause ipv-v1-1")(pause)
    group.command(epilog="Example: walle release resume ipv-v1-1")(resume)
    group.command(epilog="Example: walle release rollback ipv-v1-1 --reason 'wrong encoder'")(rollback)
    group.command(epilog="Example: walle release retry ipv-v1-1")(retry)
    group.command(epilog="Example: walle release retire shop --keep-versions 5 --dry-run")(retire)
    release_targeting.add_commands(group)
    app.add_typer(group, name="release")
