"""`walle audit` on a folder: without a cloud, on a copy of its log, and where its log is in a database."""

import asyncio
import contextlib
import functools
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.sim.postgres_server import PostgresServer
from walle.cli import app
from walle.cli.access.audit import AuditFaultError
from walle.cloud import CloudHome
from walle.cloud.folder.state_place import choose_database
from walle.errors import WalleError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["audit", *arguments], catch_exceptions=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = CloudHome(tmp_path / "cloud")
    home.prepare()
    for number in range(5):
        home.audit.append("release.start", who="anna", subject=f"ipv-v1-{number}", address="10.0.0.1")
    return home.folder


def test_audit_show_prints_the_records(folder: Path) -> None:
    shown = json.loads(run("show", str(folder), "--after", "3", "--json").stdout)["records"]
    assert [(record["number"], record["who"], record["subject"]) for record in shown] == [
        (4, "anna", "ipv-v1-3"), (5, "anna", "ipv-v1-4"),
    ]  # fmt: skip
    text = run("show", str(folder)).stdout
    assert "release.start" in text
    assert "10.0.0.1" in text


def test_it_verifies_a_folder_and_a_copy_of_the_log(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "audit", tmp_path / "copy")
    for place in (folder, folder / "audit", tmp_path / "copy"):
        verified = run("verify", str(place))
        assert verified.exit_code == 0, verified.output
        assert "5 records, 1 to 5" in verified.stdout


def test_a_cut_log_is_an_error_that_names_what_is_missing(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "head.json"
    kept.write_text(run("head", str(folder)).stdout)
    assert run("verify", str(folder), "--head", str(kept)).exit_code == 0
    (segment,) = (folder / "audit").glob("*.jsonl")
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:3]))
    (folder / "audit" / "head.json").unlink()
    assert run("verify", str(folder)).exit_code == 0, "the chain alone does not show it"
    cut = run("verify", str(folder), "--head", str(kept))
    assert isinstance(cut.exception, AuditFaultError)
    assert "records 4 to 5 are missing at the end" in str(cut.exception)
    as_json = run("verify", str(folder), "--head", str(kept), "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["ok"] is False


def test_wrong_arguments_are_refused(folder: Path, tmp_path: Path) -> None:
    assert "give FOLDER" in run("show").output
    assert run("verify", str(tmp_path / "none")).exit_code == 2
    assert "not base64" in run("verify", str(folder), "--key", "?").output
    assert run("verify", "--url", "http://127.0.0.1:1", "--key", "AAAA").exit_code == 2
    assert run("show", "--url", "gopher://x").exit_code == 2


def test_a_log_in_a_database_is_shown_and_verified(tmp_path: Path, postgres: PostgresServer) -> None:
    import asyncpg

    folder, dsn = tmp_path / "cloud", postgres.make_database()
    choose_database(folder, dsn)
    with contextlib.closing(CloudHome(folder)) as home:
        home.prepare()
        for number in range(5):
            home.audit.append("release.start", who="anna", subject=f"ipv-v1-{number}", address="10.0.0.1")
    shown = json.loads(run("show", str(folder), "--after", "3", "--json").stdout)["records"]
    assert [(one["number"], one["who"], one["subject"]) for one in shown] == [
        (4, "anna", "ipv-v1-3"), (5, "anna", "ipv-v1-4"),
    ]  # fmt: skip
    whole = run("verify", str(folder))
    assert (whole.exit_code, "5 records, 1 to 5" in whole.stdout) == (0, True), whole.output
    kept = tmp_path / "head.json"
    kept.write_text(run("head", str(folder)).stdout)
    assert run("verify", str(folder), "--head", str(kept)).exit_code == 0

    async def change(statement: str) -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(change("DELETE FROM walle.audit WHERE number = 3"))
    cut = run("verify", str(folder))
    assert isinstance(cut.exception, AuditFaultError)
    as_json = run("verify", str(folder), "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)["ok"]) == (1, False)


def test_a_database_that_is_away_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("asyncpg", reason="asyncpg is not installed")
    from walle.store.postgres_database import PostgresDatabase

    impatient = functools.partial(PostgresDatabase, retry_s=0.2)
    monkeypatch.setattr("walle.store.sync_database.PostgresDatabase", impatient)
    choose_database(tmp_path, f"postgresql://walle@/x?host={tmp_path}")
    shown = run("show", str(tmp_path))
    assert isinstance(shown.exception, WalleError)
    assert "postgresql://" in str(shown.exception)
