"""Sink to an MQTT broker: a message for each row, with QoS 1, at least once.

A row of topic `shop/visits` goes to `TOPIC/shop/visits`, as JSON, with its key in the user property `key`. QoS 2 would
add nothing: its hand-shake is within one connection, and a process that was killed does not know which messages came
through.
"""

import asyncio
import re
import secrets
from collections.abc import Sequence

from walle.address import Address
from walle.mqtt import MqttConnection, MqttConnectionError, check_mqtt
from walle.sinks.sink import Sink, SinkError, SinkRow

_AT_ONCE = 100  # messages that are not acknowledged yet
# A broker may close the connection for these (MQTT 5, 1.5.4), and devices choose topics and epochs.
_UNPRINTABLE = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff\\ufdd0-\\ufdef"
    + "".join(chr(n << 16 | 0xFFFE) + chr(n << 16 | 0xFFFF) for n in range(17))
    + "]"
)
_WILDCARDS = re.compile(r"[+#]")


class MqttSink(Sink):
    """Messages below the topic of `address`.

    Raises:
        ConfigError: the address has no topic, or paho-mqtt is not installed.
    """

    def __init__(self, address: Address, group: str, *, password: str = "", ca_file: str = "") -> None:
        address.check_options()
        check_mqtt(address)
        self.target = str(address)
        self._address = address
        self._group = group
        self._password = password
        self._ca_file = ca_file
        self._prefix = _topic(address.path.strip("/"))
        self._connection: MqttConnection | None = None

    async def start(self) -> None:
        await self._connect()

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.__aexit__()

    async def write(self, rows: Sequence[SinkRow]) -> None:
        written = 0
        try:
            connection = self._connection or await self._connect()
            for written in range(0, len(rows), _AT_ONCE):
                await self._publish(connection, rows[written : written + _AT_ONCE])
        except SinkError as error:
            await self.close()
            error.written = written
            raise

    async def _connect(self) -> MqttConnection:
        identifier = f"walle-sink-{self._group}-{secrets.token_hex(4)}"
        connection = MqttConnection(self._address, identifier, password=self._password, ca_file=self._ca_file)
        try:
            await connection.__aenter__()
        except MqttConnectionError as error:
            raise SinkError(self.target, error.what, may_pass=error.may_pass) from error
        self._connection = connection
        return connection

    async def _publish(self, connection: MqttConnection, rows: Sequence[SinkRow]) -> None:
        works = [asyncio.ensure_future(self._send(connection, row)) for row in rows]
        try:
            for work in works:
                await work
        except MqttConnectionError as error:
            raise SinkError(self.target, error.what, may_pass=error.may_pass) from error
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def _send(self, connection: MqttConnection, row: SinkRow) -> None:
        topic = f"{self._prefix}/{_topic(row.received.topic)}"
        await connection.publish(topic, row.encode(), user={"key": _UNPRINTABLE.sub("_", row.key)})


def _topic(text: str) -> str:
    """Return a text as a topic that can be published to."""
    return _UNPRINTABLE.sub("_", _WILDCARDS.sub("_", text))
