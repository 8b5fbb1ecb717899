"""The documentation site, built once."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(source: Path, folder: Path) -> None:
    """Write the site of the pages in `source` to `folder`, without a warning."""
    sphinx = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-q", "-c", "docs"]
    command = [*sphinx, str(source), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(ROOT / "docs", folder)
    return folder
