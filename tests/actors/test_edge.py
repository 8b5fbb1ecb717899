"""An edge gateway's actor, without Ray: which other processes it calls."""

from pathlib import Path
from typing import Any

import pytest

from walle.actors import edge as edge_module
from walle.actors.edge import EdgeActor
from walle.actors.node import Remote
from walle.actors.service import Place
from walle.cloud import CloudConfig


class _MadeError(Exception):
    pass


@pytest.mark.asyncio
async def test_the_way_to_the_monitor_is_made_before_the_first_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = Remote("monitor")  # type: ignore[arg-type]
    given: list[Any] = []

    def gateway(_config: CloudConfig, _find: object, monitor: Remote) -> None:
        given.append(monitor)
        raise _MadeError

    monkeypatch.setattr(Place, "peer", lambda _self, _name: monitor)
    monkeypatch.setattr(edge_module, "EdgeGateway", gateway)
    actor = EdgeActor(CloudConfig(folder=tmp_path, gateways=1), Place("ns", str(tmp_path)))
    with pytest.raises(_MadeError):
        await actor._open()
    assert given == actor._peers == [monitor]  # peers that are called now and then: see `walle.actors.node.touch`
