"""Check of topics at receipt: a device's uploads are of tasks that it has or had (§5.1).

A device checks the topics of its tasks itself (`walle.pipeline.features.topics`). One that was taken over does not, so
the cloud checks them again. Where it cannot know, it takes the upload: a feature of an honest device must not be lost.
"""

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from walle.base.clock import Clock, SystemClock
from walle.pipeline.features.topics import owner
from walle.pipeline.tunnel.received import Received

_LOG = logging.getLogger(__name__)

ASK_S = 2.0  # time for an answer on tasks that are not known; then the uploads are taken
KNOWN_S = 600.0  # time after which a right topic is looked up again: its task may have had no release yet
AGAIN_S = 10.0  # pause before a task that is not a device's is asked for again
MAX_KNOWN = 100_000  # pairs of a device and a topic that are right; above, those known longest are forgotten
MAX_FOREIGN = 10_000  # pairs of a device and a task that are wrong

type DeviceTask = tuple[str, str]  # a device's id, and a task's full name
type ForeignTasks = Callable[[Sequence[DeviceTask]], Awaitable[frozenset[DeviceTask]]]
"""Returns those of the pairs whose device surely never had the task; raises any exception where it does not know."""

type DeviceTopic = tuple[str, str]


class TopicCheck(Protocol):
    """The interface that `pump` uses."""

    async def foreign(self, batch: Sequence[Received]) -> frozenset[DeviceTopic]:
        """Return the devices and topics of uploads that are not to be stored."""
        ...


class TaskTopics:
    """A check by `lookup`, whose answers are remembered: for KNOWN_S where a topic is right, else for AGAIN_S."""

    def __init__(self, lookup: ForeignTasks, clock: Clock | None = None) -> None:
        self._lookup = lookup
        self._clock = clock or SystemClock()
        self._known: OrderedDict[DeviceTopic, None] = OrderedDict()
        self._foreign: OrderedDict[DeviceTask, float] = OrderedDict()  # time of the look-up of a foreign task
        self._away_until_s = self._known_since_s = -math.inf

    async def foreign(self, batch: Sequence[Received]) -> frozenset[DeviceTopic]:
        """Return the devices and topics of uploads whose tasks the devices never had."""
        known = self._known
        if self._clock.monotonic() - self._known_since_s >= KNOWN_S:
            known.clear()
            self._known_since_s = self._clock.monotonic()
        unknown = {(one.device_id, one.topic) for one in batch if (one.device_id, one.topic) not in known}
        if not unknown:
            return frozenset()
        tasks = {pair: (pair[0], owner(pair[1])) for pair in unknown}
        since_s = self._clock.monotonic() - AGAIN_S
        asked = [
            one
            for one in dict.fromkeys(tasks.values())
            if "/" in one[1] and self._foreign.get(one, -math.inf) <= since_s
        ]
        wrong = self._foreign.keys() & (set(tasks.values()) - set(asked))  # now: `_ask` may forget some
        undecided = frozenset[DeviceTask]()
        if asked:
            found = await self._ask(asked)
            if found is None:
                undecided = frozenset(asked)
            else:
                wrong |= found
        foreign = frozenset(pair for pair in unknown if tasks[pair] in wrong)
        known.update(dict.fromkeys(pair for pair in unknown - foreign if tasks[pair] not in undecided))
        while len(known) > MAX_KNOWN:
            known.popitem(last=False)
        return foreign

    async def _ask(self, asked: Sequence[DeviceTask]) -> frozenset[DeviceTask] | None:
        """Return those of the tasks that are not their devices', None where they cannot be looked up now."""
        if self._clock.monotonic() < self._away_until_s:
            return None
        try:
            async with asyncio.timeout(ASK_S):
                found = await self._lookup(asked)
        except Exception as error:  # noqa: BLE001 -- whatever is away, uploads are stored
            what = "tasks of devices cannot be looked up, uploads are accepted unchecked: %s"
            _LOG.warning(what, str(error) or type(error).__name__)
            self._away_until_s = self._clock.monotonic() + AGAIN_S  # each try may delay a batch by ASK_S
            return None
        now_s = self._clock.monotonic()
        for one in asked:
            was_foreign = self._foreign.pop(one, None) is not None
            if one in found:
                self._foreign[one] = now_s  # the latest last
                if not was_foreign:
                    what = "device %.100r sends features of task %.200r, which no release gave it; they are refused"
                    _LOG.warning(what, *one)
        while len(self._foreign) > MAX_FOREIGN:
            self._foreign.popitem(last=False)
        return found
