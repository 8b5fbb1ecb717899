"""The processes of a fault campaign: a device that makes features from a replayable stream, and a cloud.

Both are forked from a server process that has everything imported, so that one starts in milliseconds. They are meant
to be killed at any moment, and to survive a full disk.
"""

import asyncio
import contextlib
import dataclasses
import logging
import multiprocessing
import random
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.tunnel_cloud import echo
from walle.errors import PipelineError
from walle.pipeline.features.database import StoreError, StoreFullError
from walle.pipeline.features.kept_features import Bounds
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.features.put import Put
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
from walle.pipeline.ingest.store.upload_store import IngestError
from walle.pipeline.ingest.supervisor import PumpSupervisor
from walle.pipeline.tunnel.client.client import TunnelClient
from walle.pipeline.tunnel.server.server import TunnelServer

_LOG = logging.getLogger(__name__)

DEVICE = "device-0"
TOPIC = "t"
DAMAGED = 3  # exit status of a cloud whose file an operator must restore
_ALARM = 5  # failures of the pump
_RETRY_S = 0.02  # pause before the next attempt while a disk is full
_PAUSE_S = 0.004  # longest pause between features

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.sim.fault_processes"])


@dataclasses.dataclass(frozen=True)
class DeviceOrder:
    """The orders of a device. Its process ends by itself once it has made `until` features and all are acknowledged."""

    store: Path
    authority: Path
    port: int
    until: int | None
    log: Path


@dataclasses.dataclass(frozen=True)
class CloudOrder:
    uploads: Path
    authority: Path
    log: Path


def payload_of(position: int) -> list[object]:
    """Return the feature of an event of the stream, which is the same at each replay."""
    rng = random.Random(position)
    if position % 100 == 99:  # too large for a batch, so that it is stored compressed, as it comes
        return [position, rng.randbytes(35_000).hex()]
    return [position, rng.randbytes(rng.randrange(400))]


# --- the device -------------------------------------------------------------------------------------------------------


def run_device(order: DeviceOrder) -> None:
    _log_to(order.log)
    asyncio.run(_device(order))


async def _device(order: DeviceOrder) -> None:
    while True:
        store = FeatureStore(order.store, interval_s=0.005, keep=Bounds(rows_per_topic=300), threshold=16)
        try:
            await store.start()
            break
        except StoreFullError:
            await asyncio.sleep(_RETRY_S)
        except StoreError as error:
            if "disk" not in str(error):  # a limit on file sizes is an I/O error to SQLite
                raise
            await asyncio.sleep(_RETRY_S)
    outbox = Outbox(store)
    tunnel = asyncio.create_task(_keep_tunnel(order, outbox))
    position, rng = store.position + 1, random.Random()
    while order.until is None or position < order.until:
        put = Put.of(TOPIC, payload_of(position))
        try:
            await store.put_all([put], position=position)
        except StoreError:
            await asyncio.sleep(_RETRY_S)
        else:
            position += 1
            if order.until is None:
                await asyncio.sleep(rng.uniform(0.0, _PAUSE_S))
    await _flushed(store)
    while store.state.acked < store.state.last_seq:
        await asyncio.sleep(_RETRY_S)
        await _flushed(store)
    tunnel.cancel()
    await asyncio.gather(tunnel, return_exceptions=True)
    await store.close()


async def _flushed(store: FeatureStore) -> None:
    while True:
        try:
            await store.flush()
        except StoreError:
            await asyncio.sleep(_RETRY_S)
        else:
            return


async def _keep_tunnel(order: DeviceOrder, outbox: Outbox) -> None:
    """Keep a tunnel up, as a device does: a client that fails at its outbox is replaced."""
    while True:
        client = TunnelClient(
            outbox,
            device_id=DEVICE,
            host="127.0.0.1",
            port=order.port,
            ssl_context=TunnelAuthority(order.authority).device_context(DEVICE),
            keepalive_s=0.2,
            connect_s=1.0,
            backoff_s=0.01,
            backoff_max_s=0.04,
        )
        try:
            await client.run()
        except PipelineError as error:
            _LOG.warning("the tunnel ended: %s", error)
        await asyncio.sleep(_RETRY_S)


# --- the cloud --------------------------------------------------------------------------------------------------------


def run_cloud(order: CloudOrder, port: Connection) -> None:
    _log_to(order.log)
    asyncio.run(_cloud(order, port))


async def _cloud(order: CloudOrder, port: Connection) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    ingest = Ingest(order.uploads)
    while True:
        try:
            await ingest.start()
            break
        except IngestError as error:
            if not error.may_pass:
                _LOG.critical("%s", error)
                sys.exit(DAMAGED)
            await asyncio.sleep(_RETRY_S)
    server = TunnelServer(
        ssl_context=TunnelAuthority(order.authority).server_context(),
        resume=lambda hello: supervisor.resume(hello),  # a lambda: the supervisor is made after the server
        on_request=echo,
    )
    supervisor = PumpSupervisor(server, ingest, retry_s=_RETRY_S, backoff_s=_RETRY_S, backoff_max_s=0.1)
    await server.start()
    pumping = asyncio.create_task(supervisor.run())
    port.send(server.port)
    port.close()
    while not stopping.is_set():
        if supervisor.status.failures >= _ALARM and "disk" not in supervisor.status.error:
            sys.exit(DAMAGED)  # `/healthz` has been failing for a while, and the operator comes
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _RETRY_S)
    await server.close()
    await pumping
    await ingest.close()


# --- the campaign's side ----------------------------------------------------------------------------------------------


def start_device(order: DeviceOrder) -> BaseProcess:
    process = context.Process(target=run_device, args=(order,), daemon=True)
    process.start()
    return process


def start_cloud(order: CloudOrder) -> tuple[BaseProcess, Connection]:
    """Return the process, and a connection on which it sends its port once it listens."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=run_cloud, args=(order, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _log_to(path: Path) -> None:
    logging.basicConfig(filename=path, level=logging.WARNING, format="%(asctime)s %(name)s %(message)s", force=True)
