"""Tests start programs with the signals and the home of nobody, whatever the caller has."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.plugins.alone import AUTOLOAD

ROOT = Path(__file__).parents[2]
INSIDE = """
import os, signal, subprocess, sys
from pathlib import Path

def test_inside():
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, "
    code += "signal.getsignal(signal.SIGHUP) is signal.SIG_DFL)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True True\\n"
    assert os.listdir(Path.home()) == []
    assert "XDG_CACHE_HOME" not in os.environ
    code = "import ssl; print(len(ssl.create_default_context().get_ca_certs()))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "1\\n"
    os.kill(os.getpid(), signal.SIGHUP)  # which the caller ignores, and so do the tests
"""


def _ignore() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def test_neither_ignored_signals_nor_the_users_home_reach_what_tests_start(tmp_path: Path) -> None:
    file = tmp_path / "test_inside.py"
    file.write_text(INSIDE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.plugins.surroundings", "-c", "/dev/null", str(file)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "WALLE_TESTS"))}
    clean[AUTOLOAD] = "1"
    done = subprocess.run(command, cwd=ROOT, env=clean, preexec_fn=_ignore, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
