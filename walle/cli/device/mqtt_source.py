"""Events of `walle device run` from an MQTT broker: JSON messages, acknowledged once the device's journal has them.

The broker keeps a session for the device, and what comes while it is away. MQTT has no positions: a message whose
acknowledgement was lost in a crash comes again. The device knows it by an id in the contents of its events; without one
it is taken a second time.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator

from walle.base.address import Address
from walle.base.backoff import Backoff
from walle.cli.device.program import Source
from walle.client.mqtt import MqttConnection, MqttConnectionError, check_mqtt
from walle.errors import ConfigError

_LOG = logging.getLogger(__name__)

SESSION_S = 7 * 86_400  # time that the broker keeps messages for a device that is away
_AHEAD = 64  # messages that are received before the device asks for them; far fewer than `LivePolicy.duplicates`


class MqttSource(Source):
    """Messages of the topics that `address` names, as filters of MQTT (`+`, `#`); its options are `client` and `id`.

    Raises:
        ConfigError: the address has no topic or other options, or paho-mqtt is not installed.
    """

    replayable = False
    endless = True

    def __init__(self, address: Address, device_id: str, *, password: str = "", ca_file: str = "") -> None:
        super().__init__()
        address.check_options("client", "id")
        check_mqtt(address)
        self.name = [str(address)]
        self.id_field = address.options.get("id", "")
        self._address = address
        self._identifier = address.options.get("client") or f"walle-{device_id}"
        self._password = password
        self._ca_file = ca_file

    async def events(self, start: int) -> AsyncGenerator[tuple[None, bytes]]:  # noqa: ARG002 - cannot go back
        """Give messages without end; a broker that does not answer is asked again.

        Raises:
            ConfigError: the broker refuses the device or its topics.
        """
        backoff = Backoff(random.Random(), first_s=0.5, most_s=30.0)
        while True:
            connection = MqttConnection(
                self._address,
                self._identifier,
                password=self._password,
                ca_file=self._ca_file,
                session_s=SESSION_S,
                messages_ahead=_AHEAD,
            )
            try:
                async with connection:
                    await connection.subscribe(self._address.path.strip("/"))
                    if self.error:
                        _LOG.warning("%s: works again after %d failures", self._address, backoff.failures)
                    backoff.worked()
                    self.error = ""
                    async with contextlib.aclosing(connection.messages()) as payloads:
                        async for payload in payloads:
                            yield None, payload
            except MqttConnectionError as error:
                if not error.may_pass:
                    raise ConfigError(f"{self._address}: {error}") from error
                if not self.error:
                    _LOG.error("%s: %s; trying again until it works", self._address, error)
                self.error = f"{self._address}: {error}"
                await asyncio.sleep(backoff.failed())
