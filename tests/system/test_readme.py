"""README's quickstart: its commands run as they stand there, its files are those that the commands write."""

import asyncio
import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from typer.testing import CliRunner

from walle.base import plain
from walle.cli import app
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
# A fenced block, and the comment before it that says why it is not run.
_BLOCK = re.compile(r"^(?:<!-- not run by (\S+): ([^\n]+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LANGUAGES = {"sh", "toml", "python", "jsonl"}


class Block(NamedTuple):
    """A fenced block of the README; `why_not_run` is empty for one that is run."""

    language: str
    text: str
    why_not_run: str


BLOCKS = [Block(match[3], match[4], match[2] or "") for match in _BLOCK.finditer(README)]


def shell_blocks() -> list[str]:
    """Return the README's shell blocks that are run, in order, as they stand there."""
    return [block.text for block in BLOCKS if block.language == "sh" and not block.why_not_run]


def text_of(language: str) -> str:
    """Return the README's only block in a language."""
    (text,) = (block.text for block in BLOCKS if block.language == language)
    return text


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a person who has `walle` on the PATH, and a name in git."""
    command = folder / "bin" / "walle"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from walle.cli import main; main()" "$@"\n')
    command.chmod(0o755)
    home = folder / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\nname = me\nemail = me@example.com\n")
    return {
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "HOME": str(home),
        "TMPDIR": str(folder),
    }


async def features(database: Path) -> list[dict[str, object]]:
    async with Ingest(database) as ingest:
        return [plain.decode(upload.payload) for _, upload in await ingest.query(topic="shop/visits", limit=10_000)]


def test_every_fenced_block_is_found_and_is_run_or_says_why_not() -> None:
    assert len(BLOCKS) * 2 == len(re.findall(r"^\s*(?:```|~~~)", README, re.MULTILINE))
    assert {block.language for block in BLOCKS} == _LANGUAGES
    not_run = [block for block in BLOCKS if block.why_not_run]
    commands = [line.partition("#")[0].strip() for block in not_run for line in block.text.splitlines()]
    assert commands == ["make demo", "make test"]
    assert {block.language for block in not_run} == {"sh"}
    assert re.findall(r"<!-- not run by (\S+):", README) == [str(Path(__file__).relative_to(ROOT))] * len(not_run)


def inline_commands() -> list[str]:
    """Return the commands between backquotes in the text and tables of the README, and in the table of figures."""
    text = _BLOCK.sub("", README) + (ROOT / "docs/figures.md").read_text()
    return sorted(set(re.findall(r"`((?:walle|make|python) [^`\n]+)`", text)))


def option_fault(command: str) -> str:
    """Return what a `walle` command line has that the command does not know; empty if it knows all of it."""
    words = shlex.split(command.partition(" -- ")[0])[1:]
    found: Any = typer.main.get_command(app)
    root = found
    while words and hasattr(found, "commands"):
        if words[0].startswith("--") and words[0] in known_options(found):
            if found is not root:  # a group that does something by itself
                break
            words.pop(0)
            continue
        if words[0] not in found.commands:
            return f"unknown command {words[0]}"
        found = found.commands[words.pop(0)]
    unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - known_options(found)
    return f"unknown options {unknown}" if unknown else ""


def known_options(command: Any) -> set[str]:
    return {"--help", *(option for parameter in command.params for option in parameter.opts)}


@pytest.mark.parametrize("command", inline_commands())
def test_a_command_in_the_text_exists(command: str) -> None:
    program, *words = shlex.split(command)
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[0] in targets
    elif program == "python":
        path = words[1].replace(".", "/") if words[0] == "-m" else words[0].removesuffix(".py")
        assert (ROOT / f"{path}.py").is_file() or (ROOT / path / "__main__.py").is_file()
    else:
        assert not option_fault(command)


def test_a_wrong_command_in_the_text_is_found() -> None:
    assert option_fault("walle tsk check x") == "unknown command tsk"
    assert option_fault("walle task check x --jsn") == "unknown options {'--jsn'}"
    assert not option_fault("walle task check x --json")
    assert "walle demo --events FILE --mapping FILE" in inline_commands()


def test_the_template_works_on_the_events_that_the_readme_shows(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(text_of("jsonl"))
    runner = CliRunner()
    assert runner.invoke(app, ["task", "new", "visits", "--folder", str(tmp_path / "visits")]).exit_code == 0
    (tmp_path / "visits" / "main.py").write_text(text_of("python"))
    (tmp_path / "visits" / "task.toml").write_text(text_of("toml"))
    for arguments in (["check"], ["simulate"]):
        command = ["task", *arguments, str(tmp_path / "visits"), "--events", str(log), "--json"]
        result = runner.invoke(app, command, catch_exceptions=False)
        report = json.loads(result.stdout)
        assert (result.exit_code, report["ok"]) == (0, True), report
    assert (report["runs"], report["failures"], report["skipped_lines"]) == (2, 0, 0)
    assert {line["text"] for line in report["log"]} == {"item/7: 1 clicks"}
    assert "returns 1 click and 1,000 ms" in README


@pytest.mark.night
@pytest.mark.system
@pytest.mark.timeout(300)
def test_the_quickstart_runs_as_written(tmp_path: Path) -> None:
    folder = tmp_path / "tour"
    folder.mkdir()
    scripts = []
    for number, text in enumerate(shell_blocks()):
        scripts.append(tmp_path / f"script-{number}")
        scripts[-1].write_text(text)
    command = [sys.executable, "-m", "tests.sim.terminals", str(folder), "visits v1 was removed", *map(str, scripts)]
    tour = subprocess.run(
        command, cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, timeout=280, check=False
    )
    printed = {path.name: path.read_text() for path in sorted(folder.glob("terminal-*.txt"))}
    assert tour.returncode == 0, (tour.stderr, printed)
    assert json.loads(tour.stdout) == [0, 130], printed  # the cloud and the device, at Ctrl-C

    assert (folder / "visits" / "task.toml").read_text() == text_of("toml")
    assert (folder / "visits" / "main.py").read_text() == text_of("python")
    written, shown = (folder / "visits" / "log.jsonl").read_text().splitlines(), text_of("jsonl").splitlines()
    assert json.loads(written[0]).keys() == json.loads(shown[0]).keys()

    release = printed["terminal-4.txt"]
    for text in (
        "visits-v1-1 beta",
        "visits-v1-1 percentage rollout",
        "visits-v1-1 full",
        "visits-v1-1 is rolled back",
    ):
        assert text in release, release
    assert "0 failed" in release
    assert "last error" not in release
    tailed = [line for line in release.splitlines() if " shop/visits v1 item/" in line]
    assert len(tailed) == 3
    assert all(json.loads(line.split(maxsplit=5)[5])["dwell_ms"] >= 600 for line in tailed)
    with (folder / "shop" / "visits.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert f"visits.csv: {len(rows)} features" in release
    assert len(rows) >= 4 * 24
    assert {"item/2", "2", "1400.0"} in [{row["page"], row["payload.clicks"], row["payload.dwell_ms"]} for row in rows]
    device = printed["terminal-3.txt"]
    assert "shop/visits v1" in device
    assert "runs failed" not in device
    (end,) = (line for line in device.splitlines() if ": stopped; " in line)
    assert "no task (shop/visits v1 was removed)" in end  # the rollback reached it
    log = (folder / "phone" / "device.log").read_text()
    assert "shop/visits v1: item/2: 2 clicks" in log
    assert "WARNING" not in log
    found = asyncio.run(features(folder / "data" / "uploads.db"))
    assert len(found) >= 4 * 24  # beta and three steps, of which each needs 24 runs
    assert {"page": "item/2", "clicks": 2, "dwell_ms": 1400.0} in found
