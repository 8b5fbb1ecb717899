"""Surroundings that tests do not depend on: the home, caches and authorities of a user, ignored signals, the machine.

A shell that starts a job in the background, and `nohup`, ignore signals, which programs inherit through exec. A handler
does not go through exec: with one here, the programs that tests start have the signals as a terminal's programs do.
"""

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any, Final

import certifi
import hypothesis
import pytest

_IGNORED: Final = "WALLE_TESTS_IGNORED"  # variable with the signals that the workers' parent was told to ignore
_MOVED: Final = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")

hypothesis.settings.register_profile(
    "shared machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("shared machine")


def _stay(_number: int, _frame: Any) -> None:
    """Do nothing, as where the signal is ignored."""


def _move_home() -> None:
    """Give the tests an empty home; workers inherit it."""
    os.environ.setdefault("PYENV_ROOT", os.path.expanduser("~/.pyenv"))  # noqa: PTH111 as the shell does, also if absent
    folder = tempfile.mkdtemp(prefix="walle-home-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in _MOVED:
        os.environ.pop(name, None)
    os.environ["HOME"] = folder


def _trust_one_authority() -> None:
    """Leave one certificate authority: loading all takes 25 ms of each HTTP client, and some clients require one."""
    folder = tempfile.mkdtemp(prefix="walle-authorities-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder) / "one.pem"
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
    file.write_text(first + end)
    os.environ.update({"SSL_CERT_FILE": str(file), "SSL_CERT_DIR": folder})


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _stay)
            os.environ[_IGNORED] = f"{os.environ.get(_IGNORED, '')} {number.name}"
        elif is_worker and number.name in os.environ.get(_IGNORED, ""):
            signal.signal(number, _stay)
    if not is_worker:
        _move_home()
        _trust_one_authority()
