"""The tasks' configuration and simulation: what a release plays before it ships a version."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from apps.livestream.make_simulation import files
from apps.livestream.task_files import MODULES, NAMES, TASKS
from tests.apps.livestream.conftest import running
from walle.cli import app
from walle.task.format.config import TaskConfig


def contents(folder: Path, line: str) -> dict[str, Any]:
    """Return the contents of a simulation's event, with the arrays of the files that it names."""
    found: dict[str, Any] = json.loads(line)["contents"]
    for key, value in found.items():
        match value:
            case {"$image": name}:
                found[key] = cv2.imread(str(folder / name))
            case {"$npy": name}:
                found[key] = np.load(folder / name)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_simulation_is_as_the_script_writes_it(name: str) -> None:
    folder = TASKS / name / "simulation"
    made = files(name)
    assert made.keys() == {path.name for path in folder.iterdir()}
    assert sum(map(len, made.values())) < 64 * 1024
    for file, data in made.items():
        there = (folder / file).read_bytes()
        if file.endswith(".png"):  # another zlib may write the same pixels as other bytes
            old, new = (cv2.imdecode(np.frombuffer(one, np.uint8), cv2.IMREAD_COLOR) for one in (there, data))
            assert old is not None
            np.testing.assert_array_equal(old, new)
        else:
            assert there == data


@pytest.mark.parametrize("name", NAMES)
def test_its_task_toml_says_what_is_dropped_and_what_is_kept(name: str) -> None:
    config = TaskConfig.parse((TASKS / name / "task.toml").read_bytes(), "task.toml")
    assert config.name == name
    assert config.trigger.trigger_ids == ({"voice": "sound", "highlight": "second"}.get(name, "frame"),)
    assert config.policies["queue_full"] == "drop-oldest"
    assert (config.state is None) == (name not in ("voice", "highlight"))


@pytest.mark.parametrize("name", NAMES)
def test_it_passes_task_check(task_folder: Callable[..., Path], tmp_path: Path, name: str) -> None:
    shared = [path.name for path in (TASKS / MODULES).iterdir()]  # a test that ran the folder has put them there
    folder = shutil.copytree(task_folder(name), tmp_path / name, ignore=shutil.ignore_patterns(*shared))
    options = ["--modules", f"{MODULES}={TASKS / MODULES}", "--json"]
    result = CliRunner().invoke(app, ["task", "check", str(folder), *options], catch_exceptions=False)
    report = json.loads(result.stdout)
    assert result.exit_code == 0, report
    assert not report["findings"], report


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["item", "face", "voice", "palm", "article"])
async def test_the_simulation_events_give_the_expected_outputs(task_folder: Callable[..., Path], name: str) -> None:
    folder = task_folder(name) / "simulation"
    lines = (folder / "events.jsonl").read_text().splitlines()
    async with running(task_folder(name), name) as task:
        outputs = [await task.run(**contents(folder, line)) for line in lines]
    match name:
        case "item":
            found = [{item["label"] for item in output["items"]} for output in outputs]
            assert [("clock" in labels) for labels in found] == [False, True, True, True, True, False]
        case "face":
            assert [len(output["faces"]) for output in outputs] == [0, 0, 0, 1, 1, 0]
            assert [output["second"] for output in outputs] == list(range(6))
        case "palm":
            assert [output["palms"] for output in outputs] == [[]] * 6
        case "article":
            maps = [output["article"] for output in outputs]
            assert all(0 <= each[place] <= 1 for each in maps for place in ("centre", "border"))
            assert maps[0] == maps[5] != maps[1] == maps[2] != maps[3] == maps[4]  # the scenes change so
        case _:
            assert [len(output["windows"]) for output in outputs] == [3, 3, 3, 3]
            assert max(outputs[0]["windows"]) < 0.1
            assert max(outputs[2]["windows"]) > 0.5
