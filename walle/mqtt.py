"""Connections to an MQTT broker (protocol 5, Python package `aiomqtt`): refusals of each message, acknowledgements.

aiomqtt says neither what a broker answered to a message, nor lets its user acknowledge one: both are asked of the paho
client in it.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, cast

from walle.address import Address
from walle.errors import ConfigError, PipelineError
from walle.extras import install_hint

if TYPE_CHECKING:
    import aiomqtt

_TIMEOUT_S = 10.0  # of each answer
_PORT, _TLS_PORT = 1883, 8883
# Reason codes of MQTT 5 that no retry changes: malformed, protocol, names, not authorized, too large, not supported.
_FINAL = {0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x8F, 0x90, 0x95, 0x99, 0x9A, 0x9B, 0x9E, 0xA1, 0xA2}


class MqttConnectionError(PipelineError):
    """A broker that cannot be reached, or refuses; `may_pass`: a retry may succeed."""

    def __init__(self, what: str, *, may_pass: bool) -> None:
        super().__init__(what)
        self.what = what
        self.may_pass = may_pass


def check_mqtt(address: Address) -> None:
    """Check that an address names a broker and a topic, and that aiomqtt is installed.

    Raises:
        ConfigError: it does not, or is not.
    """
    if not address.host or not address.path.strip("/"):
        raise ConfigError(f"{address}: name the broker and a topic, such as mqtt://broker.example/features")
    try:
        import aiomqtt  # noqa: F401
    except ImportError:
        raise ConfigError(f"{address}: MQTT needs aiomqtt: {install_hint('mqtt')}") from None


class MqttConnection:
    """One connection, within `async with`.

    Args:
        address: of the broker; `mqtts` is TLS.
        identifier: of the client; the broker disconnects an older connection of the same.
        password: of the address's user.
        ca_file: a file of certificate authorities, the system's if empty.
        session_s: seconds that the broker keeps subscriptions and messages while the client is away; 0: none.
        receive_maximum: messages that the broker sends before one of them is acknowledged.
    """

    def __init__(
        self,
        address: Address,
        identifier: str,
        *,
        password: str = "",
        ca_file: str = "",
        session_s: int = 0,
        receive_maximum: int = 64,
    ) -> None:
        self._address = address
        self._identifier = identifier
        self._password = password
        self._ca_file = ca_file
        self._session_s = session_s
        self._receive_maximum = receive_maximum
        self._client: aiomqtt.Client | None = None
        self._refused: Any = None  # reason code of a message that the broker refused

    async def __aenter__(self) -> Self:
        import aiomqtt
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.ReceiveMaximum = self._receive_maximum
        properties.SessionExpiryInterval = self._session_s
        address, is_tls = self._address, self._address.scheme == "mqtts"
        context = None
        if is_tls:
            try:
                context = ssl.create_default_context(cafile=self._ca_file or None)
            except OSError as error:
                what = f"the file of authorities {self._ca_file!r} cannot be read: {error}"
                raise MqttConnectionError(what, may_pass=False) from error
        client = aiomqtt.Client(
            address.host,
            address.port or (_TLS_PORT if is_tls else _PORT),
            username=address.user or None,
            password=self._password or None,
            identifier=self._identifier,
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=not self._session_s,
            timeout=_TIMEOUT_S,
            properties=properties,
            tls_context=context,
        )
        client.pending_calls_threshold = 1 << 16  # which is only logged
        client._client.manual_ack_set(True)
        inner = cast("Callable[..., None]", client._client.on_publish)

        def on_publish(paho: Any, userdata: Any, mid: int, reason_code: Any, properties: Any) -> None:
            if reason_code.is_failure:
                self._refused = reason_code
            inner(paho, userdata, mid, reason_code, properties)

        client._client.on_publish = on_publish
        with _errors():
            await client.__aenter__()
        self._client = client
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            import aiomqtt

            client, self._client = self._client, None
            with contextlib.suppress(aiomqtt.MqttError):
                await client.__aexit__(None, None, None)

    async def publish(self, topic: str, payload: bytes, *, user: Mapping[str, str]) -> None:
        """Send a message with QoS 1, and return once the broker has it; `user` are its user properties.

        Raises:
            MqttConnectionError: it may have it, or not; or the broker refused a message of this connection.
        """
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        assert self._client is not None
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType = "application/json"
        properties.UserProperty = list(user.items())
        with _errors():
            await self._client.publish(topic, payload, qos=1, properties=properties)
        if (refused := self._refused) is not None:
            what = f"the broker refused a message to {topic[:200]!r}: {refused}"
            raise MqttConnectionError(what, may_pass=refused.value not in _FINAL)

    async def subscribe(self, topic_filter: str) -> None:
        """Subscribe with QoS 1, without retained messages.

        Raises:
            MqttConnectionError: the broker refuses.
        """
        from paho.mqtt.subscribeoptions import SubscribeOptions

        assert self._client is not None
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        with _errors():
            (code,) = await self._client.subscribe(topic_filter, options=options)
        if not isinstance(code, int) and code.is_failure:
            raise MqttConnectionError(
                f"the broker refuses a subscription to {topic_filter[:200]!r}: {code}", may_pass=False
            )

    async def messages(self) -> AsyncIterator["aiomqtt.Message"]:
        """Yield messages; each is acknowledged when the next is asked for.

        Raises:
            MqttConnectionError: the connection ended.
        """
        assert self._client is not None
        with _errors():
            async for message in self._client.messages:
                yield message
                self._client._client.ack(message.mid, message.qos)


@contextlib.contextmanager
def _errors() -> Any:
    """Turn errors of the client within the block into ours."""
    import aiomqtt

    try:
        yield
    except aiomqtt.MqttCodeError as error:
        code = getattr(error.rc, "value", None)
        raise MqttConnectionError(f"{error}", may_pass=code not in _FINAL) from error
    except (aiomqtt.MqttError, OSError, ValueError) as error:
        what = f"does not answer ({str(error) or type(error).__name__})"
        raise MqttConnectionError(what, may_pass=not isinstance(error, ValueError)) from error
