"""`walle cloud backup` and `restore` on a folder: what they say, and what they refuse."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from walle.cli import app
from walle.cli.cloud.backup import PASSPHRASE
from walle.cloud import CloudHome
from walle.cloud.upkeep.backup import BackupError

WORDS = "correct horse battery"


def run(*arguments: str, typed: str | None = None, **environment: str) -> Result:
    return CliRunner().invoke(app, ["cloud", *arguments], input=typed, env=environment)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = CloudHome(tmp_path / "cloud")
    home.prepare(("shop",))
    return home.folder


def test_a_backup_reports_what_is_missing_and_its_hash_restores_it(folder: Path, tmp_path: Path) -> None:
    made = run("backup", str(folder), str(tmp_path / "b"))
    assert made.exit_code == 0, made.output
    assert "without keys and tokens" in made.output
    assert "without uploads" in made.output
    sha256 = made.output.partition("keep its hash elsewhere: ")[2].split()[0]
    restored = run("restore", str(tmp_path / "b"), str(tmp_path / "r"), "--without-keys", "--sha256", sha256, "--json")
    assert restored.exit_code == 0, restored.output
    assert json.loads(restored.stdout)["sha256"] == sha256
    assert not (tmp_path / "r" / "admin.token").exists()


def test_the_passphrase_is_asked_for_and_never_an_argument(folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    made = run("backup", str(folder), str(tmp_path / "b"), "--keys", str(keys), typed=f"{WORDS}\n{WORDS}\n")
    assert made.exit_code == 0, made.output
    assert WORDS not in made.output
    arguments = ("restore", str(tmp_path / "b"), str(tmp_path / "r"), "--keys", str(keys))
    wrong = run(*arguments, **{PASSPHRASE: "another passphrase"})
    assert wrong.exit_code == 1
    assert "the passphrase is wrong" in str(wrong.exception)
    assert not (tmp_path / "r").exists()
    assert run(*arguments, typed=f"{WORDS}\n").exit_code == 0
    assert CloudHome(tmp_path / "r").admin_token == CloudHome(folder).admin_token


def test_a_restore_without_keys_must_be_said(folder: Path, tmp_path: Path) -> None:
    assert run("backup", str(folder), str(tmp_path / "b")).exit_code == 0
    assert run("restore", str(tmp_path / "b"), str(tmp_path / "r")).exit_code == 2
    assert not (tmp_path / "r").exists()


def test_a_folder_in_use_is_an_error(folder: Path, tmp_path: Path) -> None:
    assert run("backup", str(folder), str(tmp_path / "b")).exit_code == 0
    refused = run("restore", str(tmp_path / "b"), str(folder), "--without-keys")
    assert isinstance(refused.exception, BackupError)
    assert "is in use" in str(refused.exception)
