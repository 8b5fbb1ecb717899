"""Release tables on their way to devices: new versions wait until the cloud has them loaded, and nothing else does."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from walle.base.clock import ManualClock
from walle.cloud.nodes.table_publisher import HOLD_S, TablePublisher
from walle.deploy.policies.policy import Policy
from walle.deploy.push.answerer import Answerer
from walle.deploy.releases.release import Admission
from walle.deploy.releases.table import PlannedEntry, ReleaseTable, RowPlan
from walle.protocol import Directive, Profile


class Inference:
    """Fallback inference whose loads end when the test says so."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self.loads: dict[str, asyncio.Event] = {}
        self.kept: Sequence[str] = ()
        self.is_known = asyncio.Event()
        self.is_known.set()

    async def cold(self, manifests: Sequence[str]) -> frozenset[str]:
        await self.is_known.wait()
        return frozenset(manifests) - self.loaded

    async def load(self, manifest: str) -> None:
        self.loads[manifest] = asyncio.Event()
        await self.loads[manifest].wait()
        self.loaded.add(manifest)

    async def keep(self, manifests: Sequence[str]) -> None:
        self.kept = manifests

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of fallback inference is not the publisher's affair")


def table(generation: int, lane: str, candidate: str = "") -> ReleaseTable:
    """Return a table of shop/count: `lane` for all devices, and all of them get `candidate`."""

    def directive(version: str) -> Directive:
        return Directive(
            task="shop/count",
            version=version,
            manifest=f"manifest of {version}",
            size_bytes=1,
            serial=0,
            expires_s=0,
            url="/cdn",
            release=version,
        )

    def entry(version: str, admission: Admission | None) -> PlannedEntry:
        return PlannedEntry(Policy(), directive(version), directive(version), admission)

    new = [entry(candidate, Admission(1.0, frozenset(), True))] if candidate else []
    plan = RowPlan(task="shop/count", entries=(*new, entry(lane, None)), url="/cdn")
    return ReleaseTable(generation, [plan.sign(lambda one: one, generation * 10, 1 << 40)])


class Rig:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.answerer = Answerer()
        self.inference = Inference()
        self.tables = TablePublisher(self.answerer, self.clock)

    def given(self, have: str = "v1") -> list[str]:
        """Return the versions that a device is sent."""
        profile = Profile(device_id="d0", app_version="1", attributes={}, tasks={"shop/count": have})
        return [directive.version for directive in self.answerer.table.answer(profile)]


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.tables.close()


@pytest.mark.asyncio
async def test_a_candidate_waits_until_it_is_loaded_and_devices_that_have_it_keep_it(rig: Rig) -> None:
    await rig.tables.start(rig.inference)
    rig.inference.loaded.add("manifest of v1")
    await rig.tables.publish(table(1, "v1"))
    assert rig.given(have="") == ["v1"]
    await rig.tables.publish(table(2, "v1", "v2"))
    await rig.clock.advance(0)
    assert rig.inference.kept == ("manifest of v2", "manifest of v1")
    assert rig.given() == []
    assert rig.given(have="v2") == []
    await rig.tables.publish(table(3, "v1", "v2"))  # the share may differ
    assert rig.given() == []
    rig.inference.loads["manifest of v2"].set()
    await rig.clock.advance(0)
    assert rig.given() == ["v2"]
    assert rig.answerer.table.generation == 3
    rig.inference.loaded.clear()  # unloaded meanwhile: the version is held back once
    await rig.tables.publish(table(4, "v1", "v2"))
    assert rig.given() == ["v2"]


@pytest.mark.asyncio
async def test_the_reason_of_a_failed_load_is_logged(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def load(manifest: str) -> None:
        raise ConnectionError(f"no replica for {manifest}")

    monkeypatch.setattr(rig.inference, "load", load)
    await rig.tables.start(rig.inference)
    await rig.tables.publish(table(1, "v1", "v2"))
    await rig.clock.advance(0)
    assert rig.given() == ["v2"]
    assert "could not be loaded: manifest of v2: no replica for manifest of v2" in caplog.text


@pytest.mark.asyncio
async def test_a_rollback_waits_for_nothing(rig: Rig) -> None:
    await rig.tables.start(rig.inference)
    await rig.tables.publish(table(1, "v1", "v2"))
    await rig.clock.advance(0)
    assert rig.given() == []
    await rig.tables.publish(table(2, "v1"))
    assert rig.given(have="v2") == ["v1"]
    await rig.tables.publish(table(1, "v1", "v2"))  # an older table
    rig.inference.loads["manifest of v2"].set()
    await rig.clock.advance(0)
    assert (rig.given(), rig.given(have="v2")) == ([], ["v1"])


@pytest.mark.asyncio
async def test_a_table_is_shown_only_when_it_is_known_which_of_its_versions_are_loaded(rig: Rig) -> None:
    await rig.tables.start(rig.inference)
    await rig.tables.publish(table(1, "v1", "v2"))
    await rig.clock.advance(0)
    rig.inference.is_known.clear()  # the engine reads manifests
    publishing = asyncio.create_task(rig.tables.publish(table(2, "v2", "v3")))
    await rig.clock.advance(0)
    rig.inference.loads["manifest of v2"].set()
    await rig.clock.advance(0)
    assert rig.given(have="v2") == []
    await rig.tables.publish(table(3, "v1"))  # a rollback, which waits for no manifest
    assert rig.given(have="v2") == ["v1"]
    rig.inference.is_known.set()
    await publishing
    assert rig.given(have="v2") == ["v1"]
    assert rig.inference.kept == ("manifest of v1",)
    assert list(rig.inference.loads) == ["manifest of v2"]


@pytest.mark.asyncio
async def test_a_version_that_cannot_be_loaded_is_released_nevertheless(rig: Rig) -> None:
    await rig.tables.start(rig.inference)
    await rig.tables.publish(table(1, "v1", "v2"))
    await rig.clock.advance(HOLD_S - 1)
    assert rig.given() == []
    await rig.clock.advance(2)
    assert rig.given() == ["v2"]


@pytest.mark.asyncio
async def test_a_table_published_before_the_start_is_held_back_until_its_versions_are_loaded(rig: Rig) -> None:
    await rig.tables.publish(table(1, "v1", "v2"))
    assert rig.given() == ["v2"]  # no device is served yet
    await rig.tables.start(rig.inference)
    await rig.clock.advance(0)
    assert rig.given() == []
    assert list(rig.inference.loads) == ["manifest of v2"]
