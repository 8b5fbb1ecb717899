"""The monitor that takes failing versions back, in a separate process."""

from walle.actors.service import ServiceActor
from walle.cloud import MonitorNode


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
