"""Changes of a task.toml: one text, and nothing else."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.cli.task.folder import TaskFolderError
from walle.cli.task.task_toml import set_text

TASK = '[task]\nname = "a"  # mine\n'


def changed(folder: Path, text: str, table: str = "files", key: str = "resources/a.b", value: str = "shared") -> str:
    (folder / "task.toml").write_text(text)
    set_text(folder, table, key, value)
    return (folder / "task.toml").read_text()


@pytest.mark.parametrize(
    "end", ["", "\n", "\n\n[ files ] # all\n", '[files]\n"x" = "cloud"', "[filesystem]\nkey = 1\n"]
)
def test_a_text_is_added_and_all_else_stays(tmp_path: Path, end: str) -> None:
    before = tomllib.loads(TASK + end)
    text = changed(tmp_path, TASK + end)
    assert tomllib.loads(text) == {**before, "files": {**before.get("files", {}), "resources/a.b": "shared"}}
    assert all(line in text.splitlines() for line in (TASK + end).splitlines() if line)
    assert changed(tmp_path, text) == text  # the file is listed already


@given(key=st.text(min_size=1), value=st.text())
def test_any_text_can_be_set(tmp_path_factory: pytest.TempPathFactory, key: str, value: str) -> None:
    folder = tmp_path_factory.mktemp("task")
    try:
        text = changed(folder, TASK, key=key, value=value)
    except TaskFolderError:  # a text that JSON and TOML write differently
        assert (folder / "task.toml").read_text() == TASK
    else:
        assert tomllib.loads(text)["files"] == {key: value}


@pytest.mark.parametrize("text", ['[files]\n"resources/a.b" = "cloud"\n', 'files = { x = "cloud" }\n'])
def test_a_file_that_says_otherwise_is_left_alone(tmp_path: Path, text: str) -> None:
    with pytest.raises(TaskFolderError, match="by hand"):
        changed(tmp_path, text)
    assert (tmp_path / "task.toml").read_text() == text
