"""Clouds that outlive their command: the order in which their actors end, and what is left afterwards."""

from pathlib import Path

import pytest

from walle.actors import detached
from walle.actors.detached import NotRunningError, running, stop
from walle.actors.node import NodeLostError
from walle.actors.process import KEEPER
from walle.cloud import CloudConfig
from walle.cloud.folder.shared_folder import NOTES, make_cloud_id


class FakeCluster:
    """Actors of a cluster by namespace, each of which is its name; `lost` ones have ended when they are looked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actors: dict[str, set[str]] = {}
        self.lost: set[str] = set()
        self.ended: list[str] = []
        self.joined: list[str] = []
        monkeypatch.setattr(detached, "start_ray", self.joined.append)
        monkeypatch.setattr(detached, "close_ray", lambda: self.joined.append("left"))
        monkeypatch.setattr(detached, "actor_names", lambda namespace: self.actors.get(namespace, set()))
        monkeypatch.setattr(detached, "find", self._find)
        monkeypatch.setattr(detached, "end", self._end)
        monkeypatch.setattr(detached, "ask", self._ask)

    def _find(self, name: str, namespace: str) -> str:
        if name in self.lost or name not in self.actors.get(namespace, set()):
            raise NodeLostError(name, "it has ended")
        return name

    async def _end(self, actor: str) -> None:
        self.ended.append(actor)

    async def _ask(self, actor: str, method: str) -> tuple[str, str]:
        return f"{method} of {actor}", ""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    return FakeCluster(monkeypatch)


@pytest.mark.asyncio
async def test_the_keeper_ends_first_then_processes_of_nodes_then_services(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    """A keeper that is left would start the others again."""
    namespace = f"walle-{make_cloud_id(tmp_path)}"
    edge, tunnel = f"edge-{'a' * 8}-0", f"tunnel-{'b' * 8}-1"
    names = {"gateway", "identities", "inference-0", "monitor", "releases", edge, tunnel, KEEPER}
    cluster.actors = {namespace: names, "walle-other": {"gateway"}}
    assert (tmp_path / NOTES).is_dir()
    assert await stop(tmp_path, "auto") == sorted(names)
    assert cluster.ended == [KEEPER, edge, tunnel, "gateway", "releases", "monitor", "identities", "inference-0"]
    assert cluster.joined == ["auto", "left"]
    assert not (tmp_path / NOTES).exists()


@pytest.mark.asyncio
async def test_an_actor_that_has_ended_meanwhile_keeps_no_other(tmp_path: Path, cluster: FakeCluster) -> None:
    cluster.actors = {f"walle-{make_cloud_id(tmp_path)}": {KEEPER, "gateway", "monitor"}}
    cluster.lost = {"gateway"}
    await stop(tmp_path, "auto")
    assert cluster.ended == [KEEPER, "monitor"]


@pytest.mark.asyncio
async def test_a_cloud_that_does_not_run_is_an_error_and_the_cluster_is_left(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    make_cloud_id(tmp_path)
    cluster.actors = {"walle-other": {"gateway"}}
    with pytest.raises(NotRunningError, match="no cloud of this folder runs on the cluster at 'auto'"):
        await stop(tmp_path, "auto")
    assert cluster.joined == ["auto", "left"]
    assert (tmp_path / NOTES).is_dir()


@pytest.mark.asyncio
async def test_the_address_is_that_of_the_gateway_of_this_folder(tmp_path: Path, cluster: FakeCluster) -> None:
    config = CloudConfig(folder=tmp_path, shared_folder=True)
    namespace = f"walle-{make_cloud_id(tmp_path)}"
    assert await running(config) is None
    cluster.actors = {namespace: {"gateway"}}
    assert await running(config) == "address of gateway"  # type: ignore[comparison-overlap]
    cluster.lost = {"gateway"}
    assert await running(config) is None
