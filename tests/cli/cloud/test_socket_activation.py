"""`walle cloud up` on sockets of a service manager: a restart refuses no connection."""

import contextlib
import json
import os
import signal
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import httpx
import pytest

from tests.sim.device_session import session_headers
from tests.sim.program import Program, Programs
from walle.cli.join import Join
from walle.cloud import CloudHome
from walle.protocol import PROFILE_HEADER, Profile

LIMIT_S = 60.0  # time for an answer: a cloud starts meanwhile, on a machine that is busy


@pytest.fixture
def start() -> Iterator[Programs]:
    with Programs() as programs:
        yield programs


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as undo:
        yield [undo.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512)) for _ in range(2)]


def up(start: Programs, folder: Path, sockets: list[socket.socket], *more: str) -> Program:
    ports = [one.getsockname()[1] for one in sockets]
    options = (f"--http-port={ports[0]}", f"--tunnel-port={ports[1]}")
    return start("cloud", "up", str(folder), *options, "--json", *more, sockets=sockets)


class CheckIns:
    """A device that checks in again and again within the block, each time on a new connection; counts the answers."""

    def __init__(self, folder: Path, url: str, ca_pem: str) -> None:
        self.answers: Counter[str] = Counter()
        profile = Profile("d0", "10.1", {}, {}).to_header()
        self._headers = {**session_headers(CloudHome(folder), "d0"), PROFILE_HEADER: profile}
        self._url = url
        self._tls = ssl.create_default_context(cadata=ca_pem)
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._repeat) for _ in range(2)]

    def ask(self) -> str:
        """Check in once; return the status, or the error."""
        try:
            with httpx.Client(base_url=self._url, verify=self._tls, timeout=LIMIT_S) as http:
                return str(http.post("/v1/checkin", headers=self._headers).status_code)
        except httpx.TransportError as error:
            return repr(error)

    def _repeat(self) -> None:
        while not self._is_over.is_set():
            self.answers[self.ask()] += 1
            time.sleep(0.01)

    def more(self, count: int = 5) -> None:
        """Return once further ones are answered."""
        before, give_up_s = self.answers["204"], time.monotonic() + LIMIT_S
        while self.answers["204"] < before + count:
            assert time.monotonic() < give_up_s, self.answers
            time.sleep(0.02)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.night
@pytest.mark.timeout(240)
def test_no_connection_is_refused_while_a_cloud_is_stopped_or_killed_and_started_again(
    tmp_path: Path, start: Programs, sockets: list[socket.socket]
) -> None:
    folder = tmp_path / "cloud"
    cloud = up(start, folder, sockets)
    cloud.wait_for(lambda line: "url" in line)
    join = Join.load(folder / "join.json")
    assert join.url == f"https://127.0.0.1:{sockets[0].getsockname()[1]}"
    assert join.tunnel_port == sockets[1].getsockname()[1]
    with CheckIns(folder, join.url, join.ca_pem) as check_ins:
        for number, lost in ((signal.SIGTERM, 0), (signal.SIGKILL, 2)):
            check_ins.more()
            os.kill(cloud.process.pid, number)
            assert cloud.end() == (0 if number == signal.SIGTERM else -signal.SIGKILL), cloud.errors
            tunnel = socket.create_connection(("127.0.0.1", join.tunnel_port))
            between: list[str] = []
            waiting = threading.Thread(target=lambda: between.append(check_ins.ask()))  # noqa: B023 - joined below
            waiting.start()
            cloud = up(start, folder, sockets)
            cloud.wait_for(lambda line: "url" in line)
            waiting.join(LIMIT_S)
            assert between == ["204"]
            context = ssl.create_default_context(cadata=join.ca_pem)
            with context.wrap_socket(tunnel, server_hostname="127.0.0.1"):  # the handshake is answered now
                pass
            check_ins.more()
            failed = {what: count for what, count in check_ins.answers.items() if what != "204"}
            # Who is killed takes the connections with it that it had accepted, one of each of the two threads.
            assert sum(failed.values()) <= lost, failed
            assert not [what for what in failed if "refused" in what.lower()], failed
    os.kill(cloud.process.pid, signal.SIGTERM)
    assert cloud.end() == 0, cloud.errors


@pytest.mark.night
def test_sockets_that_the_cloud_cannot_listen_on_are_refused_with_the_reason(
    tmp_path: Path, start: Programs, sockets: list[socket.socket]
) -> None:
    port = sockets[0].getsockname()[1]
    started = {
        "but HTTP has 1 and the tunnel 2": start(
            "cloud", "up", str(tmp_path / "a"), "--http-port=1", "--tunnel-port=2", "--json", sockets=sockets
        ),
        "listens at 127.0.0.1, not at 0.0.0.0": up(
            start, tmp_path / "b", sockets, "--host=0.0.0.0", "--name=cloud.example"
        ),
        "with --ray: leave that out": up(start, tmp_path / "c", sockets, "--ray"),
        f"two sockets of port {port}": up(start, tmp_path / "d", [sockets[0], sockets[0]]),
    }
    for what, program in started.items():
        assert program.end() == 1
        said = json.loads(program.errors)
        assert said["type"] == "InheritedSocketError"
        assert what in said["error"], said
    assert list(tmp_path.iterdir()) == []


def test_sockets_of_another_process_are_not_taken(tmp_path: Path, start: Programs) -> None:
    """LISTEN_PID names a process that started this one."""
    options = ("--http-port=0", "--tunnel-port=0", "--json")
    cloud = start("cloud", "up", str(tmp_path / "cloud"), *options, LISTEN_FDS="2", LISTEN_PID="1")
    cloud.wait_for(lambda line: "url" in line)
