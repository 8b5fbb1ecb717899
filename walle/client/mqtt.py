"""Connections to an MQTT broker (protocol 5, Python package `paho-mqtt`): back-pressure, acknowledgements, refusals."""

import asyncio
import contextlib
import functools
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from walle.base.address import Address
from walle.base.extras import install_hint
from walle.client.mqtt_link import MqttLink
from walle.errors import ConfigError, PipelineError

if TYPE_CHECKING:
    import paho.mqtt.client as paho
    from paho.mqtt.properties import Properties

_TIMEOUT_S = 10.0  # timeout of each answer
_PORT, _TLS_PORT = 1883, 8883
_CONNECT = 0  # number of the answer to CONNECT; those of packets begin at 1
_BYTES_AHEAD = 4 << 20  # payloads of received messages at which reading pauses
_MAX_PACKET_BYTES = 16 << 20  # a longer message is discarded by the broker
# Reason codes of MQTT 5 that no retry changes: malformed, protocol, names, not authorized, too large, not supported.
_FINAL = {0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x8F, 0x90, 0x95, 0x99, 0x9A, 0x9B, 0x9E, 0xA1, 0xA2}


class MqttConnectionError(PipelineError):
    """A broker that cannot be reached, or refuses; `may_pass`: a retry may succeed."""

    def __init__(self, what: str, *, may_pass: bool) -> None:
        super().__init__(what)
        self.what = what
        self.may_pass = may_pass


def check_mqtt(address: Address) -> None:
    """Check that an address names a broker and a topic, and that paho-mqtt is installed.

    Raises:
        ConfigError: it does not, or is not.
    """
    if not address.host or not address.path.strip("/"):
        raise ConfigError(f"{address}: name the broker and a topic, such as mqtt://broker.example/features")
    try:
        import paho.mqtt.client  # noqa: F401
    except ImportError:
        raise ConfigError(f"{address}: MQTT needs paho-mqtt: {install_hint('mqtt')}") from None


class _TlsSocket(ssl.SSLSocket):
    """A socket that is closed when its handshake fails; paho leaves it to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


class _Message(NamedTuple):
    payload: bytes
    mid: int  # packet identifier, by which it is acknowledged
    qos: int


class MqttConnection:
    """One connection, within `async with`. It publishes or subscribes: answers wait while reading is paused.

    Args:
        address: of the broker; `mqtts` is TLS.
        identifier: of the client; the broker disconnects an older connection of the same.
        password: of the address's user.
        ca_file: a file of certificate authorities, the system's if empty.
        session_s: seconds that the broker keeps subscriptions and messages while the client is away; 0: none.
        messages_ahead: messages that are received before one of them is asked for. Further ones wait at the broker:
            those of QoS 1 by the receive maximum, those of QoS 0 since the socket is not read.
        keepalive_s: seconds between packets that the broker may expect.
    """

    def __init__(
        self,
        address: Address,
        identifier: str,
        *,
        password: str = "",
        ca_file: str = "",
        session_s: int = 0,
        messages_ahead: int = 64,
        keepalive_s: int = 60,
    ) -> None:
        self._address = address
        self._identifier = identifier
        self._password = password
        self._ca_file = ca_file
        self._session_s = session_s
        self._messages_ahead = messages_ahead
        self._keepalive_s = keepalive_s
        self._client: paho.Client | None = None
        self._link: MqttLink | None = None
        self._end = ""  # cause of the end of the connection
        self._end_may_pass = True
        self._answers: dict[int, asyncio.Future[Any]] = {}  # reason codes by packet identifier; None: none will come
        self._received: deque[_Message] = deque()
        self._received_bytes = 0
        self._arrival = asyncio.Event()  # set when a message has come, or the end

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            MqttConnectionError: the broker cannot be reached, or refuses.
        """
        client = self._new_client()
        with _errors():
            await self._open_socket(client)
        self._client = client
        link = self._link = MqttLink(client, self._on_end, keepalive_s=self._keepalive_s)
        try:
            link.start()
            code = await self._answer(_CONNECT, "to CONNECT")
        except BaseException:
            await self.__aexit__()
            raise
        if code.is_failure:
            await self.__aexit__()
            what = f"the broker refuses the connection: {code}"
            raise MqttConnectionError(what, may_pass=code.value not in _FINAL)
        return self

    async def __aexit__(self, *_: object) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()
            self._on_end("the connection is closed")

    async def publish(self, topic: str, payload: bytes, *, user: Mapping[str, str]) -> None:
        """Send a message with QoS 1, and return once the broker has it; `user` are its user properties.

        Raises:
            MqttConnectionError: it may have it, or not; or the broker refused the message.
        """
        assert self._client is not None
        self._check_connected()
        properties = _properties("PUBLISH", ContentType="application/json", UserProperty=list(user.items()))
        with _errors():
            sent = self._client.publish(topic, payload, qos=1, properties=properties)
        code = await self._answer(sent.mid, "to a message")
        if code.is_failure:
            what = f"the broker refused a message to {topic[:200]!r}: {code}"
            raise MqttConnectionError(what, may_pass=code.value not in _FINAL)

    async def subscribe(self, topic_filter: str) -> None:
        """Subscribe with QoS 1, without retained messages.

        Messages of the session come first, and the answer behind them. Where they reach the bound, this returns without
        the answer, and `messages` raises what this would have raised.

        Raises:
            MqttConnectionError: the broker refuses.
        """
        from paho.mqtt.subscribeoptions import SubscribeOptions

        assert self._client is not None
        self._check_connected()
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        with _errors():
            _, mid = self._client.subscribe(topic_filter, options=options)
        if self._link is None or not self._link.is_paused:
            await self._answer(mid, "to a subscription")

    async def messages(self) -> AsyncGenerator[bytes]:
        """Yield payloads; a message is acknowledged when the next is asked for.

        After the end of the connection, those of QoS 0 that were received are yielded still. Others come again with the
        session.

        Raises:
            MqttConnectionError: the connection ended.
        """
        assert self._client is not None
        while True:
            while not self._received:
                self._check_connected()
                self._arrival.clear()
                await self._arrival.wait()
            message = self._received.popleft()
            self._received_bytes -= len(message.payload)
            if self._link is not None and self._link.is_paused and self._is_below(2):
                self._link.resume()
            if self._end and message.qos and self._session_s:
                continue
            yield message.payload
            if message.qos and not self._end:
                self._client.ack(message.mid, message.qos)

    # --- connecting ---------------------------------------------------------------------------------------------------

    def _new_client(self) -> "paho.Client":
        import paho.mqtt.client as paho
        from paho.mqtt.enums import CallbackAPIVersion

        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            self._identifier,
            protocol=paho.MQTTv5,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        address = self._address
        if address.user:
            client.username_pw_set(address.user, self._password or None)
        if address.scheme == "mqtts":
            try:
                context = ssl.create_default_context(cafile=self._ca_file or None)
            except OSError as error:
                what = f"the file of authorities {self._ca_file!r} cannot be read: {error}"
                raise MqttConnectionError(what, may_pass=False) from error
            context.sslsocket_class = _TlsSocket
            client.tls_set_context(context)
        client.on_connect = self._on_connect
        client.on_publish = lambda _client, _data, mid, code, _properties: self._resolve(mid, code)
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        return client

    async def _open_socket(self, client: "paho.Client") -> None:
        """Connect in a thread, since paho blocks until the socket is open. The thread of a cancelled call closes it."""
        address = self._address
        port = address.port or (_TLS_PORT if address.scheme == "mqtts" else _PORT)
        connect = functools.partial(
            client.connect,
            address.host,
            port,
            self._keepalive_s,
            clean_start=not self._session_s,
            properties=_properties(
                "CONNECT",
                ReceiveMaximum=self._messages_ahead,
                SessionExpiryInterval=self._session_s,
                MaximumPacketSize=_MAX_PACKET_BYTES,
            ),
        )
        opening = asyncio.get_running_loop().run_in_executor(None, connect)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await asyncio.shield(opening)
        except BaseException:
            opening.add_done_callback(functools.partial(_close_socket, client))
            raise

    # --- answers ------------------------------------------------------------------------------------------------------

    async def _answer(self, mid: int | None, what: str) -> Any:
        """Return the reason code of the broker's answer `what`."""
        self._check_connected()
        assert mid is not None
        answer = self._answers[mid] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                code = await answer
        except TimeoutError:
            what = f"does not answer (no answer {what} within {_TIMEOUT_S:.0f} s)"
            raise MqttConnectionError(what, may_pass=True) from None
        finally:
            del self._answers[mid]
        if code is None:
            self._check_connected()
        return code

    def _resolve(self, mid: int, code: Any) -> None:
        answer = self._answers.get(mid)
        if answer is not None and not answer.done():
            answer.set_result(code)

    def _check_connected(self) -> None:
        if self._end:
            raise MqttConnectionError(self._end, may_pass=self._end_may_pass)

    # --- callbacks of paho and of the link ----------------------------------------------------------------------------

    def _on_connect(self, _client: Any, _data: Any, _flags: Any, code: Any, properties: Any) -> None:
        if self._link is not None and (seconds := getattr(properties, "ServerKeepAlive", None)) is not None:
            self._link.keep_alive(seconds)
        self._resolve(_CONNECT, code)

    def _on_subscribe(self, _client: Any, _data: Any, mid: int, codes: Any, _properties: Any) -> None:
        (code,) = codes
        if code.is_failure:
            self._end_may_pass = False
            self._on_end(f"the broker refuses the subscription: {code}")
        else:
            self._resolve(mid, code)

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        if self._link is None:  # closing
            return
        self._received.append(_Message(bytes(message.payload), message.mid, message.qos))
        self._received_bytes += len(message.payload)
        self._arrival.set()
        if not self._is_below(1):
            self._link.pause()
            self._end_answers()

    def _is_below(self, divisor: int) -> bool:
        """Return whether fewer messages are received than the bounds, divided by `divisor`, allow."""
        return divisor * len(self._received) < self._messages_ahead and divisor * self._received_bytes < _BYTES_AHEAD

    def _on_end(self, cause: str) -> None:
        self._end = self._end or cause
        self._arrival.set()
        self._end_answers()

    def _end_answers(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(None)


def _properties(packet_type: str, **values: Any) -> "Properties":
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(getattr(PacketTypes, packet_type))  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


def _close_socket(client: "paho.Client", opening: "asyncio.Future[Any]") -> None:
    """Close the socket that a thread has opened for a call that is over."""
    if not opening.cancelled():
        opening.exception()  # retrieved, so that asyncio does not log it
    if (opened := client.socket()) is not None:
        opened.close()


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turn errors of the client within the block into ours."""
    try:
        yield
    except (OSError, ValueError) as error:
        what = f"does not answer ({str(error) or f'no connection within {_TIMEOUT_S:.0f} s'})"
        raise MqttConnectionError(what, may_pass=not isinstance(error, ValueError)) from error
