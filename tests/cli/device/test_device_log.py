"""The log file of `walle device run`: its contents and its bound."""

import logging
from pathlib import Path

import pytest

from walle.cli.device.log import LOG_FILE, MAX_BYTES, device_log
from walle.task.run.log import LogLine, TaskLog


def test_task_lines_reach_the_file_and_warnings_stderr_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = TaskLog("kiosk-1")
    with device_log(tmp_path):
        log.write("shop/ipv", "v1", [LogLine("info", "one"), LogLine("warning", "two"), LogLine("debug", "three")])
    log.write("shop/ipv", "v1", [LogLine("info", "after the end")])
    lines = (tmp_path / LOG_FILE).read_text().splitlines()
    assert [line.partition(" walle.task: ")[2] for line in lines] == [
        "kiosk-1: shop/ipv v1: one",
        "kiosk-1: shop/ipv v1: two",
    ]
    assert capsys.readouterr().err == "kiosk-1: shop/ipv v1: two\n"
    assert logging.getLogger("walle").handlers == []


def test_the_file_is_bounded(tmp_path: Path) -> None:
    logger = logging.getLogger("walle.task")
    with device_log(tmp_path):
        for _ in range(3_000):
            logger.info("x" * 1_000)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {LOG_FILE, f"{LOG_FILE}.1"}
    assert max(sizes.values()) <= MAX_BYTES
