"""State of a running cloud, in one process; tests/system/test_actors.py has one of several."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import walle
from tests.sim.shop_cloud import shop_cloud
from walle.cli import app
from walle.client.admin_client import AdminClient
from walle.cloud.folder.folder import CloudHome
from walle.cloud.telemetry.status import CloudStatus, NodeState, OneProcess, ProcessState
from walle.errors import DeployError


@pytest.mark.asyncio
async def test_a_cloud_shows_its_process_its_leases_and_no_lag(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        await shop.cloud.releases.settled()
        answer = await shop.http.get("/v1/cloud", headers={"Authorization": f"Bearer {shop.cloud.home.admin_token}"})
        assert answer.status_code == 200, answer.text
        found = answer.json()
        (process,) = found["processes"]
        assert (process["name"], process["state"], process["pid"]) == ("cloud", "running", os.getpid())
        assert process["node"] == found["nodes"][0]["id"]
        assert (process["version"], found["versions"]) == (walle.__version__, [walle.__version__])
        assert [one["name"] for one in found["leases"]] == ["releases", "monitor"]
        assert all(f"/{os.getpid()}/" in one["holder"] and one["left_s"] > 0 for one in found["leases"])
        assert found["lag"] == {"effects": 0, "generations": 0, "uploads": 0, "uploads_s": 0.0}


@pytest.mark.asyncio
async def test_a_cloud_in_one_process_has_no_nodes_to_drain_and_asks_who_wants_it(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        headers = {"Authorization": f"Bearer {shop.cloud.home.admin_token}"}
        for verb, body in (("drain", {"node": "a"}), ("undrain", {"node": "a"}), ("restart", {})):
            path = f"/v1/cloud/nodes/{verb}"
            refused = await shop.http.post(path, headers=headers, json=body)
            assert (refused.status_code, refused.json()["type"]) == (409, "NoKeeperError")
            unknown = await shop.http.post(path, json=body, headers={"Authorization": "Bearer none"})
            assert unknown.status_code == 401


class LostReleases:
    async def backlog(self) -> tuple[int, int]:
        raise DeployError("it is gone")


@pytest.mark.asyncio
async def test_the_rest_is_shown_without_the_release_service(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = CloudHome(tmp_path / "cloud")
    home.prepare()
    tunnel = {"queued": 3, "lag_s": 1.5}
    status = CloudStatus(home, OneProcess(), LostReleases(), lambda: tunnel, lambda: 4)  # type: ignore[arg-type]
    found = await status.read()
    assert found["lag"] == {"effects": None, "generations": None, "uploads": 3, "uploads_s": 1.5}
    assert found["leases"] == []
    assert found["plan"] is None
    assert "the backlog of releases is missing in the cloud's status: it is gone" in caplog.text


class Keeper:
    """A keeper of nodes that waits for room on a node."""

    async def progress(self) -> dict[str, Any]:
        drained = {"a" * 56: {"host": "one", "left": ["gateway"]}}
        fault = f"node {'b' * 12} has too few processes: no room"
        return {"drained": drained, "restarting": [], "remaining": 1, "doing": "move gateway", "fault": fault}


class TwoNodes:
    async def read(self) -> tuple[list[NodeState], list[ProcessState]]:
        nodes = [NodeState(id="a" * 56, host="one"), NodeState(id="b" * 56, host="two")]
        gateway = ProcessState(name="gateway", node="a" * 56, pid=7, version="0.1.0")
        edges = [ProcessState(name=f"edge-{number}", version=version) for number, version in ((0, "0.2.0"), (1, ""))]
        return nodes, [gateway, *edges]


@pytest.mark.asyncio
async def test_drained_nodes_what_hinders_their_processes_and_versions_that_differ_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = CloudHome(tmp_path / "cloud")
    home.prepare()
    tunnel = {"queued": 0, "lag_s": 0.0}
    keeper: Any = Keeper()
    releases: Any = LostReleases()
    status = CloudStatus(home, TwoNodes(), releases, lambda: tunnel, lambda: 4, keeper=keeper)
    found = await status.read()
    assert found["plan"]["drained"] == {"a" * 56: {"host": "one", "left": ["gateway"]}}

    async def answer(_: AdminClient) -> dict[str, Any]:
        return found

    monkeypatch.setattr(AdminClient, "status", answer)
    shown = await asyncio.to_thread(
        CliRunner(env={"COLUMNS": "200"}).invoke, app, ["cloud", "status", "--url", "http://127.0.0.1:1"]
    )
    assert shown.exit_code == 0, shown.output
    assert "yes, but for gateway" in shown.output
    assert f"node {'b' * 12} has too few processes: no room" in shown.output
    assert found["versions"] == ["0.1.0", "0.2.0"]
    assert "versions of walle differ (0.1.0: gateway; 0.2.0: edge-0; unknown: edge-1)" in shown.output


class UnknownProcesses:
    async def read(self) -> tuple[list[NodeState], list[ProcessState]]:
        raise DeployError("Ray's head does not answer")


@pytest.mark.asyncio
async def test_status_shows_the_rest_while_the_list_of_processes_is_unknown(tmp_path: Path) -> None:
    home = CloudHome(tmp_path / "cloud")
    home.prepare()
    tunnel = {"queued": 3, "lag_s": 1.5}
    status = CloudStatus(home, UnknownProcesses(), LostReleases(), lambda: tunnel, lambda: 4)  # type: ignore[arg-type]
    found = await status.read()
    assert (found["nodes"], found["processes"]) == (None, None)
    assert found["unknown"] == "Ray's head does not answer"
    assert found["lag"]["uploads"] == 3


def test_the_command_asks_for_an_address() -> None:
    answer = CliRunner(env={"WALLE_URL": ""}).invoke(app, ["cloud", "status"])
    assert "WALLE_URL" in str(answer.exception)


def test_no_cloud_is_an_error_that_names_the_address() -> None:
    answer = CliRunner().invoke(app, ["cloud", "status", "--url", "http://127.0.0.1:1", "--json"])
    assert "no cloud answers at http://127.0.0.1:1" in str(answer.exception)
