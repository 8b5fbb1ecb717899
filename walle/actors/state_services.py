"""The services that have a cloud's state, each in a separate process: releases, monitor, identities of devices."""

from walle.actors.service import ServiceActor
from walle.cloud import MonitorNode, ReleaseNode
from walle.cloud.nodes.identity import IdentityNode


class ReleaseActor(ServiceActor):
    async def _open(self) -> None:
        owner = ReleaseNode(self._config)
        self._undo.push_async_callback(owner.close)
        gateway, monitor = self._peer("gateway"), self._peer("monitor")
        self._set_node(await owner.start(gateway, monitor, is_successor=self.is_successor()))
        await self._end_when_lost(owner.lost)


class MonitorActor(ServiceActor):
    early = frozenset({"watch", "unwatch"})

    async def _open(self) -> None:
        releases = self._peer("releases")
        owner = MonitorNode(self._config)
        self._undo.push_async_callback(owner.close)
        node = await owner.start(is_successor=self.is_successor())
        node.on_verdict = releases.verdict
        self._set_node(node)
        await self._end_when_lost(owner.lost)
        if self.is_successor():  # the journal may lack the latest steps: a report must find the gate of its step
            await releases.set_gates()


class IdentityActor(ServiceActor):
    async def _open(self) -> None:
        owner = IdentityNode(self._config)
        self._undo.push_async_callback(owner.close)
        self._set_node(await owner.start())
