"""`walle device run`: a device on real hardware; `walle device doctor`: what protects it from its tasks.

`walle device list|show|logs` are in `known_devices.py`, `enrol|revoke` in `identity.py`.
"""

import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walle.base.durable_file import write_file
from walle.cli import event_loop
from walle.cli.device import identity as device_identity
from walle.cli.device import known_devices
from walle.cli.device.log import device_log
from walle.cli.device.log import show as show_log
from walle.cli.join import Join
from walle.cli.output import JsonFlag, JsonLinesFlag, emit_rows
from walle.errors import ConfigError

if TYPE_CHECKING:
    from walle.cli.device.mqtt_source import MqttSource

ID_FILE = "device.id"
_PASSWORD = "WALLE_EVENTS_PASSWORD"  # noqa: S105 - the name of an environment variable

_WITH_LANDLOCK = "the device's memory, keys and connections"
_WITHOUT_LANDLOCK = (
    "the device's process from crashes; not its files, nor its memory where /proc shows it to the same user"
)
_LAYERS = {  # layers of a VM host, by the names in its report
    "landlock": "files: the host reads the standard library only",
    "seccomp": "the system: no files written, no programs, sockets, signals or other processes",
    "no_new_privileges": "privileges: no program gives more",
    "not_dumpable": "memory: no core files, no debugger of the same user",
}


class DeviceIdError(ConfigError):
    """The folder belongs to another device. `folder` names it, `known` is the device."""

    def __init__(self, folder: Path, known: str, asked: str) -> None:
        super().__init__(f"{folder} is the device {known!r}, not {asked!r}; leave out --id, or name another folder")
        self.folder = folder
        self.known = known


def parse_attribute(text: str) -> tuple[str, str | int | float | bool]:
    """Return the name and value of `name=value`; a value is true, false, a number, or else text.

    Raises:
        typer.BadParameter: there is no name.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r} is not name=value", param_hint="--attribute")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def device_id_of(folder: Path, asked: str) -> str:
    """Return the id of the device that lives in `folder`: as it was, as asked, or made up once.

    Raises:
        DeviceIdError: another one lives there.
    """
    path = folder / ID_FILE
    try:
        known = path.read_text().strip()
    except FileNotFoundError:
        known = ""
    if known and asked and known != asked:
        raise DeviceIdError(folder, known, asked)
    if not known:
        known = asked or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        write_file(path, known + "\n")
    return known


def run(
    folder: Annotated[Path, typer.Argument(help="Folder of the device's state; made if missing.")],
    join: Annotated[Path, typer.Option(help="The join file: addresses, keys, and a token that enrols the device.")],
    id_: Annotated[
        str,
        typer.Option("--id", help="The device's id; else that of the join file, or one made up at the first run."),
    ] = "",
    app_version: Annotated[str, typer.Option(help="Version of the app that the device runs in.")] = "1.0",
    attribute: Annotated[
        list[str] | None, typer.Option(help="name=value, once for each; for targeting and tasks.")
    ] = None,
    events: Annotated[
        str,
        typer.Option(
            help="An event log to play, - for JSON lines on standard input, or mqtt://HOST/TOPIC; none: only tasks."
        ),
    ] = "",
    mapping: Annotated[Path | None, typer.Option(help="Which of the log's columns are which (a TOML file).")] = None,
    stream: Annotated[list[str] | None, typer.Option(help="Play only this stream of the log; once for each.")] = None,
    speed: Annotated[
        float, typer.Option(help="Speed, as a multiple of real time; 0: as fast as possible.", min=0)
    ] = 0.0,
    wait_for_task: Annotated[
        bool, typer.Option("--wait-for-task", help="Play no event before a task is installed.")
    ] = False,
    checkin_s: Annotated[float, typer.Option(help="Seconds between two requests to the cloud.", min=0.05)] = 30.0,
    report_s: Annotated[float, typer.Option(help="Seconds between two reports of outcomes.", min=0.05)] = 10.0,
    max_version_mb: Annotated[
        int, typer.Option(help="MB that all files of a version may have; larger ones are refused.", min=1)
    ] = 300,
    status_s: Annotated[float, typer.Option(help="Seconds between two checks of the status.", min=0.05)] = 1.0,
    as_json: JsonLinesFlag = False,
) -> None:
    """Run a device: it asks the cloud for tasks, runs them on the user's events, and sends what they give.

    It ends when the events are played and everything has reached the cloud; without events, at Ctrl-C. After a crash
    the same command continues where the device was: nothing is lost, and nothing is counted twice.

    mqtt://USER@HOST/TOPIC?id=FIELD reads messages of JSON events, with MQTT's + and # in the topic, until Ctrl-C, and
    acknowledges what the device's journal has. FIELD of an event's contents names it, so that a message that comes
    again after a crash is not taken twice. The password is in WALLE_EVENTS_PASSWORD, a file of authorities for mqtts://
    in WALLE_EVENTS_CA.
    """
    is_log = events not in ("", "-") and not events.startswith(("mqtt://", "mqtts://"))
    if mapping is not None and not is_log:
        raise typer.BadParameter("says how to read a log; name the log with --events FILE", param_hint="--mapping")
    if stream and not is_log:
        raise typer.BadParameter(
            "chooses among the streams of a log; name it with --events FILE", param_hint="--stream"
        )
    attributes = dict(map(parse_attribute, attribute or []))
    joined = Join.load(join)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # the folder holds what the user did

    from walle.cli.device.program import DeviceProgram, LogSource, Source, StandardInput
    from walle.device import DeviceConfig
    from walle.pipeline.events.live_source import LivePolicy

    device_id = device_id_of(folder, id_ or joined.device_id)
    source: Source | None = None
    live, journal_sync_s = LivePolicy(), 1.0
    if events == "-":
        source = StandardInput()
    elif is_log:
        source = LogSource(Path(events), mapping, tuple(stream or ()))
    elif events:
        source = _mqtt_source(events, device_id)
        live = LivePolicy(id_field=source.id_field)
        journal_sync_s = 0.0  # a message is acknowledged when it survives a power cut
    config = DeviceConfig(
        device_id=device_id,
        folder=folder,
        app_version=app_version,
        attributes=attributes,
        cloud_url=joined.url,
        tunnel_host=joined.tunnel_host,
        tunnel_port=joined.tunnel_port,
        ca_pem=joined.ca_pem,
        trusted_keys=joined.trusted_keys,
        enrolment_token=joined.enrolment_token,
        report_interval_s=report_s,
        max_version_bytes=max_version_mb * 1_000_000,
        live=live,
        journal_sync_s=journal_sync_s,
    )
    program = DeviceProgram(
        config,
        source,
        speed=speed,
        wait_for_task=wait_for_task,
        checkin_s=checkin_s,
        status_s=status_s,
        as_json=as_json,
    )
    with device_log(folder):
        finished = event_loop.run(program.run())
    if not finished:
        raise typer.Exit(130)


def _mqtt_source(events: str, device_id: str) -> "MqttSource":
    from walle.base.address import parse_address
    from walle.cli.device.mqtt_source import MqttSource

    address = parse_address(events, password_in=_PASSWORD)
    return MqttSource(
        address, device_id, password=os.environ.get(_PASSWORD, ""), ca_file=os.environ.get("WALLE_EVENTS_CA", "")
    )


def doctor(as_json: JsonFlag = False) -> None:
    """Start a VM host as a device does, and show which of the kernel's layers are around it.

    The exit status is 1 where the host does not start or a layer is missing.
    """
    from walle.vm import VmHost

    host = VmHost()
    try:
        is_ready = host.wait_ready()
        layers = host.report().layers
    finally:
        host.close()
    rows = [
        {"layer": name, "active": bool(layers.get(name)), "protects": protects} for name, protects in _LAYERS.items()
    ]
    protects = _WITH_LANDLOCK if layers.get("landlock") else _WITHOUT_LANDLOCK
    rows.insert(0, {"layer": "process", "active": is_ready, "protects": protects})
    emit_rows(rows, as_json=as_json, title="Task VMs run in a VM host")
    if not all(row["active"] for row in rows):
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True)

    @group.callback()
    def device() -> None:
        """Run or enrol a device, examine what protects it, or see the devices that a cloud knows."""

    group.command(
        epilog="Example: walle device run kiosk-1 --join join.json --attribute os=linux --events today.jsonl"
    )(run)
    group.command(epilog="Example: walle device doctor --json")(doctor)
    group.command("log", epilog="Example: walle device log kiosk-1 --rejected")(show_log)
    known_devices.register(group)
    device_identity.register(group)
    app.add_typer(group, name="device")
