"""Trie of trigger conditions without options in plain Python: the reference for many conditions, and a peer in speed.

It has the pending lists of `walle/engine_ext/src/stream/consecutive_matcher.h`.
"""

from walle.pipeline.events.event import EventError
from walle.pipeline.trigger.trie import TriggerError
from walle.protocol import TriggerCondition


class _Node:
    """A middle node, or the start node. Its end node is `tasks`: task → the earliest event that may trigger it."""

    __slots__ = ("children", "tasks")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.tasks: dict[str, int] = {}


class PythonTrie:
    """Trigger conditions and the tasks they trigger; both may change between events.

    The paper's pending lists hold the nodes that are desired next. Here each list holds their parents instead, so that
    the desired nodes under one parent are found by look-up rather than by a scan: the static list is the start node,
    whose children are always desired; the dynamic list holds the nodes that the latest event matched.
    """

    def __init__(self) -> None:
        self._start = _Node()
        self._dynamic: list[_Node] = []
        self._fed = 0
        self._size = 0

    def __len__(self) -> int:
        """Return how many pairs of condition and task there are."""
        return self._size

    @property
    def pending(self) -> int:
        """Return the length of the dynamic list: parents of the nodes that the next event may match."""
        return len(self._dynamic)

    def add(self, condition: TriggerCondition, task: str) -> None:
        """Trigger `task` by `condition`, matched by events from now on. Adding a pair again changes nothing.

        Raises:
            TriggerError: the task has no name.
        """
        trigger_ids = condition.trigger_ids
        if not task:
            raise TriggerError(condition, task, "the task has no name")
        node = self._start
        for trigger_id in trigger_ids:
            child = node.children.get(trigger_id)
            if child is None:
                child = node.children[trigger_id] = _Node()
            node = child
        if task not in node.tasks:
            # A match that is under way over a shared prefix began before this pair was there and must not trigger it.
            node.tasks[task] = self._fed + len(trigger_ids)
            self._size += 1

    def remove(self, condition: TriggerCondition, task: str) -> None:
        """Remove the pair at once, and the nodes that no other condition needs.

        Raises:
            TriggerError: the pair is not in the trie.
        """
        trigger_ids = condition.trigger_ids
        path = [self._start]
        for trigger_id in trigger_ids:
            child = path[-1].children.get(trigger_id)
            if child is None:
                raise TriggerError(condition, task, "is not in the trie")
            path.append(child)
        if task not in path[-1].tasks:
            raise TriggerError(condition, task, "is not in the trie")
        del path[-1].tasks[task]
        self._size -= 1
        for parent, trigger_id in zip(reversed(path[:-1]), reversed(trigger_ids), strict=True):
            node = parent.children[trigger_id]
            if node.children or node.tasks:
                break
            del parent.children[trigger_id]

    def feed(self, event_id: str, page_id: str) -> list[str]:
        """Return the tasks whose condition ends at this event, each once, sorted by name.

        Raises:
            EventError: the event id is empty. An empty page id matches no trigger id.

        Source: §5.1.
        """
        if not event_id:
            raise EventError("event_id", "is empty")
        self._fed = fed = self._fed + 1
        matched = []
        for node in (self._start, *self._dynamic):
            child = node.children.get(event_id)
            if child is not None:
                matched.append(child)
            if page_id != event_id:
                child = node.children.get(page_id)
                if child is not None:
                    matched.append(child)
        triggered = {task for node in matched for task, first in node.tasks.items() if fed >= first} if matched else ()
        self._dynamic = [node for node in matched if node.children]
        return sorted(triggered)
