"""A task's dictionary, from git push to the uploads of a device: a whole cloud and its device in one process."""

from pathlib import Path

import pytest

from tests.night.cases import at_night
from tests.sim.shop_cloud import User, shop_cloud
from tests.sim.visits import TASK_CONFIG
from walle.pipeline.ingest.service import TunnelService
from walle.pipeline.tunnel.dictionaries import Dictionary, train_dictionary

_PATH = "resources/features.dict"
_CONFIG = f'{TASK_CONFIG}\n[files]\n"{_PATH}" = "shared"\n[tunnel]\ndictionary = "{_PATH}"\n'


@pytest.mark.asyncio
@pytest.mark.parametrize("processes", [1, *at_night(2)])
async def test_a_device_uploads_with_the_dictionary_of_its_active_version(tmp_path: Path, processes: int) -> None:
    data = train_dictionary([b'{"page": "item/%d", "count": %d}' % (n * 37 % 1000, n % 7) for n in range(300)], 512)
    digest = Dictionary(data).digest
    async with shop_cloud(tmp_path, tunnel_processes=processes) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await shop.push("v1", config=_CONFIG, **{_PATH: data})
        await shop.until(await shop.release("v1"), "full", users=[user])
        await user.until(lambda: user.has("v1"))

        def numbers() -> object:
            link = device.tunnel._link
            return None if link is None else dict(link.numbers)

        await user.until(lambda: numbers() == {digest: 1})
        await user.visit()
        await device.settled()
        tunnel = shop.cloud.gateway._tunnel.service
        if isinstance(tunnel, TunnelService):  # other processes do not show their connections
            (connection,) = tunnel.server._connections
            assert {number: known.digest for number, known in connection._decoder.dictionaries.items()} == {1: digest}
        assert await shop.received() == (await device.summary()).produced > 0
        await shop.push("v2", config=_CONFIG[: _CONFIG.index("[tunnel]")])
        await shop.until(await shop.release("v2"), "full", users=[user])
        await user.until(lambda: user.has("v2"))
        assert device.tunnel._dictionaries == {}
