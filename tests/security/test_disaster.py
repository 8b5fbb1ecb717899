"""The drill: a cloud is backed up while it runs, goes on, is lost, and is restored; its devices go on."""

import asyncio
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sim.program import _COMMAND, Program, Programs, _environment, walle
from tests.sim.shop_cloud import GATE, LIMIT_S, User, device_config, push
from walle.access.audit import AuditHead, read_records, verify
from walle.client.release_client import ReleaseClient, ReleaseJson
from walle.cloud import CloudHome, GatewayAddress
from walle.cloud.upkeep.backup import MANIFEST
from walle.device import Device
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest

PASSPHRASE = {"WALLE_BACKUP_PASSPHRASE": "correct horse battery"}


@pytest.fixture
def start() -> Iterator[Programs]:
    with Programs() as programs:
        yield programs


class RunningCloud:
    """`walle cloud up` in a process of its own, with the scenario shop."""

    def __init__(self, start: Programs, folder: Path, http_port: int = 0, tunnel_port: int = 0) -> None:
        ports = (f"--http-port={http_port}", f"--tunnel-port={tunnel_port}")
        self.home = CloudHome(folder)
        self.program: Program = start("cloud", "up", str(folder), *ports, "--plain-http", "--scenario=shop", "--json")
        said = self.program.wait_for(lambda line: "url" in line)
        self.url: str = said["url"]
        self.http_port = int(self.url.rpartition(":")[2])
        self.tunnel_port = int(said["tunnel"].rpartition(":")[2])

    @property
    def address(self) -> GatewayAddress:
        ca_pem = (self.home.folder / "authority" / "ca.pem").read_text()
        return GatewayAddress(self.url, "127.0.0.1", self.tunnel_port, ca_pem)

    def releases(self) -> ReleaseClient:
        return ReleaseClient(self.url, self.home.admin_token)

    async def push(self, work: Path, version: str, main: str) -> None:
        await push(self.url, self.home.admin_token, work, version, {"main.py": main})


async def until(releases: ReleaseClient, release_id: str, state: str, *users: User) -> ReleaseJson:
    async with asyncio.timeout(LIMIT_S):
        while (shown := await releases.get(release_id))["state"] != state:
            for user in users:
                await user.visit()
            await asyncio.sleep(0.01)
    return shown


async def released(releases: ReleaseClient, version: str, **options: Any) -> str:
    options = {"beta": 0, "steps": [1.0], "gate": GATE, **options}
    return (await releases.create("shop", "count", version, **options))["id"]


async def stored(database: Path) -> tuple[int, int]:
    """Return how many uploads a cloud has, and how many it has recorded as lost."""
    async with Ingest(database) as ingest:
        totals = await ingest.loss_totals()
        return await ingest.count(), sum(total.uploads for total in totals.values())


MAIN = 'def execute(ctx, trigger):\n    return {{"page": trigger["event"]["page_id"], "version": "{}"}}\n'


@pytest.mark.night
@pytest.mark.asyncio
@pytest.mark.system
async def test_devices_continue_after_their_cloud_was_lost_and_restored(tmp_path: Path, start: Programs) -> None:
    folder, out, keys, work = tmp_path / "cloud", tmp_path / "backup", tmp_path / "keys", tmp_path / "work"
    cloud = RunningCloud(start, folder)
    await cloud.push(work, "v1", MAIN.format("v1"))
    d0 = Device(device_config(cloud.address, cloud.home, tmp_path / "d0"))
    d1 = Device(device_config(cloud.address, cloud.home, tmp_path / "d1"))
    async with d0, d1:
        first, second = User(d0), User(d1)
        async with cloud.releases() as releases:
            await until(releases, await released(releases, "v1"), "full", first, second)
            for user in (first, second):
                await user.until(lambda user=user: user.has("v1"))  # type: ignore[misc]
            # A release under way: its beta stands still until the second device reports, which it does not yet.
            await cloud.push(work, "v2", MAIN.format("v2"))
            gate = {**GATE, "min_devices": 2}
            under_way = await released(releases, "v2", beta=["d0", "d1"], gate=gate)
            await until(releases, under_way, "beta")
            await first.until(lambda: first.has("v2"))
            await d0.settled()

            done = await asyncio.to_thread(
                walle, "cloud", "backup", str(folder), str(out), "--keys", str(keys), "--json", **PASSPHRASE
            )
            assert done["has_keys"]
            assert done["damaged"] == []

            # More happens: features, and directives of higher serials, which the first device obeys.
            await releases.rollback(under_way, "of the lost time")
            await first.until(lambda: first.has("v1"))
            for _ in range(20):
                await first.visit()
            await cloud.push(work, "v3", MAIN.format("v3"))
            head = AuditHead(**await asyncio.to_thread(_head, cloud))
            await d0.settled()
        before, lost_before = await stored(folder / "uploads.db")
        assert lost_before == 0
        serials_before = _serial(d0)
        cloud.program.process.send_signal(signal.SIGKILL)
        cloud.program.process.wait()
        shutil.rmtree(folder)
        with pytest.raises(httpx.HTTPError):
            await first.visit()  # no cloud is there

        restored = await asyncio.to_thread(
            walle, "cloud", "restore", str(out), str(folder), "--keys", str(keys), "--sha256", done["sha256"], "--json",
            **PASSPHRASE,
        )  # fmt: skip
        assert restored["sha256"] == done["sha256"]
        after_restore, _ = await stored(folder / "uploads.db")
        assert after_restore < before
        cloud = RunningCloud(start, folder, cloud.http_port, cloud.tunnel_port)
        async with cloud.releases() as releases:
            assert (await releases.get(under_way))["state"] == "beta"
            await until(releases, under_way, "full", first, second)
            for user in (first, second):
                await user.until(lambda user=user: user.has("v2"))  # type: ignore[misc]
            assert _serial(d0) > serials_before
            # Directives go on to be obeyed: a rollback takes v2 from both, and a new release works.
            await releases.rollback(under_way, "drill")
            for user in (first, second):
                await user.until(lambda user=user: user.has("v1"))  # type: ignore[misc]
            await cloud.push(work, "v4", MAIN.format("v4"))
            again = await released(releases, "v4")
            assert int(again.rpartition("-")[2]) > 1000, "no id of the lost cloud is used again"
            shown = await until(releases, again, "full", first, second)
            assert shown["totals"]["rejected"] == 0
        await d0.settled()
        await d1.settled()
        produced = [(await device.summary()).produced for device in (d0, d1)]
        for _ in range(200):
            now, lost = await stored(folder / "uploads.db")
            if now + lost >= sum(produced):
                break
            await asyncio.sleep(0.05)
        assert now + lost == sum(produced), "each feature is stored, or reported as lost"
        assert lost == before - after_restore, "lost is what was acknowledged after the backup, and no more"
    found = verify(folder / "audit")
    assert found.ok, found.faults
    assert [record.action for record in read_records(folder / "audit")].count("cloud.restore") == 1
    # Who kept a head of the lost cloud sees that its last records are not in the restored log.
    assert not verify(folder / "audit", heads=(head,)).ok


def _head(cloud: RunningCloud) -> dict[str, Any]:
    found: dict[str, Any] = walle("audit", "head", "--json", WALLE_URL=cloud.url, WALLE_TOKEN=cloud.home.admin_token)
    return found


def _serial(device: Device) -> tuple[int, int]:
    return max((state.epoch, state.serial) for state in device.agent._active.states.values())


@pytest.mark.night
@pytest.mark.system
def test_a_killed_backup_leaves_nothing_that_passes_as_complete(tmp_path: Path) -> None:
    home = CloudHome(tmp_path / "cloud")
    home.prepare(("shop",))
    for number in range(400):
        home.files.put(number.to_bytes(4, "big") * 20_000)
    finished = killed = 0
    for attempt in range(3):
        out = tmp_path / f"backup-{attempt}"
        process = subprocess.Popen(
            [*_COMMAND, "cloud", "backup", str(home.folder), str(out), "--json"],
            env=_environment({}), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until_s = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < until_s:
            copied = sum(1 for _ in tmp_path.glob(f".backup-{attempt}.*/files/*/*"))
            if copied > attempt * 120:
                process.send_signal(signal.SIGKILL)
        process.wait()
        if out.exists():
            finished += 1
            assert (out / MANIFEST).exists()
            restored = walle("cloud", "restore", str(out), str(tmp_path / f"r-{attempt}"), "--without-keys", "--json")
            assert restored["files"] > 400
        else:
            killed += 1
            assert not list(tmp_path.glob(f".backup-{attempt}.*/{MANIFEST}"))
    assert killed >= 2, (killed, finished)
