"""A device's tunnel to the cloud: a client that is replaced when it ends, and the dictionaries of its uploads."""

import itertools
import logging
import random
import ssl
from collections.abc import Callable, Iterable, Mapping

from walle.clock import Clock
from walle.credential import device_credential
from walle.device.config import DeviceConfig
from walle.errors import PipelineError
from walle.pipeline.outbox import Outbox
from walle.pipeline.tunnel.client import TunnelClient
from walle.pipeline.tunnel.dictionaries import Dictionary

_LOG = logging.getLogger(__name__)

_RETRY_S = 60.0  # after a tunnel was refused or failed permanently
_MAX_TOPICS = 1000  # of one task, that get its dictionary


class CloudTunnel:
    """The present tunnel client, and what a new one needs.

    `on_ack(seq, latency_s)` is called for each acknowledged upload.
    """

    def __init__(
        self,
        config: DeviceConfig,
        outbox: Outbox,
        ssl_context: ssl.SSLContext,
        clock: Clock,
        rng: random.Random,
        *,
        on_ack: Callable[[int, float], None],
    ) -> None:
        self.dictionaries: Mapping[str, Dictionary] = {}  # by topic
        self._config = config
        self._outbox = outbox
        self._ssl_context = ssl_context
        self._clock = clock
        self._rng = rng
        self._on_ack = on_ack
        self._topics: dict[str, str] = {}  # of tasks with a dictionary: topic → task
        self._by_task: Mapping[str, Dictionary | None] = {}
        self.client = self._new_client()

    def _new_client(self) -> TunnelClient:
        config = self._config
        client = TunnelClient(
            self._outbox,
            device_id=config.device_id,
            token=device_credential(config.token, config.device_id),
            host=config.tunnel_host,
            port=config.tunnel_port,
            ssl_context=self._ssl_context,
            clock=self._clock,
            rng=self._rng,
            on_ack=self._on_ack,
        )
        client.use_dictionaries(self.dictionaries)
        return client

    async def run(self) -> None:
        """Keep a tunnel up: replace a client that ends (refused, or its outbox cannot be read) by a new one."""
        while True:
            try:
                await self.client.run()
            except PipelineError as error:
                _LOG.error("%s: the tunnel ended, retrying later: %s", self._config.device_id, error)
            await self._clock.sleep(_RETRY_S * self._rng.uniform(0.5, 1.5))
            self.client = self._new_client()

    # --- dictionaries -------------------------------------------------------------------------------------------------

    def use_dictionaries(self, by_task: Mapping[str, Dictionary | None]) -> None:
        """Compress uploads of these active tasks, each with its dictionary if it has one.

        A task's topics are its name and those that it was the first to put, of the tasks with a dictionary.
        """
        self._by_task = by_task
        self._topics = {topic: task for topic, task in self._topics.items() if task in by_task}
        topics = {**self._topics, **{task: task for task in by_task}}
        by_topic = {topic: by_task[task] for topic, task in topics.items()}
        self.dictionaries = {topic: found for topic, found in by_topic.items() if found is not None}
        self.client.use_dictionaries(self.dictionaries)

    def note_topics(self, task: str, topics: Iterable[str]) -> None:
        """Take note of the topics that a task has put."""
        if self._by_task.get(task) is None:
            return
        added = {topic: task for topic in topics if topic not in self._topics and topic not in self._by_task}
        if not added:
            return
        room = _MAX_TOPICS - list(self._topics.values()).count(task)
        if room > 0:
            self._topics |= itertools.islice(added.items(), room)
            self.use_dictionaries(self._by_task)
