"""Configuration of the documentation site, which `make docs` writes to build/docs (docs/adr/0032-*)."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]

project = "Walle"
author = "the authors of Walle"
release = _PROJECT["version"]

extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_links_external_new_tab = False
# A link to a file of the repository that is not a page of the site becomes a download, which the site then carries.
suppress_warnings = ["misc.highlighting_failure"]  # blocks of ADRs that show formats

html_theme = "furo"  # furo's style sheets, scripts and search are in the site: nothing is fetched from elsewhere
html_title = "Walle"
html_static_path: list[str] = []
html_search_scorer = str(_ROOT / "docs/search_scorer.js")
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
smartquotes = False  # --json in a sentence stays --json


def _write_reference(_app: Any) -> None:
    """Write the pages that are made from the code."""
    subprocess.run([sys.executable, "-m", "scripts.reference_pages"], check=True, cwd=_ROOT)


def setup(app: Any) -> None:
    app.connect("builder-inited", _write_reference)
