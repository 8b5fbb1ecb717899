"""CPU seconds of each test: one above the limit of `make test` is made cheaper or marked `night`.

The summary names each test above the limit. The run fails where one takes twice the limit, as machines differ.

What fixtures take does not count: several tests share it. Nor do processes that outlive the test, as those of Ray.
Wall time says little on a shared machine, and CPU time too little on one whose cores are slow or contended. What a test
above the limit took is therefore divided by how much longer than on an idle core a known loop takes right after it.
Then it runs once more, alone: a child of a test before may have ended in it, whose time it got.
"""

import json
import resource
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.plugins.alone import run_alone

_FAILS_AT: Final = 2.0  # times the limit
_LOOP: Final = 400_000
_LOOP_S: Final = 0.012  # CPU seconds of the loop on an idle core of 3.7 GHz, of 2023


def _cpu_s() -> float:
    """Return the CPU seconds of this process, and of its children that have ended."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _slowdown() -> float:
    """Return how many times longer the loop takes here and now; at least 1."""
    started = time.thread_time()
    total = 0
    for number in range(_LOOP):
        total += number
    return max(1.0, (time.thread_time() - started) / _LOOP_S)


def verdict(spent_s: float, limit_s: float) -> str:
    """Return "FAILED" for a test that took twice the limit, "SLOW" for another above it, "" for one below."""
    if spent_s <= limit_s:
        return ""
    return "FAILED" if spent_s > limit_s * _FAILS_AT else "SLOW"


class _Spent:
    """CPU seconds of the tests of all workers, in the process that prints the summary."""

    def __init__(self, limit: float | None, report: Path | None, *, repeats: bool) -> None:
        self._limit = limit
        self._repeats = repeats
        self._report = report
        self._spent: dict[str, float] = {}

    def _above(self) -> list[tuple[float, str]]:
        limit = self._limit
        return [] if limit is None else sorted((s, name) for name, s in self._spent.items() if verdict(s, limit))

    def _repeat(self, config: pytest.Config) -> None:
        """Replace what the tests above the limit took by what each takes alone."""
        for _, name in self._above():
            with tempfile.TemporaryDirectory() as folder:
                report = Path(folder) / "report.json"
                options = [f"--cpu-limit={self._limit}", f"--cpu-report={report}", "--cpu-alone"]
                run_alone(config, name, __name__, *options)
                if report.exists():
                    self._spent.update(json.loads(report.read_text()))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            spent: dict[str, Any] = dict(report.user_properties)
            self._spent[report.nodeid] = spent.get("cpu_s", 0.0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._repeats:
            self._repeat(session.config)
        if self._report is not None:
            self._report.write_text(json.dumps(self._spent, indent=0))
        failed = [name for spent, name in self._above() if verdict(spent, self._limit or 0.0) == "FAILED"]
        if failed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        limit = self._limit or 0.0
        for spent, name in self._above():
            terminalreporter.write_line(
                f"{verdict(spent, limit)} {name} - took {spent:.1f} CPU seconds of {limit:g} allowed: "
                "make it cheaper, or mark it `night` and leave a small one here",
                red=True,
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-limit", type=float, metavar="S", help="name tests above it, fail where one takes twice it")
    parser.addoption("--cpu-alone", action="store_true", help="run no test above the limit once more")
    parser.addoption("--cpu-report", type=Path, metavar="FILE", help="write the CPU seconds of each test as JSON")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        limit, report = config.getoption("--cpu-limit"), config.getoption("--cpu-report")
        config.pluginmanager.register(_Spent(limit, report, repeats=not config.getoption("--cpu-alone")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    before = _cpu_s()
    try:
        return (yield)
    finally:
        spent, limit = _cpu_s() - before, item.config.getoption("--cpu-limit")
        if limit is not None and spent > limit:
            spent /= _slowdown()
        item.user_properties.append(("cpu_s", round(spent, 3)))
