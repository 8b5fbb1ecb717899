"""One device and one cloud as processes on small disks of their own, the link between them, and the faults of all.

After its faults, a world must go on: the device makes what is left, everything is acknowledged, and both stop in order.
Then each feature is in the cloud exactly once, or a report of either side names it. In a `gentle` world, without a file
that goes back in time or is damaged, nothing may be reported: each is there once.
"""

import asyncio
import collections
import contextlib
import dataclasses
import os
import random
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self

from tests.sim.fault_disk import SmallDisk
from tests.sim.fault_processes import DAMAGED, TOPIC, CloudOrder, DeviceOrder, start_cloud, start_device
from tests.sim.fault_proxy import FaultProxy
from tests.sim.rollbacks import copy_files, put_back
from walle.base import plain
from walle.pipeline.features import store_schema
from walle.pipeline.features.losses import LOSS_TOPIC, Loss, LossCause, LossError
from walle.pipeline.ingest.store.packed_payload import unpack_payload

_SUFFIXES = ("", "-wal")
_MOVES = (
    "SELECT newer.epoch, older.epoch, seq_offset, upto FROM origins JOIN streams AS newer USING (stream)"
    " JOIN streams AS older ON older.stream = origin"
)
_DRAIN_S = 40.0
_START_S = 20.0
_BEFORE_END = 25  # features that are made after the last fault
_RESTARTS = 5  # restarts of a process that ends by itself, between two faults

type Number = tuple[str, int]  # epoch, seq
type Move = tuple[str, str, int, int]  # a newer epoch, an older one, offset, upto: as `walle.protocol.Origin`
type Files = dict[str, bytes]


class StuckError(AssertionError):
    """A side that did not go on after a fault."""


@dataclasses.dataclass
class WorldResult:
    """Counts of one world. `silent` features are neither once in the cloud nor named by a report."""

    seed: int
    gentle: bool
    faults: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    made: int = 0
    once: int = 0
    lost_named: int = 0
    twice_named: int = 0
    silent: list[str] = dataclasses.field(default_factory=list)
    history: list[str] = dataclasses.field(default_factory=list)
    own_ends: list[str] = dataclasses.field(default_factory=list)  # ends of processes that no fault killed
    operator_restores: int = 0  # restores of a cloud's file that was damaged, as the cloud reported
    reports: int = 0
    stuck: str = ""

    @property
    def is_right(self) -> bool:
        alarmed = self.gentle and (self.reports or self.lost_named or self.twice_named)
        return not (self.silent or self.stuck or alarmed or self.own_ends)


class World:
    """Use within `async with`; `fault` is called between pauses, then `finish`."""

    def __init__(self, folder: Path, authority: Path, seed: int, *, gentle: bool, can_mount: bool) -> None:
        self.rng = random.Random(seed)
        self.result = WorldResult(seed, gentle)
        self._folder = folder
        self._authority = authority
        self._disks = {side: SmallDisk(folder / side, can_mount=can_mount) for side in ("device", "cloud")}
        self._paths = {"device": folder / "device" / "features.db", "cloud": folder / "cloud" / "uploads.db"}
        self._processes: dict[str, BaseProcess] = {}
        self._link = FaultProxy(0)
        self._until: int | None = None
        self._copies: dict[str, list[Files]] = {"device": [], "device folder": [], "cloud": []}
        self._numbers = collections.defaultdict[int, set[Number]](set)  # numbers that each feature ever had
        self._moves: set[Move] = set()
        self.losses: set[Loss] = set()
        self._undo = contextlib.AsyncExitStack()
        gentle_faults: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "device killed": (8, lambda: self._kill("device")),
            "cloud killed": (6, lambda: self._kill("cloud")),
            "both killed": (2, self._kill_both),
            "link cut": (8, lambda: self._break_link(self._link.cut_after)),
            "bit flipped on the link": (4, lambda: self._break_link(self._link.flip_after)),
            "link dead": (2, self._dead_link),
            "link refused": (2, self._refused_link),
            "device's disk full": (4, lambda: self._full_disk("device")),
            "cloud's disk full": (4, lambda: self._full_disk("cloud")),
        }
        rough_faults: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "device rolled back": (5, lambda: self._roll_back("device", "device")),
            "device's folder rolled back": (3, lambda: self._roll_back("device", "device folder")),
            "cloud rolled back": (5, lambda: self._roll_back("cloud", "cloud")),
            "device's log cut": (5, lambda: self._change_files("device", self._cut_log)),
            "cloud's log cut": (5, lambda: self._change_files("cloud", self._cut_log)),
            "bits flipped in device's files": (4, lambda: self._change_files("device", self._flip_bits)),
            "bits flipped in cloud's log": (4, lambda: self._change_files("cloud", self._flip_log_bits)),
        }
        self._kinds = gentle_faults if gentle else gentle_faults | rough_faults

    async def __aenter__(self) -> Self:
        for disk in self._disks.values():
            self._undo.enter_context(disk)
        self._undo.callback(self._kill_processes)
        await self._undo.enter_async_context(self._link)
        await self._start("cloud")
        await self._start("device")
        await self._pause(0.1, 0.3)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._undo.aclose()

    # --- faults -------------------------------------------------------------------------------------------------------

    async def fault(self) -> None:
        """Do one fault, let both sides go on for a moment, and restart what ended by itself."""
        weights = [weight for weight, _ in self._kinds.values()]
        (kind,) = self.rng.choices(list(self._kinds), weights)
        await self._kinds[kind][1]()
        self.result.faults[kind] += 1
        self.result.history.append(f"{kind}; {max(self._numbers, default=-1) + 1} features seen")
        if self.rng.random() < 0.25:
            self._copy()
        await self._pause(0.01, 0.12)
        for side in ("device", "cloud"):
            await self._revive(side)

    async def _pause(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(least_s, most_s))

    async def _kill(self, side: str) -> None:
        self._end(side)
        await self._start(side)

    async def _kill_both(self) -> None:
        self._end("device")
        self._end("cloud")
        await self._start("device")
        await self._pause(0.0, 0.05)
        await self._start("cloud")

    async def _break_link(self, arm: Callable[[str, int], None]) -> None:
        """Cut the link, or flip a bit, after a random byte; cut it at once where too few bytes come."""
        before = self._link.faults
        arm(self.rng.choice(["up", "up", "down"]), self.rng.randrange(1, 3000))
        for _ in range(15):
            await asyncio.sleep(0.02)
            if self._link.faults > before:
                return
        self._link.disarm()
        self._link.cut()

    async def _dead_link(self) -> None:
        self._link.swallow = True
        await self._pause(0.05, 0.6)
        self._link.swallow = False
        self._link.cut()

    async def _refused_link(self) -> None:
        self._link.refuse = True
        self._link.cut()
        await self._pause(0.02, 0.2)
        self._link.refuse = False

    async def _full_disk(self, side: str) -> None:
        """Fill the disk, go on for a while, perhaps kill the process or start it while there is no room."""
        disk = self._disks[side]
        disk.fill(self._pid(side))
        await self._pause(0.02, 0.15)
        starts = self.rng.random() < 0.3
        if starts:
            self._end(side)
            self._processes[side], port = self._launch(side)
            await self._pause(0.02, 0.1)
        disk.free(self._pid(side))
        if starts:
            await self._listening(port)

    async def _roll_back(self, side: str, kind: str) -> None:
        if not self._copies[kind]:
            self._copy()
        files = self.rng.choice(self._copies[kind])
        self._end(side)
        self._observe(side)
        put_back(self._paths[side], files)
        await self._start(side)

    async def _change_files(self, side: str, change: Callable[[Files], Files]) -> None:
        self._end(side)
        self._observe(side)
        put_back(self._paths[side], change(copy_files(self._paths[side], _SUFFIXES)))
        await self._start(side)

    def _cut_log(self, files: Files) -> Files:
        return {
            name: data[: self.rng.randrange(len(data) + 1)] if name.endswith("-wal") else data
            for name, data in files.items()
        }

    def _flip_log_bits(self, files: Files) -> Files:
        return {name: self._flipped(data) if name.endswith("-wal") else data for name, data in files.items()}

    def _flip_bits(self, files: Files) -> Files:
        names = [name for name, data in files.items() if data]
        if not names:  # the process was killed before it made them
            return files
        name = self.rng.choice(names)
        return {**files, name: self._flipped(files[name])}

    def _flipped(self, data: bytes) -> bytes:
        flipped = bytearray(data)
        for _ in range(self.rng.randrange(1, 4) if data else 0):
            flipped[self.rng.randrange(len(flipped))] ^= 1 << self.rng.randrange(8)
        return bytes(flipped)

    def _copy(self) -> None:
        """Copy the files of a side, as a backup does at one moment: the process is stopped meanwhile."""
        kind = self.rng.choice(list(self._copies)) if all(self._copies.values()) else ""
        for one in [kind] if kind else list(self._copies):
            side = one.partition(" ")[0]
            os.kill(self._pid(side), signal.SIGSTOP)
            suffixes = (*_SUFFIXES, ".lock") if one == "device folder" else _SUFFIXES
            self._copies[one].append(copy_files(self._paths[side], suffixes))
            del self._copies[one][:-4]
            os.kill(self._pid(side), signal.SIGCONT)

    # --- processes ----------------------------------------------------------------------------------------------------

    def _pid(self, side: str) -> int:
        pid = self._processes[side].pid
        assert pid is not None
        return pid

    def _launch(self, side: str) -> tuple[BaseProcess, Connection | None]:
        log = self._folder / f"{side}.log"
        if side == "cloud":
            return start_cloud(CloudOrder(self._paths[side], self._authority, log))
        return start_device(DeviceOrder(self._paths[side], self._authority, self._link.port, self._until, log)), None

    async def _start(self, side: str) -> None:
        self._processes[side], port = self._launch(side)
        await self._listening(port)

    async def _listening(self, port: Connection | None) -> None:
        """Return once a cloud listens. A device needs no time to be ready."""
        if port is None:
            return
        for _ in range(int(_START_S / 0.005)):
            if port.poll():
                with contextlib.suppress(EOFError):  # the process has ended, and is restarted after the fault
                    self._link.target_port = port.recv()
                port.close()
                return
            await asyncio.sleep(0.005)
        raise StuckError(f"the cloud does not listen {_START_S:.0f} s after its start")

    def _end(self, side: str) -> None:
        self._processes[side].kill()
        self._processes[side].join()

    def _kill_processes(self) -> None:
        for side in self._processes:
            self._end(side)

    async def _revive(self, side: str) -> None:
        """Restart a process that ended by itself, and count that."""
        for _ in range(_RESTARTS):
            process = self._processes[side]
            if process.is_alive():
                return
            if side == "cloud" and process.exitcode == DAMAGED:
                self._restore_cloud()
            else:
                self.result.own_ends.append(f"{side} ended with {process.exitcode}")
            await self._start(side)
            await asyncio.sleep(0.1)
        raise StuckError(f"the {side} ends at each start: {self.result.own_ends[-1]}; see {side}.log")

    def _restore_cloud(self) -> None:
        """Put the latest copy of the cloud's file back that is not damaged, as an operator does when it says so."""
        self.result.operator_restores += 1
        self._observe("cloud")
        copies = self._copies["cloud"]
        put_back(self._paths["cloud"], copies.pop() if copies else {})

    # --- the end ------------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Let both sides go on until everything is acknowledged, stop them, and judge."""
        try:
            await self._drain()
        except StuckError as error:
            self.result.stuck = str(error)
        self._end("device")
        self._observe("device")
        self._end("cloud")
        self._judge()

    async def _drain(self) -> None:
        self._end("device")
        self._observe("device")
        self._observe("cloud")
        self._until = max(self._numbers, default=0) + 1 + _BEFORE_END
        await self._start("device")
        for _ in range(int(_DRAIN_S / 0.02)):
            await self._revive("cloud")
            device = self._processes["device"]
            if device.exitcode == 0:
                break
            if not device.is_alive():
                await self._revive("device")
            await asyncio.sleep(0.02)
        else:
            raise StuckError(f"the outbox is not empty after {_DRAIN_S:.0f} s")
        cloud = self._processes["cloud"]
        cloud.terminate()
        for _ in range(int(_DRAIN_S / 0.02)):  # polled, not joined in a thread: another world reads exit statuses too
            if not cloud.is_alive():
                break
            await asyncio.sleep(0.02)
        if cloud.exitcode != 0:
            raise StuckError(f"the cloud ended with {cloud.exitcode} at SIGTERM")

    def _observe(self, side: str) -> list[int]:
        """Note the numbers of the features in a side's file and its reports; return the features, by a copy of it."""
        features: list[int] = []
        query = (
            "SELECT streams.epoch, seq, topic, stored_payload, packed FROM uploads JOIN streams USING (stream)"
            if side == "cloud"
            else "SELECT '', seq, topic, payload, 0 FROM outbox"
        )
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            copy = Path(folder) / "copy.db"
            for name, data in copy_files(self._paths[side], _SUFFIXES).items():
                copy.with_name(name.replace(self._paths[side].name, copy.name)).write_bytes(data)
            # The rest of a damaged file is found by the store's own salvage.
            with contextlib.closing(sqlite3.connect(copy)) as db, contextlib.suppress(sqlite3.DatabaseError):
                epoch = ""
                if side == "device":
                    state = store_schema.read_state(db)
                    epoch = state.epoch
                    self._moves |= {(epoch, one.epoch, one.offset, one.upto) for one in state.origins}
                else:
                    self._moves |= set(db.execute(_MOVES))
                    query_losses = "SELECT epoch, first_seq, last_seq, cause FROM losses"
                    for row_epoch, first_seq, last_seq, cause in db.execute(query_losses):
                        self.losses.add(Loss(row_epoch, first_seq, last_seq, LossCause(cause)))
                for row_epoch, seq, topic, contents, is_packed in db.execute(query):
                    payload = unpack_payload(seq, contents) if is_packed else contents
                    if topic == LOSS_TOPIC:
                        with contextlib.suppress(LossError):
                            self.losses.add(Loss.decode(payload))
                    elif topic == TOPIC:
                        with contextlib.suppress(ValueError, TypeError):
                            features.append(plain.decode(payload)[0])
                            self._numbers[features[-1]].add((row_epoch or epoch, seq))
        return features

    def _judge(self) -> None:
        copies = collections.Counter(self._observe("cloud"))
        result = self.result
        result.made = max(self._numbers, default=-1) + 1
        result.reports = len(self.losses)
        for feature in range(result.made):
            is_named = any(self._is_named(number) for number in self._all_numbers(feature))
            if copies[feature] == 1:
                result.once += 1
            elif is_named and not copies[feature]:
                result.lost_named += 1
            elif is_named:
                result.twice_named += 1
            else:
                numbers = ", ".join(f"{seq} of {epoch[:6]}" for epoch, seq in sorted(self._numbers[feature]))
                result.silent.append(f"feature {feature}: {copies[feature]} in the cloud, was upload {numbers}")

    def _all_numbers(self, feature: int) -> set[Number]:
        """Return the numbers of a feature, those included that it had between two looks at the files."""
        numbers = set(self._numbers[feature])
        new = list(numbers)
        while new:
            epoch, seq = new.pop()
            for newer, older, offset, upto in self._moves:
                found = (newer, seq - offset) if epoch == older else (older, seq + offset)
                in_newer = seq - offset if epoch == older else seq
                if epoch in (newer, older) and 1 <= in_newer <= upto and found not in numbers:
                    numbers.add(found)
                    new.append(found)
        return numbers

    def _is_named(self, number: Number) -> bool:
        epoch, seq = number
        return any(
            loss.epoch == epoch and loss.first_seq <= seq and (loss.last_seq is None or seq <= loss.last_seq)
            for loss in self.losses
        )


async def run_world(
    folder: Path, authority: Path, seed: int, faults: int, *, gentle: bool, can_mount: bool
) -> WorldResult:
    """Return the result of one world with a number of faults; its folder is removed if it is right."""
    await asyncio.to_thread(folder.mkdir)
    world = World(folder, authority, seed, gentle=gentle, can_mount=can_mount)
    result = world.result
    async with world:
        try:
            for _ in range(faults):
                await world.fault()
            await world.finish()
        except StuckError as error:
            result.stuck = str(error)
        if not result.is_right:
            for side in ("device", "cloud"):  # a tmpfs ends with its mount
                shutil.copytree(folder / side, folder / f"{side} files")
    if result.is_right:
        shutil.rmtree(folder)
    else:
        losses = sorted(map(str, world.losses))
        (folder / "result.txt").write_text("\n".join([*result.history, *losses, *result.silent, result.stuck]))
    return result
