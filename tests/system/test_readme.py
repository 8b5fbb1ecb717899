"""README's quickstart: its commands run as they stand there, its files are those that the commands write."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from walle import plain
from walle.pipeline.tunnel.ingest import Ingest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TESTED_ELSEWHERE = {"make demo", "make test"}  # tests/system/test_demo.py, and this run
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(match[1], match[2]) for match in BLOCK.finditer(README)]


def shell_blocks() -> list[str]:
    """Return README's shell blocks in order, without those whose every command is tested elsewhere."""
    found = []
    for language, text in BLOCKS:
        commands = {line.partition("#")[0].strip() for line in text.splitlines()}
        if language == "sh" and not commands <= TESTED_ELSEWHERE:
            found.append(text)
    return found


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


def test_every_block_has_a_language_that_is_known() -> None:
    assert [language for language, _ in BLOCKS] == ["sh", "sh", "toml", "python", "sh", "sh", "sh", "sh"]


@pytest.mark.system
@pytest.mark.timeout(300)
def test_the_quickstart_runs_as_written(tmp_path: Path) -> None:
    folder = tmp_path / "tour"
    folder.mkdir()
    scripts = []
    for number, text in enumerate(shell_blocks()):
        scripts.append(tmp_path / f"script-{number}")
        scripts[-1].write_text(text)
    command = [sys.executable, "-m", "tests.sim.terminals", str(folder), "no task yet", *map(str, scripts)]
    tour = subprocess.run(
        command, cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, timeout=280, check=False
    )
    printed = {path.name: path.read_text() for path in sorted(folder.glob("terminal-*.txt"))}
    assert tour.returncode == 0, (tour.stderr, printed)
    assert json.loads(tour.stdout) == [0, 130], printed  # the cloud and the device, at Ctrl-C

    files = {language: text for language, text in BLOCKS if language in ("toml", "python")}
    assert (folder / "visits" / "task.toml").read_text() == files["toml"]
    assert (folder / "visits" / "main.py").read_text() == files["python"]
    lines = (folder / "visits" / "log.jsonl").read_text().splitlines()
    assert json.loads(lines[0]).keys() == json.loads(re.findall(r"`(\{.*?\})`", README)[0]).keys()

    release = printed["terminal-4.txt"]
    for text in ("visits-v1-1 beta", "visits-v1-1 gray", "visits-v1-1 full", "visits-v1-1 is rolled back"):
        assert text in release, release
    assert "0 failed" in release
    assert "last error" not in release
    device = printed["terminal-3.txt"]
    assert "shop/visits v1" in device
    assert "runs failed" not in device
    (end,) = (line for line in device.splitlines() if ": stopped; " in line)
    assert "no task yet" in end  # the rollback reached it
    log = (folder / "phone" / "device.log").read_text()
    assert "shop/visits v1: item/2: 2 clicks" in log
    assert "WARNING" not in log
    found = asyncio.run(features(folder / "data" / "uploads.db"))
    assert len(found) >= 4 * 22  # beta and three steps, of which each needs 22 runs
    assert {"page": "item/2", "clicks": 2, "dwell_ms": 1400.0} in found
