"""Services that are opened again: without Ray."""

import asyncio
import logging
from pathlib import Path

import pytest

from walle.actors.service import Place, ServiceActor
from walle.cloud import CloudConfig


class Reluctant(ServiceActor):
    """A service that opens at the second attempt, and whose first one does not close."""

    attempts = 0

    async def _open(self) -> None:
        self.attempts += 1
        if self.attempts == 1:
            self._undo.push_async_callback(self._fail)
            raise OSError("the port is taken")

    async def _fail(self) -> None:
        raise RuntimeError("the store did not answer")


@pytest.mark.asyncio
async def test_a_part_that_does_not_close_before_the_next_attempt_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Reluctant(CloudConfig(folder=tmp_path), Place("ns", str(tmp_path)))
    with caplog.at_level(logging.ERROR):
        await asyncio.wait_for(service._open_again(), 20)
    assert service.attempts == 2
    assert [record.getMessage() for record in caplog.records] == [
        "Reluctant cannot continue yet; trying again in 0.2 s",
        "what Reluctant had opened did not close",
    ]
    assert "the store did not answer" in caplog.text
