"""The tunnel's load test: a few seconds of it, and wrong results that its check must find."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.check import wrong_results
from loadtest.devices import TOPIC
from walle.base import plain
from walle.pipeline.features.losses import LOSS_TOPIC, Loss, LossCause
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
from walle.pipeline.tunnel.received import Received

_ROOT = Path(__file__).parents[2]


@pytest.mark.night
@pytest.mark.system
@pytest.mark.skipif(importlib.util.find_spec("locust") is None, reason="locust of the extra dev is not installed")
def test_a_few_seconds_of_load_leave_no_wrong_result(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest.tunnel", "--users=8", "--spawn-rate=8", "--seconds=3", "--json"]
    command.append(f"--out={tmp_path}")
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["devices"] == 8
    assert found["uploads"] >= 8
    assert found["answers"] >= 8
    assert {row["call"].split()[0] for row in found["calls"]} >= {"join", "upload"}


def received(device: str, seq: int, number: int, topic: str = TOPIC) -> Received:
    return Received(device, "e", seq, topic, plain.encode([number, b""]), 0, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ([0, 1, 2], ""),
        ([0, 2], r"made 3 uploads, 2 are in the cloud: missing \[1\], more than once \[\]"),
        ([0, 1, 1, 2], r"made 3 uploads, 4 are in the cloud: missing \[\], more than once \[1\]"),
        ([0, 2, 1], "not in order"),
        ([0, 1, 2, 3], "numbers that it did not make"),
    ],
)
async def test_uploads_that_are_missing_repeated_or_out_of_order_are_found(
    tmp_path: Path, numbers: list[int], wrong: str
) -> None:
    path = tmp_path / "uploads.db"
    async with Ingest(path) as ingest:
        await ingest.accept([received("d", seq, number) for seq, number in enumerate(numbers, 1)])
    found = await wrong_results(path, {"d": 3})
    assert len(found) == bool(wrong)
    assert re.search(wrong, "".join(found))


@pytest.mark.asyncio
async def test_losses_and_strange_uploads_are_found(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    async with Ingest(path) as ingest:
        loss = Loss("e", 3, 4, LossCause.DAMAGED)
        report = Received("d", "e", 1, LOSS_TOPIC, loss.encode(), 0, 0)
        await ingest.accept([report, received("d", 2, 0), received("d", 3, 1, "other"), received("stranger", 1, 0)])
    assert await wrong_results(path, {"d": 1}) == [
        "d: upload 3 has the topic 'other'",
        f"d: {loss}",
        "stranger: uploads of an unknown device",
    ]
