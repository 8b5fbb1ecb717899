"""`walle audit` on a folder: without a cloud, and on a copy of its log."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from walle.cli import app
from walle.cli.audit import AuditFaultError
from walle.cloud import CloudHome


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["audit", *arguments], catch_exceptions=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = CloudHome(tmp_path / "cloud")
    home.prepare()
    for number in range(5):
        home.audit.append("release.start", who="anna", subject=f"ipv-v1-{number}", address="10.0.0.1")
    return home.folder


def test_it_shows_records(folder: Path) -> None:
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
