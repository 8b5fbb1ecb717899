"""`walle cloud drain`, `restart` and `down`: what the cloud is asked, how long the command waits, and what it says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from walle.cli import app
from walle.cli.cloud import nodes
from walle.cli.cloud.nodes import PlanFailedError
from walle.client.admin_client import AdminClient
from walle.client.cloud_client import CloudRefusedError, CloudUnreachableError
from walle.errors import ConfigError

URL = "http://127.0.0.1:1"


def progress(remaining: int, *, doing: str = "", fault: str = "") -> dict[str, Any]:
    return {"drained": {}, "restarting": [], "remaining": remaining, "doing": doing, "fault": fault}


class ScriptedClient(AdminClient):
    """A client that notes what is asked, and gives the answers in turn; the last one again and again."""

    answers: Iterator[dict[str, Any] | Exception]
    asked: list[tuple[Any, ...]]

    async def call(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        self.asked.append((method, path, *(() if body is None else (body,))))
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedClient]:
    class Client(ScriptedClient):
        asked = []  # noqa: RUF012 a new class for each test

    monkeypatch.setattr(nodes, "AdminClient", Client)
    monkeypatch.setattr(nodes, "_LOOK_S", 0.001)
    return Client


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["cloud", *words], env={"WALLE_URL": "", "WALLE_TOKEN": "t"}, catch_exceptions=False)


def test_a_drain_waits_until_nothing_is_left_on_the_node(client: type[ScriptedClient]) -> None:
    client.answers = iter(
        [progress(2, doing="Leave edge"), progress(1, doing="Move gateway"), CloudUnreachableError(URL, "moved"),
         CloudRefusedError(503, "starting"), progress(0)]
    )  # fmt: skip
    done = run("drain", "node-3", "--over-s", "5", "--url", URL)
    assert done.exit_code == 0, done.output
    assert client.asked[0] == ("POST", "/v1/cloud/nodes/drain", {"node": "node-3", "over_s": 5.0})
    assert client.asked[1:] == [("GET", "/v1/cloud/nodes")] * 4
    assert "node node-3 has no process of this cloud any more" in done.stdout
    assert "2 to do: Leave edge" in done.stderr
    assert "1 to do: Move gateway" in done.stderr


def test_an_undrained_node_is_not_waited_for(client: type[ScriptedClient]) -> None:
    client.answers = iter([progress(3)])
    done = run("drain", "node-3", "--undo", "--url", URL, "--json")
    assert client.asked == [("POST", "/v1/cloud/nodes/undrain", {"node": "node-3"})]
    assert json.loads(done.stdout)["remaining"] == 3


@pytest.mark.parametrize(("words", "node"), [((), ""), (("--node", "node-1"), "node-1")])
def test_a_restart_is_of_every_node_or_of_one(client: type[ScriptedClient], words: tuple[str, ...], node: str) -> None:
    client.answers = iter([progress(1), progress(0)])
    done = run("restart", *words, "--url", URL)
    assert client.asked[0] == ("POST", "/v1/cloud/nodes/restart", {"node": node})
    assert "every process was started again" in done.stdout


def test_work_that_is_not_done_in_time_is_an_error_with_its_fault(client: type[ScriptedClient]) -> None:
    def endless() -> Iterator[dict[str, Any]]:
        while True:
            yield progress(2, doing="Restart monitor", fault="no room")

    client.answers = endless()
    with pytest.raises(PlanFailedError, match=r"2 things are not done after 0\.05 s \(no room\)"):
        run("restart", "--wait-s", "0.05", "--url", URL)
    client.answers = iter([progress(2)])
    begun = run("restart", "--wait-s", "0", "--url", URL)
    assert (begun.exit_code, begun.stdout.strip()) == (0, "begun: 2 things to do")


@pytest.mark.parametrize("status", [403, 404, 409])
def test_what_the_cloud_refuses_ends_the_command(client: type[ScriptedClient], status: int) -> None:
    client.answers = iter([CloudRefusedError(status, "the last node")])
    with pytest.raises(CloudRefusedError, match="the last node"):
        run("drain", "node-3", "--url", URL)
    client.answers = iter([progress(1), CloudRefusedError(status, "the token was revoked")])
    with pytest.raises(CloudRefusedError, match="was revoked"):  # only a gateway that is away is asked again
        run("drain", "node-3", "--url", URL)


def test_a_gateway_that_stays_away_ends_the_command(
    client: type[ScriptedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_AWAY_S", 0.02)

    def answers() -> Iterator[dict[str, Any] | Exception]:
        yield progress(1)
        while True:
            yield CloudUnreachableError(URL, "refused")

    client.answers = answers()
    with pytest.raises(CloudUnreachableError):
        run("restart", "--url", URL)


def test_the_address_must_be_given() -> None:
    for words in (("drain", "node-3"), ("restart",)):
        with pytest.raises(ConfigError, match="--url or WALLE_URL"):
            run(*words)


def test_down_ends_the_cloud_of_the_folder_on_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, str]] = []

    async def stop(folder: Path, address: str) -> list[str]:
        asked.append((folder, address))
        return ["gateway", "monitor"]

    monkeypatch.setattr("walle.actors.detached.stop", stop)
    monkeypatch.chdir(tmp_path)
    done = run("down", "cloud", "--address", "auto")
    assert done.stdout.strip() == "ended: gateway, monitor"
    assert json.loads(run("down", "cloud", "--address", "auto", "--json").stdout) == {"ended": ["gateway", "monitor"]}
    assert asked == [(tmp_path / "cloud", "auto")] * 2
