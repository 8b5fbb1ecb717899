"""`walle device run`: what it takes, who it is, and what it does with events."""

import asyncio
import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.sim.program import Programs
from walle.cli import app
from walle.cli.device.commands import ID_FILE, DeviceIdError, device_id_of, parse_attribute
from walle.cli.device.program import LogSource, StandardInput
from walle.cli.join import Join, JoinFileError
from walle.engine_ext.vm.host import HostReport, VmHost
from walle.pipeline.events.event import MAX_EVENT_BYTES, Event

JOIN = Join(
    url="http://127.0.0.1:1",
    tunnel_host="127.0.0.1",
    tunnel_port=1,
    ca_pem="-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
    enrolment_token="secret",
    trusted_keys={"keys": []},
)


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=b", "b"), ("a=7", 7), ("a=-7.5", -7.5), ("a=true", True), ("a=false", False), ("a=", ""), ("a=b=c", "b=c")],
)
def test_attributes_have_types(text: str, value: object) -> None:
    name, parsed = parse_attribute(text)
    assert (name, parsed, type(parsed)) == ("a", value, type(value))


@pytest.mark.parametrize("text", ["a", "=b", ""])
def test_an_attribute_needs_a_name_and_a_value(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_attribute(text)


def test_a_device_keeps_its_id(tmp_path: Path) -> None:
    made = device_id_of(tmp_path, "")
    assert made
    assert device_id_of(tmp_path, "") == device_id_of(tmp_path, made) == made
    with pytest.raises(DeviceIdError, match="leave out --id"):
        device_id_of(tmp_path, "other")


def test_join_files_are_secret_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "join.json"
    JOIN.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Join.load(path) == JOIN
    assert [one.name for one in tmp_path.iterdir()] == ["join.json"]


def test_a_device_takes_its_id_from_a_join_file_that_admits_it_alone(tmp_path: Path) -> None:
    path, folder = tmp_path / "join.json", tmp_path / "device"
    dataclasses.replace(JOIN, device_id="kiosk-1").save(path)
    assert Join.load(path).device_id == "kiosk-1"
    folder.mkdir()
    (folder / ID_FILE).write_text("kiosk-2\n")
    result = CliRunner().invoke(app, ["device", "run", str(folder), "--join", str(path)])
    assert isinstance(result.exception, DeviceIdError)
    assert "kiosk-1" in str(result.exception)
    earlier = json.loads(path.read_text())
    del earlier["device_id"]
    path.write_text(json.dumps(earlier))
    assert Join.load(path).device_id == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device_id": 7}, "device_id must be str, is int"),
        ({"url": None}, "url must be str, is NoneType"),
        ({"tunnel_port": "1"}, "tunnel_port must be int, is str"),
        ({"tunnel_port": True}, "tunnel_port must be int, is bool"),
        ({"trusted_keys": []}, "trusted_keys must be dict, is list"),
    ],
)
def test_a_wrong_join_file_is_named_with_its_part(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "join.json"
    JOIN.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(JoinFileError, match=message):
        Join.load(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_an_invalid_join_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "join.json").write_text(text)
    with pytest.raises(JoinFileError, match=r"copy join\.json again"):
        Join.load(tmp_path / "join.json")


def test_wrong_uses_end_with_status_2(tmp_path: Path) -> None:
    for wrong in (["--mapping", "m.toml"], ["--events=-", "--stream", "a"], ["--attribute", "x"], ["--speed=-1"]):
        result = CliRunner().invoke(app, ["device", "run", str(tmp_path / "d"), "--join", "join.json", *wrong])
        assert result.exit_code == 2, wrong
    assert CliRunner().invoke(app, ["device", "run", str(tmp_path / "d")]).exit_code == 2  # no --join
    assert not (tmp_path / "d").exists()


def test_a_log_is_read_from_any_place_on(tmp_path: Path) -> None:
    events = [Event("click", "", 1000 + number, {}) for number in range(10)]
    lines = [json.dumps({**event.to_dict(), "stream": "ab"[event.ts_ms % 2]}) for event in events]
    (tmp_path / "log.jsonl").write_text("\n".join([*lines[:5], "broken", *lines[5:]]))

    async def read(source: LogSource, start: int) -> list[tuple[int | None, int]]:
        return [(place, event.ts_ms - 1000) async for place, event in source.events(start)]

    source = LogSource(tmp_path / "log.jsonl", None, ())
    assert asyncio.run(read(source, 7)) == [(7, 7), (8, 8), (9, 9)]
    assert (source.skipped, len(source.reports)) == (1, 1)
    assert source.reports[0].startswith("line 6: broken")
    assert asyncio.run(read(LogSource(tmp_path / "log.jsonl", None, ("b",)), 4)) == [(5, 5), (7, 7), (9, 9)]


def test_standard_input_gives_events_and_counts_what_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = json.dumps(Event("click", "p", 5, {"a": 1}).to_dict()).encode()
    lines = [good, b"", b"broken", b"[]", b'{"event_id": "click"}', b"x" * (MAX_EVENT_BYTES * 2), good]
    (tmp_path / "in").write_bytes(b"\n".join(lines))

    async def read(source: StandardInput) -> list[tuple[int | None, Event]]:
        return [pair async for pair in source.events(0)]

    with (tmp_path / "in").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        source = StandardInput()
        assert asyncio.run(read(source)) == [(None, Event("click", "p", 5, {"a": 1}))] * 2
    assert source.skipped == 4
    assert [report.partition(":")[0] for report in source.reports] == ["line 3", "line 4", "line 5", "line 6"]


def test_a_reader_of_standard_input_holds_no_program_up(tmp_path: Path) -> None:
    """The pipe stays open and silent; the program ends all the same."""
    code = (
        "import asyncio\n"
        "from walle.cli.device.program import StandardInput\n"
        "async def main():\n"
        "    async for place, event in StandardInput().events(0):\n"
        "        return\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    with process.stdin, process.stderr:
        process.stdin.write(json.dumps(Event("click", "", 5, {}).to_dict()).encode() + b"\n")
        process.stdin.flush()
        assert process.wait(20) == 0
        assert os.read(process.stderr.fileno(), 4096) == b""


@pytest.mark.night
@pytest.mark.system
def test_a_device_ends_at_a_signal_or_at_the_end_of_its_events(tmp_path: Path) -> None:
    events = [Event("click", "", 1000 + number, {}).to_dict() for number in range(5)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    with Programs() as start:
        cloud = start(
            "cloud", "up", str(tmp_path / "cloud"), "--http-port=0", "--tunnel-port=0", "--plain-http", "--json"
        )
        join = f"--join={cloud.wait_for(lambda line: 'url' in line)['join_file']}"
        log = f"--events={tmp_path}/log.jsonl"
        quiet = start("device", "run", str(tmp_path / "quiet"), join, "--id=quiet", "--json")
        held = start("device", "run", str(tmp_path / "held"), join, log, "--wait-for-task", "--json")
        first = start("device", "run", str(tmp_path / "player"), join, log, "--json")
        assert (first.end(), first.lines[-1]["state"], first.lines[-1]["events"]) == (0, "done", 5), first.errors
        again = start("device", "run", str(tmp_path / "player"), join, log, "--json")
        assert (again.end(), again.lines[-1]["state"]) == (0, "done")
        assert again.lines[-1]["device_id"] == first.lines[-1]["device_id"]
        assert json.loads((tmp_path / "player" / "source.json").read_text())["base"] == 0
        (tmp_path / "log.jsonl").rename(tmp_path / "other.jsonl")
        other = start("device", "run", str(tmp_path / "player"), join, f"--events={tmp_path}/other.jsonl", "--json")
        assert (other.end(), other.lines[-1]["events"]) == (0, 5), other.errors
        assert json.loads((tmp_path / "player" / "source.json").read_text())["base"] == 5

        assert held.wait_for(lambda line: line["state"] == "waiting for a task")["events"] == 0
        held.process.send_signal(signal.SIGTERM)
        assert (held.end(), held.lines[-1]["state"]) == (130, "stopped")  # the events are not played
        assert quiet.wait_for(lambda line: line["state"] == "running")["device_id"] == "quiet"
        quiet.process.send_signal(signal.SIGINT)
        assert (quiet.end(), quiet.lines[-1]["state"]) == (0, "stopped")
        for program in (first, again, other, held, quiet):
            assert program.errors == ""


def test_the_doctor_shows_the_layers_of_a_vm_host() -> None:
    done = CliRunner().invoke(app, ["device", "doctor", "--json"])
    rows = json.loads(done.stdout)
    active = {row["layer"]: row["active"] for row in rows}
    assert set(active) == {"process", "landlock", "seccomp", "no_new_privileges", "not_dumpable"}
    assert active["process"]
    assert active["no_new_privileges"]
    assert done.exit_code == (0 if all(active.values()) else 1)


def test_the_doctor_promises_no_more_than_the_layers_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    for landlock, promise in ((0, "not its files, nor its memory"), (7, "the device's memory, keys and connections")):
        layers = {"landlock": landlock, "seccomp": 1, "no_new_privileges": 1, "not_dumpable": 1}
        monkeypatch.setattr(VmHost, "report", lambda _, layers=layers: HostReport(1, 0, layers))
        done = CliRunner().invoke(app, ["device", "doctor", "--json"])
        rows = {row["layer"]: row for row in json.loads(done.stdout)}
        assert promise in rows["process"]["protects"]
        assert done.exit_code == (0 if landlock else 1)
