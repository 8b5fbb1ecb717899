"""A person who uses a cloud with the command line and git, from a home folder of their own."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from walle.cli import app


class Person:
    """Someone with a home folder of their own, who runs commands and git."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        program = folder / "bin" / "walle"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "from walle.cli import main; main()" "$@"\n'
        )
        program.chmod(0o755)
        self.environment = {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": "",
            "WALLE_URL": url,
            "WALLE_TOKEN": "",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
        }

    def run(self, *words: str, say: str = "") -> Result:
        return CliRunner().invoke(app, words, env=self.environment, input=say, catch_exceptions=False)

    def json(self, *words: str, say: str = "") -> Any:
        done = self.run(*words, "--json", say=say)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def git(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["git", *words],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    @property
    def credentials(self) -> Path:
        return self.home / ".config" / "walle" / "credentials.toml"
