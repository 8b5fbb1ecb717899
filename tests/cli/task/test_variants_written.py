"""Variants written into a task's folder: what stays, what goes, and what is refused."""

from pathlib import Path

import pytest

from walle.cli.task.folder import TaskFolderError
from walle.cli.task.variants import NewVariant, write_variants
from walle.task.format.config import TaskConfig, TaskConfigError

MODEL = "resources/m.walle"
CONFIG = """\
# The counter.
[task]
name = "count"  # its branch
[trigger]
sequence = ["page_exit"]
[files]
"resources/m.walle" = "shared"
"resources/kept.walle" = "shared"
"resources/words" = "shared"
"""
SMALL = NewVariant("small", 'os == "a"', b"small")


def _folder(tmp_path: Path, tables: str = "") -> Path:
    folder = tmp_path / "task"
    (folder / "resources").mkdir(parents=True)
    (folder / "task.toml").write_text(CONFIG + tables)
    for name in ("m.walle", "kept.walle", "old.walle", "words"):
        (folder / "resources" / name).write_text(name)
    return folder


def _variant(name: str, *files: tuple[str, str]) -> str:
    pairs = ", ".join(f'"{path}" = "{other}"' for path, other in files)
    return f'[variants.{name}]\nrule = "x < 1"\nfiles = {{ {pairs} }}\n'


def test_a_variant_is_added_behind_all_else(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    changed = write_variants(folder, MODEL, b"new", [SMALL])
    assert changed == ["resources/m-small.walle", "resources/m.walle", "task.toml"]
    text = (folder / "task.toml").read_text()
    assert text.startswith(CONFIG)
    (variant,) = TaskConfig.parse(text.encode(), "task.toml").variants
    assert (variant.name, variant.rule, dict(variant.files)) == (
        "small",
        'os == "a"',
        {MODEL: "resources/m-small.walle"},
    )
    assert (folder / "resources/m-small.walle").read_bytes() == b"small"
    assert (folder / MODEL).read_bytes() == b"new"
    assert write_variants(folder, MODEL, b"new", [SMALL]) == changed  # again: the same
    assert (folder / "task.toml").read_text() == text


def test_variants_of_the_same_file_are_replaced_and_comments_stay(tmp_path: Path) -> None:
    behind = "\n# agreed with the shop: do not raise\n[limits]\nmemory_mb = 8\n"
    folder = _folder(tmp_path, _variant("old", (MODEL, "resources/old.walle")) + behind)
    assert "resources/old.walle" in write_variants(folder, MODEL, None, [SMALL])
    text = (folder / "task.toml").read_text()
    assert text.startswith(CONFIG + behind)
    assert "variants.old" not in text
    assert not (folder / "resources/old.walle").exists()
    assert (folder / MODEL).read_text() == "m.walle"


def test_files_that_something_else_names_stay(tmp_path: Path) -> None:
    words = "resources/words", "resources/kept.walle"
    tables = _variant("old", (MODEL, "resources/kept.walle")) + _variant("two", (MODEL, "resources/old.walle"), words)
    folder = _folder(tmp_path, tables + _variant("three", (MODEL, "resources/old.walle")))
    write_variants(folder, MODEL, None, [])
    assert [one.name for one in TaskConfig.parse((folder / "task.toml").read_bytes(), "").variants] == ["two"]
    assert (folder / "resources/kept.walle").exists()
    assert (folder / "resources/old.walle").exists()


def test_a_path_outside_of_the_folder_is_refused_and_nothing_is_removed(tmp_path: Path) -> None:
    folder = _folder(tmp_path, _variant("old", (MODEL, "../victim")))
    (tmp_path / "victim").write_text("mine")
    with pytest.raises(TaskConfigError, match="must be a plain path"):
        write_variants(folder, MODEL, None, [SMALL])
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize(
    "tables",
    [
        _variant("small", (MODEL, "resources/old.walle"), ("resources/words", "resources/kept.walle")),
        'variants.old = { rule = "x < 1", files = { "resources/m.walle" = "resources/old.walle" } }\n',
    ],
)
def test_what_cannot_be_changed_is_unchanged(tmp_path: Path, tables: str) -> None:
    folder = _folder(tmp_path)
    text = CONFIG + tables if tables.startswith("[") else tables + CONFIG
    (folder / "task.toml").write_text(text)
    with pytest.raises(TaskFolderError, match=r"rename it|remove them by hand"):
        write_variants(folder, MODEL, None, [SMALL])
    assert (folder / "task.toml").read_text() == text
    assert not (folder / "resources/m-small.walle").exists()
