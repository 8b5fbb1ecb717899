"""Rollbacks of the feature store and of the cloud's file of uploads, at random: copies put back, logs cut short.

Every output is then in the cloud exactly once, or named by a report of either side. `python -m tests.sim.rollbacks`
runs 200 of them.
"""

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.tunnel_cloud import TunnelCloud
from walle.base import plain
from walle.pipeline.features.losses import LOSS_TOPIC, Loss
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.tunnel.client.client import TunnelClient

_STEPS = 14
_SUFFIXES = ("", "-wal")

type Number = tuple[str, int]  # epoch, seq


@dataclasses.dataclass
class Result:
    """Counts of one run. `untraceable` outputs were never sent, and every file that knew of them was put back."""

    seed: int
    made: int = 0
    once: int = 0
    named: int = 0
    untraceable: int = 0
    silent: list[int] = dataclasses.field(default_factory=list)
    device_restores: int = 0
    cloud_restores: int = 0
    cuts: int = 0
    false_alarms: int = 0


@dataclasses.dataclass
class Copy:
    """The files of one side at one moment. `made` is how many outputs existed then."""

    files: dict[str, bytes]
    made: int


def copy_files(path: Path, suffixes: tuple[str, ...]) -> dict[str, bytes]:
    names = [path.name + suffix for suffix in suffixes]
    return {name: path.with_name(name).read_bytes() for name in names if path.with_name(name).exists()}


def put_back(path: Path, files: dict[str, bytes]) -> None:
    for suffix in (*_SUFFIXES, "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    for name, data in files.items():
        path.with_name(name).write_bytes(data)


class Rollbacks:
    """One device and one cloud, whose files go back in time."""

    def __init__(self, folder: Path, authority: TunnelAuthority, seed: int) -> None:
        self.rng = random.Random(seed)
        self.result = Result(seed)
        self.authority = authority
        self.store_path = folder / "features.db"
        self.cloud = TunnelCloud(ssl_context=authority.server_context(), path=folder / "uploads.db")
        self.numbers = collections.defaultdict[int, set[Number]](set)  # numbers that each output ever had
        self.copies: dict[str, list[Copy]] = {"device": [], "folder": [], "cloud": []}
        self.losses: set[Loss] = set()
        self.without_trace: set[int] = set()
        self.store: FeatureStore
        self.outbox: Outbox

    async def run(self) -> Result:
        await self.open_device()
        await self.cloud.start()
        steps = [self.make, self.make, self.upload, self.upload, self.copy, self.copy]
        steps += [self.restore_device, self.restore_cloud, self.cut_device, self.cut_cloud, self.reopen]
        for _ in range(_STEPS):
            await self.rng.choice(steps)()
            await self.observe()
        await self.make()
        await self.upload(drain=True)
        await self.observe()
        await self.judge()
        await self.store.close()
        await self.cloud.stop()
        return self.result

    # --- steps --------------------------------------------------------------------------------------------------------

    async def open_device(self) -> None:
        self.store = await FeatureStore(self.store_path, interval_s=0.002).start()
        self.outbox = Outbox(self.store)

    async def make(self) -> None:
        for _ in range(self.rng.randrange(1, 12)):
            await self.store.put("t", [self.result.made, self.rng.randbytes(self.rng.randrange(300))])
            self.result.made += 1
            if self.rng.random() < 0.3:
                await self.store.flush()
        await self.store.flush()

    async def upload(self, *, drain: bool = False) -> None:
        client = TunnelClient(
            self.outbox,
            device_id="device-0",
            host="127.0.0.1",
            port=self.cloud.server.port,
            ssl_context=self.authority.device_context(),
            rng=random.Random(1),
            backoff_s=0.002,
            backoff_max_s=0.01,
        )
        running = asyncio.create_task(client.run())
        await asyncio.sleep(0)  # a client that is closed cannot be run
        async with asyncio.timeout(30):
            if drain or self.rng.random() < 0.6:
                await client.drained()
            else:
                await asyncio.sleep(self.rng.uniform(0.0, 0.02))
        await client.close()
        await running
        await self.store.flush()

    async def copy(self) -> None:
        kind = self.rng.choice(list(self.copies))
        if kind == "cloud":
            files = copy_files(self.cloud.path, _SUFFIXES)
        else:
            files = copy_files(self.store_path, (*_SUFFIXES, ".lock") if kind == "folder" else _SUFFIXES)
        self.copies[kind].append(Copy(files, self.result.made))

    async def restore_device(self) -> None:
        kind = self.rng.choice(["device", "folder"])
        if self.copies[kind]:
            copy = self.rng.choice(self.copies[kind])
            await self.store.close()
            put_back(self.store_path, copy.files)
            if kind == "folder":
                self.without_trace |= set(range(copy.made, self.result.made))
            self.result.device_restores += 1
            await self.open_device()

    async def restore_cloud(self) -> None:
        if self.copies["cloud"]:
            files = self.rng.choice(self.copies["cloud"]).files
            await self.cloud.stop()
            put_back(self.cloud.path, files)
            self.result.cloud_restores += 1
            await self.cloud.start()

    async def cut_device(self) -> None:
        """Let the device die, and cut its write-ahead log."""
        files = copy_files(self.store_path, _SUFFIXES)
        await self.store.close()
        put_back(self.store_path, self.cut(files))
        await self.open_device()

    async def cut_cloud(self) -> None:
        files = copy_files(self.cloud.path, _SUFFIXES)
        await self.cloud.stop()
        put_back(self.cloud.path, self.cut(files))
        await self.cloud.start()

    def cut(self, files: dict[str, bytes]) -> dict[str, bytes]:
        self.result.cuts += 1
        return {
            name: data[: self.rng.randrange(len(data) + 1)] if name.endswith("-wal") else data
            for name, data in files.items()
        }

    async def reopen(self) -> None:
        """Let both die and start again, with nothing lost."""
        files = copy_files(self.store_path, _SUFFIXES), copy_files(self.cloud.path, _SUFFIXES)
        await self.store.close()
        await self.cloud.stop()
        put_back(self.store_path, files[0])
        put_back(self.cloud.path, files[1])
        await self.open_device()
        await self.cloud.start()
        self.result.false_alarms += len(self.store.report.losses)

    # --- results ------------------------------------------------------------------------------------------------------

    async def observe(self) -> None:
        """Note the numbers of all outputs and the reports of both sides, as a log would."""
        epoch = self.outbox.epoch
        for upload in await self.outbox.batch(0, 100_000):
            if upload.topic != LOSS_TOPIC:
                self.numbers[plain.decode(upload.payload)[0]].add((epoch, upload.seq))
        for _, received in await self.cloud.ingest.query(limit=1_000_000):
            self.numbers[plain.decode(received.payload)[0]].add((received.epoch, received.seq))
        self.losses |= set(self.store.report.losses)
        self.losses |= {recorded.loss for recorded in await self.cloud.ingest.losses()}

    async def judge(self) -> None:
        copies = collections.Counter(
            plain.decode(received.payload)[0] for _, received in await self.cloud.ingest.query(limit=1_000_000)
        )
        for output in range(self.result.made):
            if copies[output] == 1:
                self.result.once += 1
            elif any(self.is_named(number) for number in self.numbers[output]):
                self.result.named += 1
            elif copies[output] == 0 and output in self.without_trace:
                self.result.untraceable += 1
            else:
                self.result.silent.append(output)

    def is_named(self, number: Number) -> bool:
        epoch, seq = number
        return any(
            loss.epoch == epoch and loss.first_seq <= seq and (loss.last_seq is None or seq <= loss.last_seq)
            for loss in self.losses
        )


async def run_seeds(seeds: range) -> list[Result]:
    """Return the result of one run for each seed."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        authority = TunnelAuthority(Path(folder) / "authority")
        for seed in seeds:
            run_folder = Path(folder) / str(seed)
            run_folder.mkdir()
            results.append(await Rollbacks(run_folder, authority, seed).run())
            shutil.rmtree(run_folder)
    return results


def total(results: list[Result]) -> dict[str, Any]:
    """Return the sums over all runs."""
    names = [field.name for field in dataclasses.fields(Result) if field.name not in ("seed", "silent")]
    sums: dict[str, Any] = {name: sum(getattr(result, name) for result in results) for name in names}
    return {"runs": len(results), **sums, "silent": {result.seed: result.silent for result in results if result.silent}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable()
    sums = total(asyncio.run(run_seeds(range(options.seed, options.seed + options.runs))))
    sys.stdout.write("".join(f"{name}: {value}\n" for name, value in sums.items()))
    if sums["silent"] or sums["false_alarms"]:
        sys.exit(1)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
