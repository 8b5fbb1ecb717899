"""Accountability of a whole cloud: who released, pushed and rolled back, from where, and why a gate decided."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.security.conftest import AttackedCloud
from tests.sim.git_host import address, git
from tests.sim.program import walle
from tests.sim.shop_cloud import GATE, User, shop_cloud
from tests.sim.visits import TASK_CONFIG
from walle.access.access import Access, Role
from walle.access.audit import AuditError, AuditRecord, read_records, verify
from walle.access.audit_folder import AuditLog
from walle.cloud import CloudHome

BROKEN = "def execute(ctx, trigger):\n    raise ValueError('v2 is broken')\n"


def records_of(folder: Path) -> list[AuditRecord]:
    found = verify(folder / "cloud" / "audit")
    assert found.ok, found.faults
    return read_records(folder / "cloud" / "audit")


def of(records: list[AuditRecord], action: str) -> list[AuditRecord]:
    return [record for record in records if record.action == action]


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_release_leaves_who_did_what_and_the_numbers_behind_each_decision(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await shop.push("v1")
        first = await shop.release("v1")
        await shop.until(first, "full", users=[user])
        await shop.push("v2", main=BROKEN, **{"simulation/none.txt": "no events"})
        second = await shop.release("v2", beta=["d0"], gate={**GATE, "p_bad": 0.5})
        await shop.until(second, "rolled_back", "failed", users=[user])
        await shop.releases.rollback(first, "not needed")
        records = records_of(tmp_path)
        shown = (await shop.http.get("/v1/audit", params={"limit": 1000})).json()["records"]
        verified = (await shop.http.get("/v1/audit/verify")).json()
        head = (await shop.http.get("/v1/audit/head")).json()
    assert [record["hash"] for record in shown] == [record.hash for record in records]
    assert verified["ok"]
    assert head["number"] == len(records)
    pushes = of(records, "ref.set")
    assert [record.details["ref"] for record in pushes] == [
        "refs/heads/count", "refs/tags/count/v1", "refs/heads/count", "refs/tags/count/v2",
    ]  # fmt: skip
    assert {(record.who, record.subject, record.address) for record in pushes} == {("admin", "shop", "127.0.0.1")}
    asked = of(records, "release.create")
    assert [(record.who, record.subject, record.details["version"], record.address) for record in asked] == [
        ("admin", "shop/count", "v1", "127.0.0.1"), ("admin", "shop/count", "v2", "127.0.0.1"),
    ]  # fmt: skip
    created = of(records, "release.created")
    assert [(record.subject, record.details["by"], record.details["state"]) for record in created] == [
        (first, "admin", "simulating"), (second, "admin", "simulating"),
    ]  # fmt: skip
    assert created[0].details["request"]["version"] == "v1"
    accepted = of(records, "gate.accept")
    assert {record.subject for record in accepted} == {first}
    assert [record.details["stage"] for record in accepted] == ["beta", "gray 1.0"]
    for record in accepted:
        assert record.details["new"]["runs"] >= 1
        assert record.details["new"]["failed"] == 0
        assert record.details["gate"]["p_bad"] == 0.5
        assert all(test["value"] >= test["boundary"] for test in record.details["accepts"])
        assert all(test["value"] < test["boundary"] for test in record.details["rejects"])
    (rejected,) = of(records, "gate.reject")
    assert rejected.subject == second
    assert rejected.details["new"]["failed"] >= 1
    assert any(test["value"] >= test["boundary"] for test in rejected.details["rejects"])
    assert "v2 is broken" in rejected.details["reason"]
    (undone,) = of(records, "release.rollback")
    assert (undone.who, undone.subject) == ("admin", first)
    moved = [record for record in of(records, "release.moved") if record.subject == first]
    assert [record.details["event"] for record in moved] == [
        "SimulationPassed", "BetaResolved", "GateAccepted", "GateAccepted", "Rollback",
    ]  # fmt: skip
    assert moved[-1].details["by"] == "admin"
    assert moved[-1].details["reason"] == "not needed"
    assert undone.number < moved[-1].number


@pytest.mark.asyncio
async def test_a_person_without_a_role_leaves_no_audit_record_and_reads_none(tmp_path: Path) -> None:
    home = CloudHome(tmp_path / "cloud")
    home.prepare(("shop",))
    access = Access.load(home.folder / "access.toml")
    tokens = {
        "reader": access.issue("reader", {"*": Role.READER}),
        "releaser": access.issue("releaser", {"shop": Role.RELEASER}),
    }
    access.save(home.folder / "access.toml")
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1")
        release_id = (await shop.releases.create("shop", "count", "v1", start=False))["id"]
        before = len(records_of(tmp_path))
        for token in (tokens["reader"], "unknown"):
            headers = {"Authorization": f"Bearer {token}"}
            refused = await shop.http.post(f"/v1/releases/{release_id}/start", headers=headers)
            assert refused.status_code in (401, 403)
        for token in (tokens["reader"], tokens["releaser"], "unknown"):
            for path in ("/v1/audit", "/v1/audit/head", "/v1/audit/verify"):
                refused = await shop.http.get(path, headers={"Authorization": f"Bearer {token}"})
                assert refused.status_code in (401, 403), path
                assert "records" not in refused.json()
        pushed = await asyncio.to_thread(
            git, tmp_path, "push", address(shop.cloud.address.url, tokens["reader"], "shop"), "HEAD:x", check=False
        )
        assert pushed.returncode != 0
        assert len(records_of(tmp_path)) == before


@pytest.mark.asyncio
async def test_a_revocation_of_no_token_is_not_recorded_as_done(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        assert (await shop.http.delete("/v1/tokens/nobody")).status_code == 404
        assert (await shop.http.delete("/v1/tokens/admin")).status_code == 409  # the last one
        made = await shop.http.post("/v1/tokens", json={"name": "anna", "roles": {"shop": "reader"}})
        assert made.status_code == 201
        assert (await shop.http.delete("/v1/tokens/anna")).status_code == 204
    assert [record.subject for record in of(records_of(tmp_path), "token.revoke")] == ["anna"]
    (mode,) = {path.stat().st_mode & 0o777 for path in (tmp_path / "cloud").glob("uploads.db*")}
    assert mode == 0o600  # what users did


@pytest.mark.asyncio
async def test_without_an_audit_record_nothing_starts_and_a_rollback_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: AuditLog, *_: Any, **__: Any) -> AuditRecord:
        raise AuditError(self.folder, "No space left on device", is_full=True)

    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1")
        release_id = (await shop.releases.create("shop", "count", "v1", start=False))["id"]
        with monkeypatch.context() as patch:
            patch.setattr(AuditLog, "append", full)
            refused = await shop.http.post("/v1/releases", json={"scenario": "shop", "task": "count", "version": "v1"})
            assert refused.status_code == 507
            refused = await shop.http.post(f"/v1/releases/{release_id}/start")
            assert refused.status_code == 507
            assert "No space left on device" in refused.json()["error"]
            assert (await shop.releases.get(release_id))["state"] == "created"
            work = tmp_path / "work"
            git_push = ("push", address(shop.cloud.address.url, shop.cloud.home.admin_token, "shop"), "HEAD:other")
            pushed = await asyncio.to_thread(git, work, *git_push, check=False)
            assert pushed.returncode != 0
            assert "No space left" in pushed.stderr
            assert (await shop.releases.rollback(release_id, "stop"))["state"] == "rolled_back"
        await shop.releases.create("shop", "count", "v1", start=False)
        late = [record for record in records_of(tmp_path) if record.details.get("late")]
    assert [record.action for record in late] == ["release.rollback", "release.moved"]


def test_a_task_cannot_put_escapes_on_the_terminal_of_who_pushes(tmp_path: Path) -> None:
    async def push() -> str:
        async with shop_cloud(tmp_path) as shop:
            remote = address(shop.cloud.address.url, shop.cloud.home.admin_token, "shop")
            work = tmp_path / "hostile"
            git(tmp_path, "init", "-q", str(work))
            (work / "task.toml").write_text(TASK_CONFIG)
            (work / "main.py").write_text("def execute(ctx, trigger):\n    return 1\n")
            (work / "\x1b[2Jgone\u202e.py").symlink_to("main.py")
            git(work, "add", "-A")
            git(work, "commit", "-q", "-m", "v1")
            git(work, "tag", "count/v1")
            pushed = await asyncio.to_thread(git, work, "push", remote, "count/v1", check=False)
            return pushed.stderr

    said = asyncio.run(push())
    assert "symbolic link" in said
    assert "\\x1b[2Jgone" in said
    assert "\x1b[2J" not in said
    assert json.dumps("\u202e") not in json.dumps(said)


@pytest.mark.system
def test_the_log_of_a_running_cloud_is_shown_and_verified(attacked_cloud: AttackedCloud, tmp_path: Path) -> None:
    attacked_cloud.release("honest", "def execute(ctx, trigger):\n    return 1\n")
    shown: Any = attacked_cloud.walle("audit", "show")
    actions = [record["action"] for record in shown["records"]]
    assert actions[:5] == ["ref.set", "ref.set", "release.create", "release.created", "release.moved"]
    verified: Any = attacked_cloud.walle("audit", "verify")
    assert verified["ok"]
    kept = tmp_path / "head.json"
    kept.write_text(json.dumps(attacked_cloud.walle("audit", "head")))
    offline = walle("audit", "verify", str(attacked_cloud.folder), "--head", str(kept), "--json")
    assert offline["ok"]
    assert attacked_cloud.secrets_in(shown) == []
