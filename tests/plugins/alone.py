"""One test of a run again, in its own process."""

import os
import subprocess
import sys
from typing import Final

import pytest

AUTOLOAD: Final = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"  # the caller's choice of plugins


def run_alone(config: pytest.Config, name: str, plugin: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the test of that node ID; `plugin` is the module of the plugin whose options these are."""
    python = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", plugin]
    where = [f"--rootdir={config.rootpath}", *(["-c", str(config.inipath)] if config.inipath else [])]
    return subprocess.run(
        [*python, *where, *options, str(config.rootpath / name)],
        cwd=config.invocation_params.dir,
        env={key: value for key, value in os.environ.items() if key == AUTOLOAD or not key.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        check=False,
    )
