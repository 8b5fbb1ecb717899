"""`walle release`: start, watch and take back releases, over the cloud's HTTP."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Self

import httpx
import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from walle.cli.output import JsonFlag, JsonLinesFlag, emit, emit_line, emit_rows, progress_console
from walle.errors import WalleError

_TIMEOUT_S = 30.0
_STREAM_TIMEOUT_S = 60.0  # the cloud sends a ping every 15 s
_RECONNECT_S = 0.5
_RECONNECTS = 20  # in a row
_OVER = {"full": 0, "failed": 1, "rolled_back": 1}  # state → exit status of a watcher

UrlOption = Annotated[str, typer.Option("--url", envvar="WALLE_URL", help="The cloud, as `walle cloud up` prints it.")]
TokenOption = Annotated[
    str, typer.Option("--token", envvar="WALLE_TOKEN", help="Your token; better in the environment than here.")
]
ReleaseId = Annotated[str, typer.Argument(help="The release's id, such as ipv-v1-1.")]


class CloudRefusedError(WalleError):
    """The cloud said no. `status` is that of HTTP."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status


class CloudUnreachableError(WalleError):
    """Nothing answers at `url`."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"no cloud answers at {url} ({why}); start one with `walle cloud up FOLDER`, or name another with --url"
        )
        self.url = url


class Cloud:
    """The release routes of one cloud, within `with`."""

    def __init__(self, url: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url
        try:
            self._http = httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT_S)
        except (httpx.InvalidURL, ValueError) as error:
            raise typer.BadParameter(f"{url!r} is no address ({error})", param_hint="--url") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        """Return the JSON of the answer; raises CloudRefusedError, CloudUnreachableError."""
        with self._reaching():
            response = self._http.request(method, f"/v1/releases{path}", json=body)
        _raise_refusal(response)
        try:
            return response.json()
        except ValueError as error:
            raise CloudRefusedError(
                response.status_code, f"{self.url} is no Walle cloud: its answer is no JSON"
            ) from error

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.UnsupportedProtocol as error:
            raise typer.BadParameter(f"{self.url!r} must begin with http:// or https://", param_hint="--url") from error
        except httpx.HTTPError as error:
            raise CloudUnreachableError(self.url, str(error) or type(error).__name__) from error

    def follow(self, release_id: str) -> Iterator[dict[str, Any]]:
        """Yield the release now and after each change; a link that drops is taken up again."""
        failures = 0
        while True:
            try:
                with self._http.stream(
                    "GET", f"/v1/releases/{release_id}/stream", timeout=_STREAM_TIMEOUT_S
                ) as response:
                    if response.is_error:
                        response.read()
                        _raise_refusal(response)
                    for line in response.iter_lines():
                        if line.startswith("data:"):  # each event of this stream has one data line
                            failures = 0
                            yield json.loads(line.removeprefix("data:"))
            except httpx.HTTPError as error:
                failures += 1
                if failures > _RECONNECTS:
                    raise CloudUnreachableError(self.url, str(error) or type(error).__name__) from error
                time.sleep(_RECONNECT_S)
            else:
                return


def _raise_refusal(response: httpx.Response) -> None:
    if not response.is_error:
        return
    try:
        what = str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        what = f"the answer was {response.status_code} {response.reason_phrase}; is this the address of a Walle cloud?"
    if response.status_code == httpx.codes.UNAUTHORIZED:
        what += " with --token or WALLE_TOKEN; the first token lies in the cloud's folder, in admin.token"
    raise CloudRefusedError(response.status_code, what)


# --- commands ---------------------------------------------------------------------------------------------------------


def start(
    scenario: Annotated[str, typer.Argument(help="The task's repository.")],
    task: Annotated[str, typer.Argument(help="The task, which is a branch of it.")],
    version: Annotated[str, typer.Argument(help="The version, such as v3: the tag TASK/v3 must have been pushed.")],
    url: UrlOption,
    token: TokenOption = "",
    beta: Annotated[int | None, typer.Option(help="How many beta devices; 0 for no beta.", min=0)] = None,
    beta_device: Annotated[list[str] | None, typer.Option(help="A beta device's id; once for each.")] = None,
    step: Annotated[
        list[float] | None, typer.Option(help="Share of a gray step; once for each, the last one 1.")
    ] = None,
    app_version: Annotated[str, typer.Option(help="Only devices of these app versions, such as '>=10,<11'.")] = "",
    gate_p_good: Annotated[float | None, typer.Option(help="Failure rate of a good version.")] = None,
    gate_p_bad: Annotated[float | None, typer.Option(help="Failure rate of a bad version.")] = None,
    gate_alpha: Annotated[float | None, typer.Option(help="Probability of rejecting a good version.")] = None,
    gate_beta: Annotated[float | None, typer.Option(help="Probability of accepting a bad version.")] = None,
    gate_min_devices: Annotated[
        int | None, typer.Option(help="Devices that must report before a step is done.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow it until it is full, has failed or is rolled back.")
    ] = False,
    as_json: JsonLinesFlag = False,
) -> None:
    """Release a version: simulation, beta devices, gray steps, then every device; taken back by itself if it fails.

    With --watch the exit status is 0 only if the release became full. What is not given is chosen by the cloud.
    """
    if beta is not None and beta_device:
        raise typer.BadParameter("give a number or the devices, not both", param_hint="--beta, --beta-device")
    gate = {"p_good": gate_p_good, "p_bad": gate_p_bad, "alpha": gate_alpha, "beta": gate_beta}
    gate = {**gate, "min_devices": gate_min_devices}
    optional = {
        "beta": beta_device or beta,
        "steps": step or None,
        "policy": {"app_version": app_version} if app_version else None,
        "gate": {key: value for key, value in gate.items() if value is not None} or None,
    }
    body: dict[str, Any] = {"scenario": scenario, "task": task, "version": version}
    body |= {key: value for key, value in optional.items() if value is not None}
    with Cloud(url, token) as cloud:
        release_id = cloud.post("", body)["id"]
        try:
            release = cloud.post(f"/{release_id}/start")
        except WalleError as error:
            raise WalleError(
                f"release {release_id} was made but not started: {error};"
                f" take it back with: walle release rollback {release_id}"
            ) from error
        if watch:
            raise typer.Exit(_watch(cloud, release_id, as_json=as_json))
    if as_json:
        emit_line(release)
        return
    name = escape(release_id)
    emit(release, as_json=False, text=f"{name} is {release['state']}; next: walle release status {name}")


def status(
    url: UrlOption,
    release_id: Annotated[str, typer.Argument(help="One release, with its history; all of them if not given.")] = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """List the releases, newest first, or show one with its history."""
    with Cloud(url, token) as cloud:
        found = cloud.get(f"/{release_id}" if release_id else "")
    if as_json:
        emit(found, as_json=True)
        return
    if not release_id:
        emit_rows([_row(release) for release in found], as_json=False)
        return
    release = found
    emit_rows([_row(release)], as_json=False)
    if release["reason"]:
        emit(release, as_json=False, text=f"reason: {escape(release['reason'])}")
    for line in _last_failure(release["totals"]):
        emit(release, as_json=False, text=escape(line))
    emit_rows([_history_row(entry) for entry in release["history"]], as_json=False, title="history")


def pause(release_id: ReleaseId, url: UrlOption, token: TokenOption = "", as_json: JsonFlag = False) -> None:
    """Stop a release where it is: devices that have the version keep it, no other gets it."""
    _act("pause", release_id, None, url, token, as_json=as_json)


def resume(release_id: ReleaseId, url: UrlOption, token: TokenOption = "", as_json: JsonFlag = False) -> None:
    """Let a paused release go on."""
    _act("resume", release_id, None, url, token, as_json=as_json)


def rollback(
    release_id: ReleaseId,
    url: UrlOption,
    reason: Annotated[str, typer.Option(help="Why; it is kept in the history.")] = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Take a version back: each device leaves it at its next request."""
    _act("rollback", release_id, {"reason": reason}, url, token, as_json=as_json)


def _act(action: str, release_id: str, body: Mapping[str, Any] | None, url: str, token: str, *, as_json: bool) -> None:
    with Cloud(url, token) as cloud:
        release = cloud.post(f"/{release_id}/{action}", body)
    emit(release, as_json=as_json, text=f"{escape(release['id'])} is {release['state'].replace('_', ' ')}")


# --- showing ----------------------------------------------------------------------------------------------------------


def _row(release: Mapping[str, Any]) -> dict[str, Any]:
    request, totals = release["request"], release["totals"]
    return {
        "release": release["id"],
        "task": f"{request['scenario']}/{request['task']}",
        "version": request["version"],
        "state": release["state"],
        "stage": release["stage"],
        "devices": totals["installed"],
        "ok": totals["ok"],
        "failed": totals["failed"],
        "failure rate": f"{totals['failure_rate']:.2%}",
    }


def _last_failure(totals: Mapping[str, Any]) -> list[str]:
    """Return lines about the last failure that a device reported."""
    if not totals["last_error"]:
        return []
    lines = [f"last error: {totals['last_error']}"]
    lines += [f"at: {totals['last_place']}"] if totals["last_place"] else []
    lines += [f"logged: {line}" for line in totals["last_log"].split("\n") if line]
    return lines


def _history_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    at = datetime.fromtimestamp(entry["at_s"]).astimezone()
    details = ", ".join(f"{key} {value}" for key, value in entry["details"].items() if key != "at_s")
    return {
        "at": f"{at:%Y-%m-%d %H:%M:%S}",
        "event": entry["event"] or "Created",
        "state": entry["state"],
        "details": details,
    }


def progress_of(release: Mapping[str, Any]) -> float:
    """Return how far a release is, from 0 to 1: simulation, beta and each gray step count the same."""
    steps: int = len(release["request"]["steps"])
    stages = {"created": 0, "simulating": 0, "beta": 1, "gray": 2 + release["step"], "full": 2 + steps}
    done: int = stages.get(release["resumes"] or release["state"], 2 + steps)
    return done / (2 + steps)


def _watch(cloud: Cloud, release_id: str, *, as_json: bool) -> int:
    """Follow a release to its end; return the exit status."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Progress(*columns, console=progress_console, disable=as_json or not progress_console.is_terminal) as progress:
        bar = progress.add_task(release_id, total=1.0, note="")
        stage = ""
        for release in cloud.follow(release_id):
            totals = release["totals"]
            note = f"{release['stage']}: {totals['installed']} devices, {totals['ok']} ok, {totals['failed']} failed"
            progress.update(bar, completed=progress_of(release), note=note)
            if as_json:
                emit_line(release)
            elif stage != (stage := f"{release['state']} {release['stage']}"):
                reason = f": {release['reason']}" if release["reason"] else ""
                emit(release, as_json=False, text=escape(f"{release_id} {release['state']} ({note}){reason}"))
            if release["state"] in _OVER:
                return _OVER[release["state"]]
    raise CloudUnreachableError(cloud.url, "the stream ended early")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Release versions to devices, watch them, and take them back.", no_args_is_help=True)
    group.command(epilog="Example: walle release start shop ipv v1 --beta 2 --step 0.25 --step 1 --watch")(start)
    group.command(epilog="Example: walle release status ipv-v1-1 --url http://127.0.0.1:8470")(status)
    group.command(epilog="Example: walle release pause ipv-v1-1")(pause)
    group.command(epilog="Example: walle release resume ipv-v1-1")(resume)
    group.command(epilog="Example: walle release rollback ipv-v1-1 --reason 'wrong encoder'")(rollback)
    app.add_typer(group, name="release")
