"""The registry of devices: what profiles and reports leave in it, its bounds, and what hostile devices cannot do."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.sim.postgres_server import PostgresServer
from walle.base.clock import ManualClock
from walle.client.admin_client import DeviceFailureJson, DeviceJson, DevicePageJson, DeviceTaskJson
from walle.deploy.fleet.device_changes import MAX_DEVICE_FAILURES, MAX_DEVICE_TASKS, Change
from walle.deploy.fleet.registry import (
    DeviceFailure,
    DevicePage,
    DeviceQuery,
    DeviceRegistry,
    DeviceTask,
    KnownDevice,
    UnknownDeviceError,
)
from walle.protocol import Failure, Outcome, OutcomeBatch, OutcomeKind, Profile
from walle.store.errors import StateError


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def header(device_id: str, tasks: dict[str, str] | None = None, **more: Any) -> dict[str, bytes]:
    profile = Profile(device_id, more.pop("app_version", "10.1"), more or {"os": "linux"}, tasks or {})
    return {device_id: profile.to_header().encode()}


def run(task: str = "shop/ipv", version: str = "v1", *, ok: int = 0, failed: int = 0, **more: Any) -> Outcome:
    values: dict[str, Any] = {"release": "r1", "kind": OutcomeKind.RUN, "ok": ok, "failed": failed, **more}
    return Outcome(task=task, version=version, **values)


_batches = iter(range(1_000_000))


def batch(device_id: str, *outcomes: Outcome) -> OutcomeBatch:
    return OutcomeBatch(device_id, f"b{next(_batches)}", outcomes)


def failure(error: str, count: int = 1) -> Failure:
    return Failure(
        error_type="KeyError", error=error, place="main.py:3 in f", traceback="T", log="info: x", count=count
    )


class DeviceRegistryContract:
    """Tests of every registry; `registry` is a fixture of its subclasses, for 50 devices at most."""

    @pytest.mark.asyncio
    async def test_a_device_is_known_by_its_profiles_and_reports(
        self, registry: DeviceRegistry, clock: ManualClock
    ) -> None:
        registry.note(header("d1", {"shop/ipv": "v1"}, os="linux", ram=4))
        first_s = clock.time()
        await registry.flush()
        await clock.advance(10)
        registry.note(header("d1", {"shop/ipv": "v1"}, os="linux", ram=4))
        registry.take(
            batch("d1", run(ok=5, failed=1, failures=(failure("'a'"),)), run(version="v1", kind=OutcomeKind.INSTALLED))
        )
        registry.take(batch("d1", run(ok=2)))
        device = await registry.get("d1")
        assert (device.app_version, device.attributes) == ("10.1", {"os": "linux", "ram": 4})
        assert (device.first_seen_s, device.last_seen_s, device.reported_s) == (first_s, clock.time(), clock.time())
        (task,) = device.tasks
        assert (task.task, task.active, task.version, task.state) == ("shop/ipv", "v1", "v1", "installed")
        assert (task.ok, task.failed, task.release) == (7, 1, "r1")
        (found,) = await registry.failures("d1")
        assert (found.task, found.version, found.kind, found.failure) == ("shop/ipv", "v1", "run", failure("'a'"))
        registry.take(batch("d1", run(version="v2", kind=OutcomeKind.REJECTED, error="unsigned")))
        registry.note(header("d1"))
        (task,) = (await registry.get("d1")).tasks
        assert (task.active, task.version, task.state, task.ok, task.failed) == ("", "v2", "rejected", 0, 0)
        assert [one.failure.error for one in await registry.failures("d1")] == ["unsigned", "'a'"]

    @pytest.mark.asyncio
    async def test_filters_select_devices_and_pages_list_each_once(
        self, registry: DeviceRegistry, clock: ManualClock
    ) -> None:
        for number in range(20):
            registry.note(header(f"d{number:02}", {"shop/ipv": f"v{number % 2}"}, app_version=f"1.{number % 4}"))
            await registry.flush()
            await clock.advance(10)
        registry.take(batch("d03", run(failed=1), run(task="other/x", ok=1, kind=OutcomeKind.INSTALLED)))

        async def ids(**query: Any) -> list[str]:
            return [device.device_id for device in (await registry.page(DeviceQuery(**query))).devices]

        seen: list[str] = []
        after = ""
        while True:
            page = await registry.page(DeviceQuery(limit=7, after=after))
            assert page.total == 20
            seen += [device.device_id for device in page.devices]
            if not (after := page.after):
                break
        assert seen == [f"d{number:02}" for number in range(20)]
        assert await ids(search="1", limit=3) == ["d01", "d10", "d11"]
        assert await ids(version="v1", app_version="1.3") == ["d03", "d07", "d11", "d15", "d19"]
        assert await ids(task="other/x") == ["d03"]
        assert await ids(state="installed") == ["d03"]
        assert await ids(failing=True) == ["d03"]
        assert await ids(failing=True, task="other/x") == []
        assert await ids(seen_within_s=25) == ["d03", "d18", "d19"]
        assert await ids(search="%") == await ids(search="' OR 1 --") == []

    @pytest.mark.asyncio
    async def test_other_scenarios_are_not_shown(self, registry: DeviceRegistry) -> None:
        registry.note(header("d1", {"shop/ipv": "v1", "bank/fraud": "v2"}))
        registry.note(header("d2", {"bank/fraud": "v2"}))
        registry.take(batch("d1", run(failed=1, failures=(failure("a"),)), run("bank/fraud", failed=1, error="secret")))
        shop = frozenset({"shop"})
        page = await registry.page(DeviceQuery(scenarios=shop))
        assert [(device.device_id, [task.task for task in device.tasks]) for device in page.devices] == [
            ("d1", ["shop/ipv"])
        ]
        assert page.total == 1
        assert [one.task for one in await registry.failures("d1", shop)] == ["shop/ipv"]
        assert len(await registry.failures("d1")) == 2
        for hidden in (registry.get("d2", shop), registry.failures("d2", shop), registry.get("nobody")):
            with pytest.raises(UnknownDeviceError, match="walle device list"):
                await hidden
        assert (await registry.page(DeviceQuery(scenarios=frozenset()))).total == 0

    @pytest.mark.asyncio
    async def test_forged_profiles_displace_no_device_that_reported(
        self, registry: DeviceRegistry, clock: ManualClock
    ) -> None:
        for number in range(40):
            registry.take(batch(f"real-{number}", run(ok=1)))
        await registry.flush()
        await clock.advance(100)
        for number in range(1_000):
            registry.note(header(f"forged-{number:04}"))
        page = await registry.page(DeviceQuery(limit=1_000))
        assert (page.total, page.is_full) == (50, True)
        assert sum(device.device_id.startswith("real-") for device in page.devices) == 40
        registry.note(header("real-1", {"shop/ipv": "v3"}))  # a device that was removed, or is known, is listed again
        assert (await registry.get("real-1")).tasks[0].active == "v3"

    @pytest.mark.asyncio
    async def test_a_device_of_348_tasks_is_listed_whole_and_a_page_ends_where_its_tasks_are_many(
        self, registry: DeviceRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tasks = {f"shop/{number:03}_a_task_of_an_ordinary_name": "v12" for number in range(348)}
        for name in ("d1", "d2", "d3"):
            registry.note(header(name, tasks))
        assert {task.task: task.active for task in (await registry.get("d1")).tasks} == tasks
        registry.note(header("d1", {**tasks, "shop/000_a_task_of_an_ordinary_name": "v13"}))
        registry.take(batch("d1", *(run(task, "v12", ok=1) for task in tasks)))
        found = (await registry.get("d1")).tasks
        assert [task.active for task in found] == ["v13", *["v12"] * 347]
        assert {task.ok for task in found} == {1}
        monkeypatch.setattr("walle.deploy.fleet.registry.MAX_PAGE_TASKS", 500)
        first = await registry.page(DeviceQuery())
        rest = await registry.page(DeviceQuery(after=first.after))
        assert [device.device_id for device in first.devices] == ["d1", "d2"]
        assert ([device.device_id for device in rest.devices], rest.after, first.total) == (["d3"], "", 3)

    @pytest.mark.asyncio
    async def test_one_device_has_bounded_tasks_and_failures(self, registry: DeviceRegistry) -> None:
        registry.note(header("d1", {f"shop/t{number}": "v1" for number in range(300)}))
        for number in range(200):
            registry.take(batch("d1", run(f"shop/r{number}", failed=1, failures=(failure(str(number)),) * 10)))
        assert len((await registry.get("d1")).tasks) == MAX_DEVICE_TASKS
        registry.take(batch("d2", *(run(failed=1, failures=(failure(str(number)),)) for number in range(100))))
        found = await registry.failures("d2")
        assert [one.failure.error for one in found] == [
            str(number) for number in range(99, 99 - MAX_DEVICE_FAILURES, -1)
        ]
        older = await registry.failures("d2", before=found[4].number, limit=3)
        assert [one.failure.error for one in older] == ["94", "93", "92"]

    @pytest.mark.asyncio
    async def test_tasks_of_long_ago_make_room_for_new_ones(self, registry: DeviceRegistry, clock: ManualClock) -> None:
        for number in range(MAX_DEVICE_TASKS):
            await clock.advance(1)
            registry.take(batch("d1", run(f"shop/t{number}", ok=1)))
        registry.note(header("d1", {"shop/t0": "v1", "shop/new": "v1"}))
        assert "shop/new" not in {task.task for task in (await registry.get("d1")).tasks}  # anyone may send a profile
        registry.take(batch("d1", run("shop/new", failed=1, failures=(failure("x"),)), run("shop/other", ok=1)))
        tasks = {task.task: task for task in (await registry.get("d1")).tasks}
        assert len(tasks) == MAX_DEVICE_TASKS
        assert tasks.keys() >= {
            "shop/t0",
            "shop/new",
            "shop/other",
        }  # the active one, and those that were reported last
        assert tasks.keys().isdisjoint({"shop/t1", "shop/t2"})
        assert [one.task for one in await registry.failures("d1")] == ["shop/new"]

    @pytest.mark.asyncio
    async def test_forged_profiles_leave_room_for_what_the_device_reports(self, registry: DeviceRegistry) -> None:
        registry.take(batch("d1", run("shop/first", ok=1)))
        for forged in "abc":
            registry.note(header("d1", {f"shop/{forged}{number}": "v1" for number in range(2 * MAX_DEVICE_TASKS)}))
            await registry.flush()
        registry.take(batch("d1", run(failed=1, failures=(failure("x"),))))
        tasks = {task.task: task for task in (await registry.get("d1")).tasks}
        assert len(tasks) == MAX_DEVICE_TASKS
        assert (tasks["shop/first"].ok, tasks["shop/ipv"].failed) == (1, 1)

    @pytest.mark.asyncio
    async def test_sightings_beyond_the_bound_are_dropped_and_counted(
        self, registry: DeviceRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("walle.deploy.fleet.registry._MAX_WAITING", 10)
        for number in range(25):
            registry.note(header(f"d{number}"))
        assert len(registry._waiting) == 10
        page = await registry.page(DeviceQuery())
        assert (page.total, page.unlisted) == (10, 15)
        long = header("long", note="x" * 4_000)
        for _ in range(3):
            registry.note(long)
        assert (len(registry._waiting), registry.unlisted) == (1, 17)
        await registry.flush()
        registry.take(batch("d1", run(failed=1, failures=(failure("x"),) * 3)))  # alone, whatever its weight
        registry.take(batch("d1", run(failed=1, failures=(failure("x"),))))
        assert (len(registry._waiting), registry.unlisted) == (1, 18)

    @pytest.mark.asyncio
    async def test_hostile_profiles_and_reports_harm_no_other(self, registry: DeviceRegistry) -> None:
        hostile = {
            "nan": '{"d":"nan","a":"1","x":{"a":NaN,"b":Infinity,"c":1},"t":{}}',
            "half": '{"d":"half","a":"1","x":{"\\ud800":"\\udfff"},"t":{"shop/\\ud800":"v\\udfff"}}',
            "long": json.dumps(
                {"d": "long", "a": "9" * 500, "x": {"k" * 3000: "v", "b": 1}, "t": {"t" * 2000: "v" * 900}}
            ),
            "big": '{"d":"big","a":"1","x":{"n":1' + "0" * 4000 + '},"t":{}}',
            "broken": "{",
        }
        registry.note({device_id: text.encode() for device_id, text in hostile.items()})
        registry.note({"bytes": b"\xff\xfe"})
        for _ in range(20):
            registry.take(batch("greedy", run(ok=Outcome.MAX_COUNT, failed=Outcome.MAX_COUNT)))
        registry.note(header("honest", {"shop/ipv": "v1"}))
        page = await registry.page(DeviceQuery())
        assert {device.device_id for device in page.devices} == {"nan", "half", "long", "big", "greedy", "honest"}
        known = {device.device_id: device for device in page.devices}
        assert known["nan"].attributes == {"c": 1}
        assert known["long"].attributes == {}
        json.dumps([device.to_plain() for device in page.devices], allow_nan=False, ensure_ascii=False).encode()
        registry.take(batch("greedy", *[run(ok=10**9)] * 100))
        monkey = batch("x\0y", run("a\0b"))
        registry.take(monkey)
        assert (await registry.get("greedy")).tasks[0].ok >= 10**11
        assert (await registry.get("x\0y")).tasks[0].task == "a\ufffdb"


class TestSqliteDeviceRegistry(DeviceRegistryContract):
    @pytest_asyncio.fixture
    async def registry(self, tmp_path: Path, clock: ManualClock) -> AsyncIterator[DeviceRegistry]:
        async with DeviceRegistry.in_file(tmp_path / "devices.db", clock, max_devices=50) as registry:
            yield registry


class TestPostgresDeviceRegistry(DeviceRegistryContract):
    @pytest_asyncio.fixture
    async def registry(self, postgres: PostgresServer, clock: ManualClock) -> AsyncIterator[DeviceRegistry]:
        from walle.store.postgres_database import PostgresDatabase

        async with (
            PostgresDatabase(postgres.make_database()) as database,
            DeviceRegistry(database, clock, max_devices=50) as registry,
        ):
            yield registry


@pytest.mark.asyncio
async def test_it_is_kept_over_a_restart_and_a_damaged_file_is_set_aside(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "devices.db"
    async with DeviceRegistry.in_file(path, clock) as registry:
        registry.note(header("d1"))
    async with DeviceRegistry.in_file(path, clock) as registry:
        assert (await registry.get("d1")).device_id == "d1"
    path.write_bytes(b"not a database" * 1000)
    async with DeviceRegistry.in_file(path, clock) as registry:
        assert (await registry.page(DeviceQuery())).total == 0
        registry.note(header("d2"))
    assert (tmp_path / "devices.damaged").read_bytes().startswith(b"not a database")
    async with DeviceRegistry.in_file(path, clock) as registry:
        assert (await registry.get("d2")).device_id == "d2"


def test_the_clients_types_have_the_fields_of_the_registrys() -> None:
    """A client imports nothing of the cloud, so that both sides write the fields down."""
    page = {"devices", "after", "total", "unlisted", "is_full"}
    failure = {field.name for one in (DeviceFailure, Failure) for field in dataclasses.fields(one)} - {"failure"}
    assert set(DeviceTaskJson.__annotations__) == {field.name for field in dataclasses.fields(DeviceTask)}
    key = {"key", "certificate_until_s"}  # fields of the identities
    assert set(DeviceJson.__annotations__) == key | {field.name for field in dataclasses.fields(KnownDevice)}
    assert set(DevicePageJson.__annotations__) == page == {field.name for field in dataclasses.fields(DevicePage)}
    assert set(DeviceFailureJson.__annotations__) == failure


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [StateError("devices", "is full"), ValueError("a fault of the code")])
async def test_a_flush_that_is_cancelled_ends_its_write_and_hides_no_fault_of_the_code(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def store(changes: list[Change], *, trims: bool) -> int:
        begun.set()
        await may_end.wait()
        raise error

    async with DeviceRegistry.in_file(tmp_path / "devices.db", clock) as registry:
        monkeypatch.setattr(registry._tables, "store", store)
        registry.note(header("d1"))
        flush = asyncio.create_task(registry.flush())
        await begun.wait()
        for _ in range(2):
            flush.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not flush.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError if isinstance(error, StateError) else type(error)):
            await flush
        assert registry.unlisted == 1
