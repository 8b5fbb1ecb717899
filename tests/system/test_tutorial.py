"""The tutorial: its files and commands, as a person would type them, with a real face detector and a real photo."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import blocks
from tests.system.test_readme import environment

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared/data"
PAGE = ROOT / "docs/tutorial.md"
MODEL = DATA / "models/face_rfb320.onnx"
MODEL_SHA256 = "34cd7e60aeff28744c657de7a3dc64e872d506741de66987f3426f2b79f88017"  # hash of the page's model file
PHOTO = DATA / "images/face_with_toy.jpg"


@pytest.mark.night
@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.skipif(not MODEL.exists(), reason=f"{DATA} is not there: it has the model and the photo")
def test_the_tutorial_runs_as_written(tmp_path: Path) -> None:
    folder = tmp_path / "tour"
    folder.mkdir()
    assert hashlib.sha256(MODEL.read_bytes()).hexdigest() == MODEL_SHA256
    shutil.copy(MODEL, folder / "ultraface.onnx")
    shutil.copy(PHOTO, folder / "photo.jpg")
    scripts: list[Path] = []
    for block in blocks(PAGE, ROOT):
        if block.kind == "file":
            path = folder / block.remark
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "sh" and block.kind != "not run":
            scripts.append(tmp_path / f"script-{len(scripts)}")
            scripts[-1].write_text(block.text)
    settings = environment(tmp_path)
    python = tmp_path / "bin/python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)

    tour = subprocess.run(
        [sys.executable, "-m", "tests.sim.terminals", str(folder), "", *map(str, scripts)],
        cwd=ROOT,
        env=settings,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    printed = {path.name: path.read_text() for path in sorted(folder.glob("terminal-*.txt"))}
    assert tour.returncode == 0, (tour.stderr, printed)
    cloud, device = json.loads(tour.stdout)  # exit statuses at Ctrl-C
    assert cloud == 0, printed
    # On a busy machine its photos may end before (0), or the signal comes while Python ends.
    assert device in (130, 0, -signal.SIGINT), printed
    assert "passed: faces, 4 runs, 0 failures" in printed["terminal-1.txt"]
    assert printed["terminal-1.txt"].count("1 faces") == 4
    assert "faces-v1-1 full" in printed["terminal-4.txt"]
    rows = (folder / "faces.csv").read_text().splitlines()
    assert len(rows) > 22  # a head, and the runs that the release needed
    for row in rows[1:]:
        assert "camera/faces" in row
        assert "box" in row
    assert printed["terminal-5.txt"].count("camera/faces") >= 3
