"""Tests of the documents: every path that the architecture, the paper map or an ADR names exists in the repository."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "ARCHITECTURE.md", ROOT / "docs/paper-map.md", *sorted((ROOT / "docs/adr").glob("*.md"))]

_FOLDERS = ("walle", "tests", "docs", "apps", "benchmarks", "packaging", "loadtest", "scripts", "cmake")
_SUFFIXES = (".py", ".cpp", ".h", ".inc", ".md", ".toml", ".json", ".sh", ".cmake")
# Files of a task, a bundle or a device's state, which are not in the repository.
_NOT_OURS = {
    "task.toml",
    "main.py",
    "modules.toml",
    "source.json",
    "state.json",
    "rates.json",
    "manifest.json",
    "scenario/task/version/main.py",
    "resources/",
    "simulation/",
    "TASK/vN",
    "SET/vN",
    "image/png",
}
_QUOTED = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?!\.)[\w.*-]+(/[\w.*-]+)*/?")


def named_paths(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, path) for each path between backquotes."""
    for number, line in enumerate(text.splitlines(), start=1):
        for quoted in _QUOTED.findall(line):
            if _PATH.fullmatch(quoted) and ("/" in quoted or quoted.endswith(_SUFFIXES)) and quoted not in _NOT_OURS:
                yield number, quoted


@cache
def repository_paths() -> list[str]:
    """Return the path of every file and folder of the repository, and of pages made from it, with a leading slash."""
    below = (path for folder in _FOLDERS for path in [ROOT / folder, *(ROOT / folder).rglob("*")])
    names = [f"/{path.relative_to(ROOT).as_posix()}" for path in [*ROOT.glob("*.*"), *below]]
    names += [f"/{line}" for line in (ROOT / ".gitignore").read_text().splitlines() if line.startswith("docs/")]
    return [name for name in names if "/__pycache__" not in name]


def exists(path: str) -> bool:
    """Return whether the repository has the path, relative to its root or to any folder.

    A path may have wildcards, and one into the engine's source may leave its suffix out.
    """
    patterns = [path.rstrip("/")]
    if not path.endswith(("/", *_SUFFIXES)):
        patterns += [path + suffix for suffix in (".h", ".cpp", ".py")]
    wanted = [re.compile("(.*)/" + pattern.replace(".", r"\.").replace("*", "[^/]*")) for pattern in patterns]
    return any(pattern.fullmatch(name) for pattern in wanted for name in repository_paths())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_path_exists(page: Path) -> None:
    missing = [
        f"{page.relative_to(ROOT)}:{number}: {path}"
        for number, path in named_paths(page.read_text())
        if not exists(path)
    ]
    assert not missing, "paths that do not exist:\n" + "\n".join(missing)


def test_a_missing_path_is_found() -> None:
    text = (
        "one line\n`walle/engine_ext/src/plan/` and `walle/nowhere.py`, `plan/lower.cpp`, `absent.cpp`, `a plain word`"
    )
    found = list(named_paths(text))
    assert found == [
        (2, "walle/engine_ext/src/plan/"),
        (2, "walle/nowhere.py"),
        (2, "plan/lower.cpp"),
        (2, "absent.cpp"),
    ]
    assert [exists(path) for _, path in found] == [True, False, True, False]


def test_each_adr_has_a_title_with_its_number() -> None:
    for path in sorted((ROOT / "docs/adr").glob("*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0]
        assert title.startswith(f"# {int(path.name[:4])}. "), path.name
