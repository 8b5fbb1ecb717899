"""Connection to an MQTT broker that says of a message that was refused whether its content is the reason."""

from collections.abc import Mapping
from typing import Any, Self

from walle.client.mqtt import MqttConnection, MqttConnectionError

# Reason codes of MQTT 5: malformed packet, protocol error, topic name, packet too large, payload format.
_OF_CONTENT = {0x81, 0x82, 0x90, 0x95, 0x99}
_CONTENT_TYPE_BYTES = 19  # the property ContentType of `MqttConnection.publish`: number, length, application/json


class MqttMessageError(MqttConnectionError):
    """A message that the broker refuses, or ends the connection for, because of what it is.

    Of messages that are sent at once it may be another one: sent alone, a message that is refused is the reason.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what, may_pass=False)


class MqttPublisher(MqttConnection):
    """A connection for `publish`, as `MqttConnection`, that knows the broker's bound for a message."""

    _max_packet_bytes: int | None = None
    _end_code: int | None = None  # reason with which the broker ended the connection

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        assert self._client is not None
        end = self._client.on_disconnect

        def on_disconnect(client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
            if flags.is_disconnect_packet_from_server:
                self._end_code = reason.value
            if end is not None:
                end(client, data, flags, reason, properties)  # type: ignore[call-arg]

        if end is not None:  # else it has ended already
            self._client.on_disconnect = on_disconnect
        return self

    async def publish(self, topic: str, payload: bytes, *, user: Mapping[str, str]) -> None:
        """Send a message as `MqttConnection.publish`.

        Raises:
            MqttMessageError: the broker refuses it, or has ended the connection, for the content of a message; or it is
                larger than the broker takes, and was not sent.
            MqttConnectionError: as `MqttConnection.publish`.
        """
        size_bytes = packet_bytes(topic, payload, user)
        if self._max_packet_bytes is not None and size_bytes > self._max_packet_bytes:
            what = f"Packet too large: {size_bytes:,} bytes; the broker accepts {self._max_packet_bytes:,}"
            raise MqttMessageError(what)
        try:
            await super().publish(topic, payload, user=user)
        except MqttMessageError:
            raise
        except MqttConnectionError as error:
            if self._end_code in _OF_CONTENT or isinstance(error.__cause__, ValueError):  # wrong size or topic
                raise MqttMessageError(error.what) from error
            raise

    async def _answer(self, mid: int | None, what: str) -> Any:
        code = await super()._answer(mid, what)
        if mid and code is not None and code.value in _OF_CONTENT:
            raise MqttMessageError(f"the broker refused the message: {code}")
        return code

    def _on_connect(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        self._max_packet_bytes = getattr(properties, "MaximumPacketSize", None)
        super()._on_connect(client, data, flags, code, properties)


def packet_bytes(topic: str, payload: bytes, user: Mapping[str, str]) -> int:
    """Return the size of a PUBLISH packet with QoS 1 and the properties of `MqttConnection.publish`."""
    pairs_bytes = sum(5 + len(name.encode()) + len(value.encode()) for name, value in user.items())
    properties_bytes = _CONTENT_TYPE_BYTES + pairs_bytes
    properties_bytes += _length_bytes(properties_bytes)
    remaining_bytes = 2 + len(topic.encode()) + 2 + properties_bytes + len(payload)
    return 1 + _length_bytes(remaining_bytes) + remaining_bytes


def _length_bytes(number: int) -> int:
    """Return the bytes of a length as MQTT writes it, 7 bits in each."""
    return max(1, (number.bit_length() + 6) // 7)
