"""The documentation site: it is built without a warning, and works without the internet."""

import re
from pathlib import Path

import pytest

from tests.docs.conftest import build

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="((?:https?:)?//[^"]*)"')


def test_a_page_is_built_and_fetches_nothing(tmp_path: Path) -> None:
    source, built = tmp_path / "source", tmp_path / "built"
    source.mkdir()
    (source / "index.md").write_text(
        "# Walle\n\nA table:\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\n```console\n$ walle demo\n```\n"
    )
    build(source, built)
    assert FETCHED.findall((built / "index.html").read_text()) == []


@pytest.mark.night
def test_every_page_is_in_it(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()
    assert (site / "searchindex.js").exists()  # a script, which a browser loads from a file too


@pytest.mark.night
def test_it_fetches_nothing_from_elsewhere(site: Path) -> None:
    fetched = {
        (page.name, address) for page in site.rglob("*.html") for address in FETCHED.findall(page.read_text("utf-8"))
    }
    assert fetched == set()
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"@import[^;]*//|url\(['\"]?https?:", styles) == []


def test_a_page_that_fetches_is_noticed() -> None:
    assert FETCHED.findall('<script defer src="https://cdn.example/a.js"></script>') == ["https://cdn.example/a.js"]
