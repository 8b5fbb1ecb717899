"""A directive is for the devices that its signature names: others refuse it, also where TLS was broken."""

import base64
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.sim.agent_device import FILES, TASK, Device
from tests.sim.cloud_files import CloudFiles
from tests.sim.release_world import table_of
from tests.sim.shop_cloud import shop_cloud, until
from walle.deploy.policies.policy import Policy
from walle.deploy.push.answerer import Answerer
from walle.deploy.releases.release import Admission, Release, ReleaseState
from walle.deploy.releases.request import MAX_BETA_DEVICES, ReleaseRequest
from walle.deploy.releases.table import ReleaseTable, RowEntry, plan_row
from walle.errors import DeployError
from walle.protocol import (
    Audience,
    Directive,
    Profile,
    ProtocolError,
    ShortProfile,
    TaskPart,
    directives_from_header,
    directives_to_header,
    part_digest,
    parts_to_header,
)

SCENARIO, _, NAME = TASK.partition("/")


def release(cloud: CloudFiles, number: int, state: ReleaseState, *, policy: str = "", **changes: Any) -> Release:
    """Return a release of a version whose files are on the cloud."""
    version = f"v{number}"
    published = cloud.publish(TASK, version, FILES[version])
    return Release(
        id=f"r{number}",
        number=number,
        request=ReleaseRequest(scenario=SCENARIO, task=NAME, version=version, policy=Policy(policy)),
        created_s=0.0,
        updated_s=0.0,
        state=state,
        manifest=published.manifest,
        size_bytes=published.size_bytes,
        **changes,
    )


class Fleet:
    """Devices with real agents, and the answers that a table has for them, which an attacker may show to others."""

    def __init__(self, cloud: CloudFiles, devices: dict[str, tuple[Device, str]]) -> None:
        self.cloud = cloud
        self.devices = devices
        self.serial = 100
        self.shown = 0
        self.table = ReleaseTable()

    @classmethod
    async def begin(cls, folder: Path, **app_versions: str) -> "Fleet":
        cloud = CloudFiles()
        devices = {
            name: (Device(folder / name, cloud, device_id=name, app_version=app), app)
            for name, app in app_versions.items()
        }
        for device, _ in devices.values():
            await device.agent.start()
        return cls(cloud, devices)

    def publish(self, *full: Release, active: Release | None = None) -> None:
        plan = plan_row(TASK, [*full, *([active] if active else [])], "/cdn")

        def sign(directive: Directive) -> Directive:
            return self.cloud.sign(directive, keep_serial=True)

        self.table = ReleaseTable(self.serial, [plan.sign(sign, self.serial, 4_000_000_000)])
        self.serial += plan.serials

    def answer_to(self, name: str) -> str:
        """Return X-Walle-Tasks of the answer to a device, empty where it is up to date."""
        device, app_version = self.devices[name]
        found = self.table.answer(Profile(name, app_version, {}, device.agent.tasks))
        return directives_to_header(found) if found else ""

    async def show(self, header: str, to: str) -> list[DeployError]:
        device, _ = self.devices[to]
        self.shown += 1
        stamp = self.cloud.timestamp(device.clock.time() + self.shown)  # a newer one: alarms begin again
        return await device.agent.handle(directives_from_header(header), stamp)

    async def settle(self) -> None:
        """Give each device its own answer, which it obeys."""
        for name in self.devices:
            if header := self.answer_to(name):
                assert await self.show(header, name) == []
                assert self.answer_to(name) == ""

    async def refuses(self, header: str, to: str) -> str:
        """Return why a device refuses an answer of another, with an alarm and no outcome."""
        device, _ = self.devices[to]
        device.outcomes()
        before = device.agent.tasks
        (error,) = await self.show(header, to)
        assert device.agent.tasks == before
        batch = device.agent.outcomes.take_batch()
        assert batch is not None
        device.agent.outcomes.confirm(batch.batch_id)
        (alarm,) = batch.alarms
        assert (alarm.kind, batch.outcomes) == ("audience", ())
        assert alarm.text in str(error)
        return alarm.text

    def has(self, version: str) -> set[str]:
        return {name for name, (device, _) in self.devices.items() if device.agent.tasks.get(TASK) == version}


@pytest.mark.asyncio
async def test_wrong_device_a_candidate_shown_to_a_device_before_its_turn_is_refused(tmp_path: Path) -> None:
    fleet = await Fleet.begin(tmp_path, **{f"d{number}": "10.0" for number in range(16)})
    old = release(fleet.cloud, 1, ReleaseState.FULL)
    fleet.publish(old)
    await fleet.settle()
    beta = release(fleet.cloud, 2, ReleaseState.BETA, beta_devices=("d1",))
    fleet.publish(old, active=beta)
    stolen = fleet.answer_to("d1")
    for other in ("d0", "d2"):
        assert "below place 0 and 1 named ones of release 'r2'" in await fleet.refuses(stolen, other)
    fleet.publish(old, active=dataclasses.replace(beta, state=ReleaseState.GRAY))
    answers = {name: fleet.answer_to(name) for name in fleet.devices}
    admitted = {name for name, header in answers.items() if header}
    assert {"d1"} < admitted < set(answers)
    for name in answers.keys() - admitted:
        assert "below place 0.25" in await fleet.refuses(answers["d1"], name)
    await fleet.settle()
    assert fleet.has("v2") == admitted

    fleet.publish(old, active=dataclasses.replace(beta, state=ReleaseState.GRAY, step=2))
    late = fleet.answer_to(min(answers.keys() - admitted))
    closed = dataclasses.replace(beta, state=ReleaseState.PAUSED, resumes=ReleaseState.GRAY, step=2)
    fleet.publish(old, active=closed)
    paused = fleet.table.rows[TASK].candidates[0]
    assert paused is not None
    for name in answers.keys() - admitted:
        await fleet.refuses(directives_to_header([paused.directive]), name)
    assert await fleet.show(late, min(answers.keys() - admitted)) == [], "its own answer, from before the pause"


@pytest.mark.asyncio
async def test_wrong_device_a_version_for_other_app_versions_is_refused(tmp_path: Path) -> None:
    fleet = await Fleet.begin(tmp_path, ten="10.0", eleven="11.2", nine="9", odd="dev-build")
    for_all = release(fleet.cloud, 1, ReleaseState.FULL)
    newer = release(fleet.cloud, 2, ReleaseState.FULL, policy=">=10")
    fleet.publish(newer, for_all)
    answers = {name: fleet.answer_to(name) for name in fleet.devices}
    assert "is for app versions >=10, this app is '9'" in await fleet.refuses(answers["ten"], "nine")
    assert "this app is 'dev-build'" in await fleet.refuses(answers["ten"], "odd")
    assert "not for app versions >=10, this app is '11.2'" in await fleet.refuses(answers["nine"], "eleven")
    await fleet.settle()
    assert (fleet.has("v1"), fleet.has("v2")) == ({"nine", "odd"}, {"ten", "eleven"})
    fleet.publish(newer)
    removal = fleet.answer_to("nine")
    assert "not for app versions >=10" in await fleet.refuses(removal, "ten")
    await fleet.settle()
    assert (fleet.has("v1"), fleet.has("v2")) == (set(), {"ten", "eleven"})


@pytest.mark.asyncio
async def test_wrong_device_the_audience_is_signed(tmp_path: Path) -> None:
    fleet = await Fleet.begin(tmp_path, d1="10", d2="10")
    fleet.publish(active=release(fleet.cloud, 2, ReleaseState.BETA, beta_devices=("d1",)))
    (directive,) = directives_from_header(fleet.answer_to("d1"))
    for audience in (Audience(), dataclasses.replace(directive.audience, below=1 << 52)):
        (error,) = await fleet.show(directives_to_header([dataclasses.replace(directive, audience=audience)]), "d2")
        assert "not signed by the release role" in str(error)
    bad = fleet.cloud.sign(dataclasses.replace(directive, audience=Audience(app_version="about ten")))
    assert "its range of app versions cannot be read" in await fleet.refuses(directives_to_header([bad]), "d1")
    assert await fleet.show(fleet.answer_to("d1"), "d1") == []


def test_the_largest_beta_fits_into_an_answer() -> None:
    devices = tuple(f"{number:036d}" for number in range(MAX_BETA_DEVICES))
    cloud = CloudFiles()
    beta = release(cloud, 2, ReleaseState.BETA, beta_devices=devices)
    directive = plan_row(TASK, [beta], "https://cdn.example/cdn").entries[0].directive
    header = directives_to_header([cloud.sign(directive)])
    assert len(header) < 6100
    assert directives_from_header(header)[0].audience == directive.audience
    gray = dataclasses.replace(beta, state=ReleaseState.GRAY, step=1)
    directive = plan_row(TASK, [gray], "/cdn").entries[0].directive
    assert 400 < len(directive.audience.devices) < 600, "those that the share covers are not named"


@pytest.mark.parametrize(
    ("audience", "error"),
    [
        (None, r"\[0\].audience: is missing: the cloud has an older walle; update the cloud"),
        ([], "audience: must be an object"),
        ({"os": "android"}, "audience.os: is a rule of a newer walle; update walle on this device"),
        ({"below": -1}, "audience.below: -1 is not from 0 to"),
        ({"below": (1 << 53) + 1}, "is not from 0 to"),
        ({"below": 0.5}, "audience.below: must be int"),
        ({"not": [1]}, "audience.not: must be a list of ranges"),
        ({"devices": "?"}, "audience.devices: is not base64"),
        ({"devices": "AAAAAAA="}, "audience.devices: 5 bytes are not a multiple of 4"),
    ],
)
def test_an_audience_that_cannot_be_checked_is_refused(audience: object, error: str) -> None:
    (value,) = json.loads(directives_to_header([CloudFiles().publish(TASK, "v1", FILES["v1"])]))
    del value["audience"]
    with pytest.raises(ProtocolError, match=error):
        directives_from_header(json.dumps([value if audience is None else {**value, "audience": audience}]))


def test_the_audience_as_another_implementation_would_check_it() -> None:
    """Compute it from the words of docs/directives.md alone."""
    digest = hashlib.blake2b(b"r7\0phone", digest_size=8).digest()
    place = int.from_bytes(digest[:8], "big") // 2**11
    cloud = CloudFiles()
    gray = release(cloud, 2, ReleaseState.GRAY, policy=">=10", beta_devices=("phone",))
    gray = dataclasses.replace(gray, id="r7", request=dataclasses.replace(gray.request, steps=(1e-9, 1.0)))
    directive = plan_row(TASK, [gray], "/cdn").entries[0].directive
    sent = directive.to_json()["audience"]
    assert sent == {"app": ">=10", "below": 9007200, "devices": base64.b64encode(digest[:4]).decode()}
    assert place > sent["below"]


@pytest.mark.asyncio
async def test_wrong_device_an_answer_of_the_real_cloud_is_for_one_device_alone(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as one, shop.device(tmp_path / "d1") as other:
        await shop.push("v1")
        release_id = await shop.release("v1", beta=["d0"])
        await shop.until(release_id, "beta")
        answers: list[tuple[str | None, str | None, str]] = []

        async def came() -> bool:
            await other.checkin()
            answers[:] = [await one._requests.checkin()]
            return bool(answers[0][0])

        await until(came)
        await other.handle_answer(*answers[0])

        async def counted() -> bool:
            await other.report()
            return 'walle_device_alarms_total{kind="audience"} 1.0' in (await shop.http.get("/metrics")).text

        await until(counted)
        assert other.tasks == {}
        await one.handle_answer(*answers[0])
        await until(lambda: one.tasks == {"shop/count": "v1"})


@pytest.mark.parametrize(
    ("policy", "admission"),
    [
        (Policy(), Admission(0.0, frozenset({"d1"}), open=True)),
        (Policy(), Admission(0.5, frozenset(), open=True)),  # d1 has place 0.10 in r7, d2 0.66
        (Policy(devices=("d1",)), None),
    ],
)
def test_a_short_profile_gives_no_device_what_is_for_another(policy: Policy, admission: Admission | None) -> None:
    """Two devices send the same header. A version is for one of them."""
    row = next(iter(table_of(ipv="v1").rows.values()))
    (full,) = row.entries
    directive = dataclasses.replace(full.directive, version="v2", release="r7")
    entries = (RowEntry(policy, directive, directive, admission), full)
    answerer = Answerer(ReleaseTable(1, [dataclasses.replace(row, entries=entries)]))
    part = TaskPart({"shop/ipv": "v1"}).to_bytes()
    header = ShortProfile("10", {}, [part_digest(part)]).to_header().encode()
    answerer.headers(header, "d0", parts_to_header([part]).encode())
    for _ in range(2):
        assert answerer.headers(header, "d2") == ()
        assert b'"version":"v2"' in dict(answerer.headers(header, "d1"))[b"x-walle-tasks"]
