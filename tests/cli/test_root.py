"""The command's own options: --version and --verbose."""

import logging
import platform
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import walle
from tests.sim.program import run_main
from walle.cli import app
from walle.cli.device.log import LOG_FILE, device_log
from walle.cli.verbose import log_to_stderr
from walle.cli.version import commit

ROOT = Path(__file__).parents[2]


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=me", "-c", "user.email=me@example.com"]
    done = subprocess.run(["git", *names, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_version_names_the_build() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    first, engine, system = result.stdout.splitlines()
    assert first == f"walle {walle.__version__}, commit {commit(ROOT / 'walle') or 'not known'}"
    for backend in walle.backends():
        assert backend.name in engine
    assert engine.startswith("engine: arrays on ")
    assert platform.python_version() in system


def test_the_commit_is_of_the_checkout_or_of_the_build_or_not_known(tmp_path: Path) -> None:
    package = tmp_path / "walle"
    package.mkdir()
    assert commit(package) == ""
    (package / "commit.txt").write_text("abc123\n")
    assert commit(package) == "abc123"
    (tmp_path / ".git").write_text("broken")  # git refuses
    assert commit(package) == ""
    (tmp_path / ".git").unlink()
    git(tmp_path, "init", "-q")
    assert commit(package) == ""  # no commit yet
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit(package) == head
    (tmp_path / "other.txt").write_text("not of the package")
    (package / "new.txt").write_text("not in git")
    assert commit(package) == head
    (package / "commit.txt").write_text("changed")
    assert commit(package) == f"{head}, changed"


def test_an_error_has_its_traceback_with_verbose_only(tmp_path: Path) -> None:
    arguments = ["task", "check", f"{tmp_path}/none\x1b[2J"]
    brief = run_main(*arguments)
    assert (brief.returncode, len(brief.stderr.splitlines())) == (1, 1)
    verbose = run_main("--verbose", *arguments)
    lines = verbose.stderr.splitlines()
    assert (verbose.returncode, verbose.stdout) == (1, "")
    assert lines[0].startswith("Traceback")
    assert any("in read_files" in line for line in lines)
    assert lines[-1] == brief.stderr.strip()
    assert "\x1b" not in verbose.stderr


def test_verbose_logs_to_standard_error_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    logger, other = logging.getLogger("walle.some.part"), logging.getLogger("another")
    with log_to_stderr():
        logger.debug("detail \x1b[2J\nsecond")
        other.debug("not shown")
        other.warning("shown")
    logger.debug("after")
    out, error = capsys.readouterr()
    first, second, third = error.splitlines()
    assert out == ""
    assert r"DEBUG walle.some.part: detail \x1b[2J" in first
    assert second == "second"
    assert third.endswith("WARNING another: shown")
    assert logging.getLogger("walle").level == logging.NOTSET


def test_a_devices_log_is_the_same_with_verbose_and_no_line_is_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("walle.some.part")
    with log_to_stderr(), device_log(tmp_path):
        logger.debug("detail")
        logger.warning("important")
    logged = (tmp_path / LOG_FILE).read_text()
    assert "important" in logged
    assert "detail" not in logged
    error = capsys.readouterr().err
    assert error.count("important") == error.count("detail") == 1
