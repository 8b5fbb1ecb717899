"""Sink to an MQTT broker: a message for each row, with QoS 1, at least once.

A row of topic `shop/visits` goes to `TOPIC/shop/visits`, as JSON, with its key in the user property `key`. QoS 2 would
add nothing: its hand-shake is within one connection, and a process that was killed does not know which messages came
through.
"""

import asyncio
import re
import secrets
from collections.abc import Sequence

from walle.base.address import Address
from walle.client.mqtt import MqttConnectionError, check_mqtt
from walle.sinks.mqtt_publisher import MqttMessageError, MqttPublisher
from walle.sinks.sink import Refusal, Sink, SinkError, SinkRow, rows_refused

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
        self._connection: MqttPublisher | None = None
        self._is_one_by_one = False  # true for the next messages after a lost connection

    async def start(self) -> None:
        await self._connect()

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.__aexit__()

    async def write(self, rows: Sequence[SinkRow]) -> None:
        written = 0
        try:
            for written in range(0, len(rows), _AT_ONCE):
                some = rows[written : written + _AT_ONCE]
                if refused := await self._publish(some):
                    raise rows_refused(self.target, refused, written=written + len(some))
        except SinkError as error:
            await self.close()
            error.written = error.written or written
            raise

    async def _connect(self) -> MqttPublisher:
        identifier = f"walle-sink-{self._group}-{secrets.token_hex(4)}"
        connection = MqttPublisher(self._address, identifier, password=self._password, ca_file=self._ca_file)
        try:
            await connection.__aenter__()
        except MqttConnectionError as error:
            raise SinkError(self.target, error.what, may_pass=error.may_pass) from error
        self._connection = connection
        return connection

    async def _publish(self, rows: Sequence[SinkRow]) -> list[Refusal]:
        """Send rows, and return those that the broker refuses alone; it has the others."""
        if not self._is_one_by_one:
            failed = await self._send_all(rows)
            if not any(isinstance(error, MqttMessageError) for _, error in failed):
                # The broker's reason may be lost behind the messages that were sent, if a message is the cause.
                self._is_one_by_one = bool(failed) and failed[0][1].may_pass
                self._check(failed)
                return []
            rows = [row for row, _ in failed]
            await self.close()
        refused: list[Refusal] = []
        for row in rows:
            again = await self._send_all([row])
            if again and isinstance(again[0][1], MqttMessageError):
                refused.append(Refusal(row, again[0][1].what))
                await self.close()
            else:
                self._check(again)
        self._is_one_by_one = False
        return refused

    def _check(self, failed: "Sequence[tuple[SinkRow, MqttConnectionError]]") -> None:
        if failed:
            error = failed[0][1]
            raise SinkError(self.target, error.what, may_pass=error.may_pass) from error

    async def _send_all(self, rows: Sequence[SinkRow]) -> "list[tuple[SinkRow, MqttConnectionError]]":
        """Send rows at once, and return those that failed."""
        connection = self._connection or await self._connect()
        works = [asyncio.ensure_future(self._send(connection, row)) for row in rows]
        try:
            await asyncio.wait(works)
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
        failed: list[tuple[SinkRow, MqttConnectionError]] = []
        for row, work in zip(rows, works, strict=True):
            error = work.exception()
            if isinstance(error, MqttConnectionError):
                failed.append((row, error))
            elif error is not None:
                raise error
        return failed

    async def _send(self, connection: MqttPublisher, row: SinkRow) -> None:
        topic = f"{self._prefix}/{_topic(row.received.topic)}"
        await connection.publish(topic, row.encode(), user={"key": _UNPRINTABLE.sub("_", row.key)})


def _topic(text: str) -> str:
    """Return a text as a topic that can be published to."""
    return _UNPRINTABLE.sub("_", _WILDCARDS.sub("_", text))
