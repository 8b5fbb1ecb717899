"""`walle cloud up` as a process: what it says, how it stops, and what it refuses."""

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from tests.night.cases import at_night
from tests.sim.program import LIMIT_S, Program, Programs, run_main
from walle.cli import app
from walle.cli.join import Join

PORTS = ("--http-port=0", "--tunnel-port=0", "--plain-http")


@pytest.fixture
def start() -> Iterator[Programs]:
    with Programs() as programs:
        yield programs


def up(start: Programs, folder: Path, *more: str) -> Program:
    cloud = start("cloud", "up", str(folder), *PORTS, "--json", *more)
    cloud.wait_for(lambda line: "url" in line)
    return cloud


@pytest.mark.parametrize("number", [*at_night(signal.SIGINT), signal.SIGTERM])
def test_a_cloud_says_where_it_is_and_stops_at_a_signal(
    tmp_path: Path, start: Programs, number: signal.Signals
) -> None:
    cloud = up(start, tmp_path / "cloud", "--scenario=shop", "--scenario=live")
    said = cloud.lines[0]
    assert (said["scenarios"], said["pid"]) == (["live", "shop"], cloud.process.pid)
    join = Join.load(Path(said["join_file"]))
    assert stat.S_IMODE(Path(said["join_file"]).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(said["admin_token_file"]).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "cloud").stat().st_mode) == 0o700  # uploads.db holds what users did
    assert (join.url, f"{join.tunnel_host}:{join.tunnel_port}") == (said["url"], said["tunnel"])
    assert httpx.get(f"{said['url']}/healthz").json()["ok"]
    socket.create_connection((join.tunnel_host, join.tunnel_port)).close()
    os.kill(cloud.process.pid, number)
    assert cloud.end() == 0, cloud.errors
    assert (cloud.lines[1:], cloud.errors) == ([{"stopped": True}], "")


@pytest.mark.night
@pytest.mark.parametrize(("number", "processes"), [(signal.SIGINT, 1), (signal.SIGTERM, 2)])
def test_a_second_signal_ends_a_cloud_that_sends_its_devices_away_slowly(
    tmp_path: Path, start: Programs, number: signal.Signals, processes: int
) -> None:
    cloud = up(start, tmp_path / "cloud", "--drain=600", f"--tunnel-processes={processes}")
    join = Join.load(tmp_path / "cloud" / "join.json")
    device = start("device", "run", str(tmp_path / "device"), "--join", str(tmp_path / "cloud" / "join.json"), "--json")
    token = (tmp_path / "cloud" / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    wait_until(lambda: httpx.get(f"{join.url}/healthz", headers=headers).json()["tunnel"]["connections"] > 0)
    tunnels = children(cloud.process.pid) if processes > 1 else []
    assert len(tunnels) == (processes if processes > 1 else 0)
    os.kill(cloud.process.pid, number)
    with pytest.raises(subprocess.TimeoutExpired):  # a device has up to 600 s to move
        cloud.process.wait(1.5)
    assert device.process.poll() is None
    os.kill(cloud.process.pid, number)
    began_s = time.monotonic()
    assert cloud.end() == 130, cloud.errors
    assert time.monotonic() - began_s < 5
    assert "Traceback" not in cloud.errors
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in tunnels))
    up(start, tmp_path / "cloud")  # files that the first cloud closed


def children(pid: int) -> list[int]:
    """Return the tunnel processes of a cloud."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"ingest.worker" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.05)


@pytest.mark.night
def test_a_cloud_that_is_started_again_has_the_same_keys(tmp_path: Path, start: Programs) -> None:
    joins = []
    for _ in range(2):
        cloud = up(start, tmp_path / "cloud")
        joins.append(Join.load(tmp_path / "cloud" / "join.json"))
        cloud.kill()  # the worst way to stop; the folder is free again all the same
    first, second = joins
    assert (first.ca_pem, first.trusted_keys) == (second.ca_pem, second.trusted_keys)
    assert first.enrolment_token != second.enrolment_token  # each start admits its own devices


@pytest.mark.night
def test_a_folder_or_a_port_that_is_taken_is_an_error_that_says_what_to_do(tmp_path: Path, start: Programs) -> None:
    first = up(start, tmp_path / "cloud").lines[0]
    again = start("cloud", "up", str(tmp_path / "cloud"), *PORTS, "--json")
    http_port, tunnel_port = (first[key].rpartition(":")[2] for key in ("url", "tunnel"))
    others = [
        start("cloud", "up", str(tmp_path / f"other-{option}"), *PORTS, f"--{option}={port}", "--json")
        for option, port in (("http-port", http_port), ("tunnel-port", tunnel_port))
    ]
    assert again.end() == 1
    assert json.loads(again.errors)["type"] == "CloudBusyError"
    assert "another cloud runs on this folder" in again.errors
    for other in others:
        assert other.end() == 1
        assert json.loads(other.errors)["type"] == "CloudBusyError"
        assert "choose others with --http-port and --tunnel-port" in other.errors
    assert not list(tmp_path.glob("other-*"))  # what was not started leaves nothing


def test_the_documented_app_is_served_from_the_current_folder(tmp_path: Path, start: Programs) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "embed.md").read_text()
    (code,) = re.findall(r"<!-- file: shop.py -->\n```python\n(.*?)```", page, re.DOTALL)
    command = re.search(r"^walle (cloud up data .*)$", page, re.MULTILINE)
    assert command is not None
    (tmp_path / "shop.py").write_text(code)
    cloud = start(*command[1].split(), *PORTS, "--json", folder=tmp_path, PYTHONSAFEPATH="1")
    url = cloud.wait_for(lambda line: "url" in line)["url"]
    assert httpx.get(f"{url}/feed").json() == {"items": ["shoes", "books"]}
    assert httpx.get(f"{url}/healthz").json()["ok"]


@pytest.mark.parametrize("given", [None, ".", "full"])
def test_a_cloud_that_does_not_start_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    folder = tmp_path / "new" / "data"
    if given is not None:
        folder.mkdir(parents=True)
    if given == "full":
        (folder / "mine").write_text("kept")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the current folder
    cloud = run_main("cloud", "up", str(folder), *PORTS, "--json", "--business-app=shop:make_app")
    assert cloud.returncode == 1
    error = json.loads(cloud.stderr)["error"]
    assert error.endswith(f"module shop is neither in {tmp_path} nor installed"), error
    assert (tmp_path / "new").exists() == (given is not None)
    if given == ".":
        assert list(folder.iterdir()) == []
    if given == "full":
        assert (folder / "mine").read_text() == "kept"


@pytest.mark.night
def test_the_folder_of_a_cloud_that_ran_stays_where_it_does_not_start(tmp_path: Path, start: Programs) -> None:
    up(start, tmp_path / "data").kill()
    keys = (tmp_path / "data" / "admin.token").read_text()
    cloud = start(
        "cloud", "up", str(tmp_path / "data"), *PORTS, "--json", "--business-app=shop:make_app", PYTHONSAFEPATH="1"
    )
    assert cloud.end() == 1
    assert (tmp_path / "data" / "admin.token").read_text() == keys


def test_a_name_goes_into_the_join_file_and_the_certificate(tmp_path: Path, start: Programs) -> None:
    up(start, tmp_path / "cloud", "--host=0.0.0.0", "--name=localhost")
    join = Join.load(tmp_path / "cloud" / "join.json")
    assert (join.tunnel_host, join.url.rpartition(":")[0]) == ("localhost", "http://localhost")


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6 loopback")
def test_a_cloud_listens_on_an_ipv6_address(tmp_path: Path, start: Programs) -> None:
    said = up(start, tmp_path / "cloud", "--host=::1").lines[0]
    assert said["url"].startswith("http://[::1]:")
    assert httpx.get(f"{said['url']}/healthz").json()["ok"]
    assert said["tunnel"].startswith("[::1]:")


def test_a_host_that_is_none_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    cloud = run_main("cloud", "up", str(tmp_path / "cloud"), *PORTS, "--host=no host", "--json")
    assert cloud.returncode == 1
    assert json.loads(cloud.stderr)["type"] == "CloudBusyError"
    assert "give an address of this machine as --host" in cloud.stderr


def test_wrong_uses_end_with_status_2(tmp_path: Path) -> None:
    for wrong in (
        ["--host", "0.0.0.0"],
        ["--host", "::"],
        ["--address", "auto"],
        ["--inference-processes", "2"],
        ["--inference-resource", "CPU=1"],
        ["--http-port", "70000"],
    ):
        assert CliRunner().invoke(app, ["cloud", "up", str(tmp_path / "cloud"), *wrong]).exit_code == 2, wrong
    assert not (tmp_path / "cloud").exists()
