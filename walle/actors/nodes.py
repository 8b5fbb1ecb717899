"""The keeper of a cloud's nodes in a separate process."""

from walle.actors.keeper import NodeKeeper
from walle.actors.members import member_kinds
from walle.actors.service import Place, ServiceActor
from walle.cloud import CloudConfig


class NodesActor(ServiceActor):
    """`home_node`: as for a `NodeKeeper`."""

    def __init__(self, config: CloudConfig, place: Place, home_node: str) -> None:
        self._home_node = home_node
        super().__init__(config, place)

    async def _open(self) -> None:
        keeper = NodeKeeper(self._config, self._place, member_kinds(self._config), self._home_node)
        self._undo.push_async_callback(keeper.close)
        await keeper.start()
        self._set_node(keeper)
