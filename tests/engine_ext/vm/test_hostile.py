"""Tasks that mean harm do none to the device or to each other."""

from pathlib import Path

import pytest

from tests.sim.hostile import DEEDS, storm


@pytest.mark.asyncio
async def test_honest_calls_come_back_among_hostile_ones(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = await storm(tmp_path, 0.5, seed=1)
    assert set(found["outcomes"]) == set(DEEDS)
    assert all(found["outcomes"].values())
    assert found["honest_calls"] > 0
    for name in ("leaves by SystemExit", "leaves by sys.exit"):
        assert set(found["outcomes"][name]) <= {"TaskError SystemExit", "DeadlineExceeded deadline_ms"}
    assert set(found["outcomes"]["looks for os._exit"]) <= {"ok", "DeadlineExceeded deadline_ms"}
    assert "Fatal" not in capfd.readouterr().err
