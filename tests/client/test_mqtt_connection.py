"""Connections to a real Mosquitto broker: back-pressure with TLS, keep-alive, and what a lost connection leaves."""

import asyncio
import contextlib
import gc
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.night.cases import at_night
from tests.sim.mqtt_broker import PROGRAM, MqttBroker
from walle.access.identity.authority import Authority
from walle.base.address import parse_address
from walle.client.mqtt import MqttConnection, MqttConnectionError

pytest.importorskip("paho.mqtt.client", reason="paho-mqtt of the extra mqtt is not installed")
pytestmark = [pytest.mark.asyncio, pytest.mark.skipif(PROGRAM is None, reason="mosquitto is not installed")]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MqttBroker]:
    found = MqttBroker(tmp_path / "broker")
    found.start()
    yield found
    found.kill()


def connection_to(broker: MqttBroker, name: str, **options: object) -> MqttConnection:
    return MqttConnection(parse_address(f"{broker.url}/t", password_in="X"), name, **options)  # type: ignore[arg-type]


async def send(connection: MqttConnection, *payloads: bytes) -> None:
    await asyncio.gather(*(connection.publish("t", payload, user={}) for payload in payloads))


async def test_over_tls_a_slow_reader_gets_all(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    broker = MqttBroker(tmp_path / "broker", server_pem=authority.server_path)
    broker.start()
    try:
        ca_file = str(authority.ca_path)
        async with (
            asyncio.timeout(60),
            connection_to(broker, "reader", ca_file=ca_file, messages_ahead=8) as reader,
            connection_to(broker, "writer", ca_file=ca_file) as writer,
        ):
            await reader.subscribe("t")
            sent = [str(number).encode() for number in range(500)]
            for start in range(0, 500, 50):
                await send(writer, *sent[start : start + 50])
            found = []
            async with contextlib.aclosing(reader.messages()) as messages:
                async for payload in messages:
                    found.append(payload)
                    await asyncio.sleep(0.001)
                    if len(found) == 500:
                        break
            assert found == sent
    finally:
        broker.stop()


async def test_a_wrong_authority_is_named(tmp_path: Path) -> None:
    broker = MqttBroker(tmp_path / "broker", server_pem=Authority(tmp_path / "tls").server_path)
    broker.start()
    try:
        with pytest.raises(MqttConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            async with connection_to(broker, "a", ca_file=str(Authority(tmp_path / "other").ca_path)):
                pass
        gc.collect()
    finally:
        broker.stop()


async def test_large_messages_are_bounded_by_their_bytes(broker: MqttBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walle.client.mqtt._BYTES_AHEAD", 50_000)
    async with (
        asyncio.timeout(30),
        connection_to(broker, "reader") as reader,
        connection_to(broker, "writer") as writer,
    ):
        await reader.subscribe("t")
        for number in range(30):
            await send(writer, bytes([number]) * 20_000)
        await asyncio.sleep(0.2)
        assert len(reader._received) == 3
        async with contextlib.aclosing(reader.messages()) as messages:
            assert [(await anext(messages))[0] for _ in range(30)] == list(range(30))


async def test_the_broker_sends_no_message_that_is_too_large(
    broker: MqttBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walle.client.mqtt._MAX_PACKET_BYTES", 1_000)
    async with (
        asyncio.timeout(30),
        connection_to(broker, "reader") as reader,
        connection_to(broker, "writer") as writer,
    ):
        await reader.subscribe("t")
        await send(writer, b"x" * 2_000)
        await send(writer, b"small")
        assert await anext(reader.messages()) == b"small"


async def test_a_connection_whose_reading_pauses_is_kept_alive(broker: MqttBroker) -> None:
    async with (
        asyncio.timeout(30),
        connection_to(broker, "reader", messages_ahead=2, keepalive_s=1) as reader,
        connection_to(broker, "writer") as writer,
    ):
        await reader.subscribe("t")
        await send(writer, *[b"x"] * 20)
        async with contextlib.aclosing(reader.messages()) as messages:
            await anext(messages)
            await asyncio.sleep(4.0)  # the broker's limit is 1.5 s
            for _ in range(19):
                await anext(messages)
            await send(writer, b"y")
            assert await anext(messages) == b"y"


async def test_a_broker_that_is_silent_is_noticed_by_its_missing_pings(broker: MqttBroker) -> None:
    async with asyncio.timeout(30), connection_to(broker, "reader", keepalive_s=1) as reader:
        await reader.subscribe("t")
        async with contextlib.aclosing(reader.messages()) as messages:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2.5):
                    await anext(messages)  # the pings are answered
        broker.freeze()
        with pytest.raises(MqttConnectionError, match="nothing came from the broker for") as caught:
            await anext(reader.messages())
        assert caught.value.may_pass


async def test_messages_of_qos_0_outlive_the_connection_and_others_come_again(
    broker: MqttBroker,
) -> None:
    paho = pytest.importorskip("paho.mqtt.publish")
    async with asyncio.timeout(30):
        async with connection_to(broker, "reader", session_s=60) as reader:
            await reader.subscribe("t")
            sent = [{"topic": "t", "payload": f"{number}", "qos": number % 2} for number in range(10)]
            await asyncio.to_thread(paho.multiple, sent, "127.0.0.1", broker.port)
            messages = reader.messages()
            assert await anext(messages) == b"0"
            await asyncio.sleep(0.5)
            broker.stop()  # the broker writes the session
            await asyncio.sleep(0.5)
            assert [await anext(messages) for _ in range(4)] == [b"2", b"4", b"6", b"8"]
            with pytest.raises(MqttConnectionError, match="the connection was lost"):
                await anext(messages)
        broker.start()
        async with connection_to(broker, "reader", session_s=60) as reader:
            messages = reader.messages()
            assert [await anext(messages) for _ in range(5)] == [b"1", b"3", b"5", b"7", b"9"]


@pytest.mark.parametrize("way", [*at_night("kill", "stop"), "freeze"])
async def test_a_broker_that_goes_ends_publishing_with_the_cause(
    way: str, broker: MqttBroker, caplog: pytest.LogCaptureFixture
) -> None:
    cause = {
        "kill": "the connection was lost",
        "stop": "the connection was lost",
        "freeze": "nothing came from the broker",
    }[way]
    async with asyncio.timeout(30), connection_to(broker, "writer", keepalive_s=1) as writer:
        await send(writer, b"first")
        publishing = [asyncio.ensure_future(writer.publish("t", b"x" * 1000, user={})) for _ in range(500)]
        await asyncio.sleep(0)
        getattr(broker, way)()
        errors = await asyncio.gather(*publishing, return_exceptions=True)
        with pytest.raises(MqttConnectionError, match=cause):
            await writer.publish("t", b"later", user={})
    assert {str(error) for error in errors if error is not None} <= {str(errors[-1])}
    assert cause in str(errors[-1])
    del errors, publishing
    gc.collect()
    assert not caplog.records


@contextlib.asynccontextmanager
async def scripted_broker(*steps: Callable[[bytes], bytes], tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve connections, in which each step gives the answer to one packet; give the address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for step in steps:
                head = await reader.readexactly(2)
                writer.write(step(head + await reader.readexactly(head[1])))
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        yield f"mqtt{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}/t"


def accepted(_packet: bytes) -> bytes:
    return b"\x20\x03\x00\x00\x00"


def subscription(code: int) -> Callable[[bytes], bytes]:
    return lambda packet: b"\x90\x04" + packet[2:4] + b"\x00" + bytes([code])


def message(payload: bytes) -> bytes:
    """Return a PUBLISH of QoS 0."""
    return bytes([0x30, 4 + len(payload)]) + b"\x00\x01t\x00" + payload


async def read_all(connection: MqttConnection, found: list[bytes]) -> None:
    """Subscribe, and add payloads to `found` until the connection ends."""
    await connection.subscribe("t")
    async with contextlib.aclosing(connection.messages()) as messages:
        async for payload in messages:
            found.append(payload)  # noqa: PERF401 - also where the connection ends


async def test_messages_in_one_record_of_tls_are_read_after_a_pause(tmp_path: Path) -> None:
    """They are decrypted with the first one, so that the socket has nothing to read any more."""
    authority = Authority(tmp_path / "tls")
    sent = b"".join([message(str(number).encode()) for number in range(100)])
    answers = (accepted, lambda asked: subscription(0)(asked) + sent)
    async with (
        asyncio.timeout(10),
        scripted_broker(*answers, tls=authority.server_context()) as url,
        MqttConnection(
            parse_address(url, password_in="X"), "a", ca_file=str(authority.ca_path), messages_ahead=8
        ) as connection,
    ):
        await connection.subscribe("t")
        async with contextlib.aclosing(connection.messages()) as messages:
            assert [int(await anext(messages)) for _ in range(100)] == list(range(100))


async def test_reasons_of_the_broker_are_the_cause() -> None:
    taken_over = b"\xe0\x02\x8e\x00"
    going = b"\xe0\x0b\x8b\x09\x1f\x00\x06update"
    for packet, words in (
        (taken_over, r"the broker ended the connection: Session taken over$"),
        (going, r"the broker ended the connection: Server shutting down \(update\)$"),
        (b"\xff\x00", "the broker sent what is not MQTT 5"),
        (b"\x30\x02\x00\x09", "the connection failed"),  # a topic that is longer than its packet
    ):
        answers = (accepted, lambda asked, packet=packet: subscription(0)(asked) + packet)
        async with (
            asyncio.timeout(30),
            scripted_broker(*answers) as url,
            MqttConnection(parse_address(url, password_in="X"), "a") as connection,
        ):
            with pytest.raises(MqttConnectionError, match=words) as caught:
                await read_all(connection, [])
            assert caught.value.may_pass


@pytest.mark.parametrize("before", [0, 3, 50])
async def test_a_refused_subscription_is_final_also_behind_messages(before: int) -> None:
    sent = b"".join([message(str(number).encode()) for number in range(before)])
    found: list[bytes] = []
    async with (
        asyncio.timeout(30),
        scripted_broker(accepted, lambda asked: sent + subscription(0x87)(asked)) as url,
        MqttConnection(parse_address(url, password_in="X"), "a", messages_ahead=8) as connection,
    ):
        with pytest.raises(MqttConnectionError, match="refuses the subscription: Not authorized") as caught:
            await read_all(connection, found)
        assert not caught.value.may_pass
    assert found == [str(number).encode() for number in range(before)][: before if before > 8 else 0]


async def test_the_keep_alive_of_the_broker_counts() -> None:
    pinged = asyncio.Event()

    def note(packet: bytes) -> bytes:
        assert packet == b"\xc0\x00"
        pinged.set()
        return b"\xd0\x00"

    def short(_packet: bytes) -> bytes:
        return b"\x20\x06\x00\x00\x03\x13\x00\x01"

    async with (
        asyncio.timeout(20),
        scripted_broker(short, note) as url,
        MqttConnection(parse_address(url, password_in="X"), "a"),
    ):
        await pinged.wait()


@pytest.mark.night
async def test_a_cancelled_connect_leaves_no_socket(broker: MqttBroker, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(20):
        connecting = asyncio.ensure_future(connection_to(broker, f"c{number}").__aenter__())
        await asyncio.sleep(0.0005 * number)
        connecting.cancel()
        (found,) = await asyncio.gather(connecting, return_exceptions=True)
        if isinstance(found, MqttConnection):
            await found.__aexit__()
        del found, connecting
    await asyncio.sleep(0.1)
    gc.collect()
    assert not caplog.records
