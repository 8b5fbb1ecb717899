"""A second run for a few failed tests, each alone: on a shared machine a test may fail because others run beside it.

A test that passes alone is named `FLAKY` in the summary, below the report of its failure, and does not fail the run: it
is a defect to be mended. More failures than the option allows fail the run, and so does a worker that crashes.
"""

from typing import Any, Final

import pytest

from tests.plugins.alone import run_alone

_PASSED: Final = "1 passed"  # words of the summary of one test, which a skipped one does not have


class _Failures:
    """Tests that failed in any worker, in the process that prints the summary."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._failed: dict[str, None] = {}
        self._flaky: list[str] = []
        self._crashed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None
            self._crashed |= report.when not in ("setup", "call", "teardown")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        is_few = 0 < len(self._failed) <= self._most
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not is_few or self._crashed:
            return
        alone = {name: run_alone(session.config, name, __name__) for name in self._failed}
        self._flaky = [name for name, done in alone.items() if done.returncode == 0 and _PASSED in done.stdout]
        if len(self._flaky) == len(self._failed) == session.testsfailed:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for name in self._flaky:
            terminalreporter.write_line(f"FLAKY {name} - failed beside other tests, and passed alone", red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--second-run", type=int, default=0, metavar="N", help="run up to N failed tests again, alone")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and (most := config.getoption("--second-run")):
        config.pluginmanager.register(_Failures(most))
