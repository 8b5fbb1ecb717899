"""Sink to a Kafka topic: a record for each row, acknowledged by all replicas in sync, at least once.

The value is the row as JSON, the record's key the id of the device, so that a device's rows stay in order in one
partition; the header `key` names the row. After a kill, rows that were not committed come again with the same header.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator, Sequence
from typing import Any

from walle.base.address import Address
from walle.base.extras import install_hint
from walle.errors import ConfigError
from walle.sinks.sink import Refusal, Sink, SinkError, SinkRow, rows_refused

_PORT = 9092
_TIMEOUT_MS = 10_000
_MAX_REQUEST_BYTES = 16 << 20  # the broker's own bound is usually lower, and decides


class KafkaSink(Sink):
    """Records of the topic that `address` names; `kafkas` is TLS. The option `brokers` names more, by commas.

    Raises:
        ConfigError: the address has no topic, or aiokafka is not installed.
    """

    def __init__(self, address: Address, *, ca_file: str = "") -> None:
        address.check_options("brokers")
        self._topic = address.path.strip("/")
        if not address.host or not self._topic or "/" in self._topic:
            raise ConfigError(f"{address}: name a broker and a topic, such as kafka://broker.example:9092/features")
        if address.user:
            raise ConfigError(f"{address}: a user's password (SASL) is not supported; use TLS or a private network")
        try:
            import aiokafka  # noqa: F401
        except ImportError:
            raise ConfigError(f"{address}: Kafka needs aiokafka: {install_hint('kafka')}") from None
        self.target = str(address)
        more = [name for name in address.options.get("brokers", "").split(",") if name]
        self._brokers = [f"{address.host_in_url}:{address.port or _PORT}", *more]
        self._is_tls = address.scheme == "kafkas"
        self._ca_file = ca_file
        self._producer: Any = None

    async def start(self) -> None:
        from aiokafka import AIOKafkaProducer

        options: dict[str, Any] = {}
        if self._is_tls:
            try:
                context = ssl.create_default_context(cafile=self._ca_file or None)
            except OSError as error:
                what = f"the file of authorities {self._ca_file!r} cannot be read: {error}"
                raise SinkError(self.target, what, may_pass=False) from error
            options = {"security_protocol": "SSL", "ssl_context": context}
        producer = AIOKafkaProducer(
            bootstrap_servers=self._brokers,
            client_id="walle-sink",
            acks="all",
            request_timeout_ms=_TIMEOUT_MS,
            max_request_size=_MAX_REQUEST_BYTES,
            **options,
        )
        try:
            with self._errors():
                await producer.start()
        except BaseException:
            await producer.stop()
            raise
        self._producer = producer

    async def close(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            with contextlib.suppress(TimeoutError):  # a broker that is down would be waited for
                async with asyncio.timeout(_TIMEOUT_MS / 1000):
                    await producer.stop()

    async def write(self, rows: Sequence[SinkRow]) -> None:
        from aiokafka import errors

        sent: list[asyncio.Future[Any]] = []
        try:
            for row in rows:
                sent.append(await self._send(row))  # noqa: PERF401 - those before an error are needed
        finally:  # the outcome of each is known before rows are sent again
            await asyncio.gather(*sent, return_exceptions=True)
        refused: list[Refusal] = []
        for written, (row, future) in enumerate(zip(rows, sent, strict=True)):
            try:
                outcome = future
                if isinstance(outcome.exception(), errors.MessageSizeTooLargeError):  # row or batch is too large
                    outcome = await self._send(row)
                    await asyncio.wait([outcome])
                if isinstance(error := outcome.exception(), errors.MessageSizeTooLargeError):
                    refused.append(Refusal(row, _said(error)))
                else:
                    with self._errors():
                        outcome.result()
            except SinkError as error:
                error.written = rows.index(refused[0].row) if refused else written
                raise
        if refused:
            raise rows_refused(self.target, refused, written=len(rows))

    async def _send(self, row: SinkRow) -> "asyncio.Future[Any]":
        """Return the outcome of a record once it is on its way."""
        from aiokafka import errors

        try:
            with self._errors():
                device, headers = row.received.device_id.encode(), [("key", row.key.encode())]
                sent: asyncio.Future[Any] = await self._producer.send(
                    self._topic, row.encode(), key=device, headers=headers
                )
                return sent
        except SinkError as error:
            if not isinstance(error.__cause__, errors.MessageSizeTooLargeError):
                raise
            failed = asyncio.get_running_loop().create_future()
            failed.set_exception(error.__cause__)
            return failed

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the client within the block into ours."""
        from aiokafka import errors

        final = (
            errors.TopicAuthorizationFailedError, errors.ClusterAuthorizationFailedError, errors.InvalidTopicError,
            errors.MessageSizeTooLargeError, errors.UnsupportedVersionError, errors.IncompatibleBrokerVersion,
        )  # fmt: skip
        try:
            yield
        except errors.UnknownTopicOrPartitionError as error:
            what = f"the topic {self._topic!r} does not exist: make it, or let the broker make topics"
            raise SinkError(self.target, what, may_pass=True) from error
        except final as error:
            raise SinkError(self.target, f"refused: {_said(error)}; the sink stops", may_pass=False) from error
        except (errors.KafkaError, OSError) as error:
            raise SinkError(self.target, f"does not answer, or failed: {_said(error)}", may_pass=True) from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__} {error}"[:300]
