"""Uploaded attributes over HTTP: roles, refusals that change nothing, and what preview and explain make of them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from tests.sim.release_world import ReleaseWorld
from walle.access.access import Access, Role
from walle.access.audit import NoAudit
from walle.base.clock import ManualClock
from walle.cloud.api import attributes as attribute_api
from walle.cloud.api.attributes import attribute_router
from walle.cloud.api.releases import install_error_handlers, release_router
from walle.cloud.api.targeting import Targeting, targeting_router
from walle.deploy.fleet.registry import DeviceRegistry
from walle.deploy.monitor.service import MonitorService
from walle.deploy.policies.attribute_schema import read_schema
from walle.deploy.policies.uploaded_attributes import UploadedAttributes
from walle.deploy.releases.journal import Journal
from walle.protocol import Profile
from walle.store.disk_space import DiskSpace

DECLARED = '[attributes]\nos = "string"\nuser = "string"\nram = "int"\n[uploaded]\ngroup = "string"\nage = "int"\n'
ROWS = b'{"device_id": "d1", "group": "gold", "age": 30}\n{"device_id": "d2", "group": "gold"}\n'


class Cloud:
    def __init__(self, folder: Path, clock: ManualClock, journal: Journal) -> None:
        self.schema = folder / "attributes.toml"
        self.schema.write_text(DECLARED)
        self.uploaded = UploadedAttributes(folder / "attributes")
        self.world = ReleaseWorld(folder, clock, journal)
        self.world.schema = read_schema(self.schema)
        self.registry = DeviceRegistry.in_file(folder / "d.db", clock, uploaded=self.uploaded, flush_s=1e9)
        access = Access()
        self.tokens = {
            "anna": access.issue("anna", {"*": Role.RELEASER}),
            "bert": access.issue("bert", {"*": Role.READER}),
            "cleo": access.issue("cleo", {"shop": Role.RELEASER}),
        }
        self.devices = MonitorService(journal, clock, devices=self.registry)
        self.changes = 0
        app = FastAPI()
        app.include_router(release_router(self.world.service, self.world.monitor, access))
        app.include_router(
            targeting_router(
                Targeting(
                    self.world.service,
                    self.devices,
                    lambda: self.world.answerer.table,
                    uploaded=lambda: self.uploaded.current,
                ),
                access,
            )
        )
        space = DiskSpace(folder, reserve_bytes=0)
        app.include_router(
            attribute_router(
                self.uploaded, self.schema, access, on_change=self._changed, space=space, audit=NoAudit(), clock=clock
            )
        )
        install_error_handlers(app)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://cloud")

    async def _changed(self) -> None:
        self.changes += 1
        await asyncio.to_thread(self.uploaded.read)

    async def ask(self, method: str, path: str, who: str = "anna", **more: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        answer = await self.client.request(method, path, headers=headers, **more)
        return answer.status_code, answer.json() if answer.content else None

    async def put(self, rows: bytes = ROWS, key: str = "device_id", who: str = "anna") -> tuple[int, Any]:
        return await self.ask("PUT", f"/v1/attributes/{key}", who, content=rows)


@pytest_asyncio.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    clock = ManualClock()
    async with Journal.in_file(tmp_path / "j.sqlite") as journal:
        cloud = Cloud(tmp_path, clock, journal)
        async with cloud.registry, cloud.world.service, cloud.client:
            yield cloud


@pytest.mark.asyncio
async def test_a_table_is_put_listed_replaced_and_removed(cloud: Cloud) -> None:
    status, table = await cloud.put()
    assert (status, table["rows"], table["put_by"], table["key"]) == (200, 2, "anna", "device_id")
    assert table["columns"] == {"group": "string", "age": "int"}
    assert (await cloud.put(b'{"user": "anna", "age": 31}', key="user"))[0] == 200
    assert (await cloud.put(b'{"device_id": "d1", "age": 31}'))[0] == 200
    _, listed = await cloud.ask("GET", "/v1/attributes", "bert")
    assert [(one["key"], one["rows"]) for one in listed["tables"]] == [("device_id", 1), ("user", 1)]
    assert listed["columns"] == {"group": "string", "age": "int"}
    assert listed["keys"] == ["device_id", "os", "user"]
    assert (await cloud.ask("DELETE", "/v1/attributes/user"))[0] == 204
    assert (await cloud.ask("DELETE", "/v1/attributes/user"))[0] == 404
    assert cloud.changes == 4


@pytest.mark.asyncio
async def test_tables_are_of_the_whole_fleet_and_need_roles_on_all_scenarios(cloud: Cloud) -> None:
    for who in ("bert", "cleo"):
        assert (await cloud.put(who=who))[0] == 403
        assert (await cloud.ask("DELETE", "/v1/attributes/device_id", who))[0] == 403
    assert (await cloud.ask("GET", "/v1/attributes", "cleo"))[0] == 403
    assert cloud.changes == 0


@pytest.mark.asyncio
async def test_a_refused_table_changes_nothing(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    await cloud.put()
    for rows, key, what in [
        (b'{"device_id": "d1"}\n{"device_id": "d2", "age": "x"}', "device_id", "line 2: age is"),
        (ROWS, "nobody", "'nobody' is neither device_id nor an attribute of type string"),
        (ROWS, "ram", "'ram' is neither"),
        (ROWS, "uploaded.group", "is neither"),
        (ROWS, "user", "line 1: user must be a text"),
    ]:
        status, answer = await cloud.put(rows, key)
        assert (status, answer["type"]) == (422, "AttributeTableError")
        assert what in answer["error"]
    monkeypatch.setattr(attribute_api, "MAX_TABLE_BYTES", 50)
    assert "more than 50 bytes" in (await cloud.put())[1]["error"]
    cloud.schema.write_text('[attributes]\nos = "string"\n')
    assert "[uploaded]" in (await cloud.put())[1]["error"]
    assert [table.facts.rows for table in cloud.uploaded.current.tables] == [2]
    assert cloud.changes == 1
    assert [path.name for path in (cloud.schema.parent / "attributes").iterdir()] == ["device_id.table"]


@pytest.mark.asyncio
async def test_rules_over_uploaded_attributes_are_previewed_released_and_explained(cloud: Cloud) -> None:
    await cloud.put()
    for device in ("d1", "d2", "d3"):
        header = Profile(device, "10.1", {"os": "a", "uploaded.group": "gold"}, {"shop/ipv": "v0"}).to_header()
        await cloud.devices.note_profiles({device: header.encode()})
    body = {"scenario": "shop", "rule": "uploaded.group == 'gold' && uploaded.age >= 18"}
    status, found = await cloud.ask("POST", "/v1/preview", json=body)
    assert (status, found["seen"], found["reached"]) == (200, 3, 1)
    assert [one["reached"] for one in found["terms"]] == [2, 1]  # d3 only claims to be
    assert found["policy"]["columns"] == {"uploaded.age": "int", "uploaded.group": "string"}
    status, answer = await cloud.ask("POST", "/v1/preview", json={**body, "rule": "uploaded.color == 'red'"})
    assert (status, answer["type"]) == (422, "RuleError")
    assert "declared are: app_version, os, ram, uploaded.age, uploaded.group, user" in answer["error"]
    policy = {"rule": body["rule"]}
    request = {"scenario": "shop", "task": "ipv", "version": "v1", "beta": ["d1"], "policy": policy, "start": False}
    status, release = await cloud.ask("POST", "/v1/releases", json=request)
    assert status == 201, release
    said = {"d1": 'uploaded.group is "gold", by its device_id', "d3": "nothing was uploaded of its group"}
    for device, held in said.items():
        (task,) = (await cloud.ask("GET", f"/v1/explain/{device}"))[1]["tasks"]
        (one,) = task["releases"]
        assert one["applies"] is (device == "d1")
        assert one["terms"][0]["device"].startswith(held)
