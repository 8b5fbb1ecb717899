"""A device's tunnel to the cloud: a client that is replaced when it ends, and the dictionaries of its uploads."""

import logging
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from walle.base.clock import Clock
from walle.device.config import DeviceConfig
from walle.device.credentials import DeviceCredentials
from walle.errors import PipelineError
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.tunnel.client.client import TunnelClient
from walle.pipeline.tunnel.client.sessions import ResumingContext
from walle.pipeline.tunnel.dictionaries import Dictionary

_LOG = logging.getLogger(__name__)

_RETRY_S = 60.0  # pause after a tunnel was refused or failed permanently


class CloudTunnel:
    """The present tunnel client, and what a new one needs.

    `on_ack(seq, latency_s)` is called for each acknowledged upload.
    """

    def __init__(
        self,
        config: DeviceConfig,
        outbox: Outbox,
        ssl_context: ResumingContext,
        clock: Clock,
        rng: random.Random,
        *,
        on_ack: Callable[[int, float], None],
    ) -> None:
        self._dictionaries: Mapping[str, Dictionary] = {}  # by task
        self._config = config
        self._outbox = outbox
        self._ssl_context = ssl_context
        self._clock = clock
        self._rng = rng
        self._on_ack = on_ack
        self.client = self._new_client()

    def _new_client(self) -> TunnelClient:
        config = self._config
        client = TunnelClient(
            self._outbox,
            device_id=config.device_id,
            host=config.tunnel_host,
            port=config.tunnel_port,
            ssl_context=self._ssl_context,
            clock=self._clock,
            rng=self._rng,
            on_ack=self._on_ack,
        )
        client.use_dictionaries(self._dictionaries)
        return client

    def show(self, certificate: Path, key: Path) -> None:
        """Show the device's certificate from now on; the present connection moves to another one."""
        self._ssl_context.show(certificate, key)
        self.client.reconnect()

    async def run(self, credentials: DeviceCredentials) -> None:
        """Keep a tunnel up once there is a certificate: replace a client that ends by a new one.

        A client ends where it is refused, or its outbox cannot be read.
        """
        await credentials.wait_certificate()
        while True:
            try:
                await self.client.run()
            except PipelineError as error:
                _LOG.error("%s: the tunnel ended, retrying later: %s", self._config.device_id, error)
            await self._clock.sleep(_RETRY_S * self._rng.uniform(0.5, 1.5))
            self.client = self._new_client()

    def use_dictionaries(self, by_task: Mapping[str, Dictionary]) -> None:
        """Compress the uploads of these tasks with their dictionaries, in later clients too."""
        self._dictionaries = dict(by_task)
        self.client.use_dictionaries(self._dictionaries)
