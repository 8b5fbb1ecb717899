"""The fuzzer of frames, for a few seconds; `make fuzz-frames` runs it for half an hour."""

from pathlib import Path

import pytest

from tests.fuzz.frames import Fuzzer


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_few_seconds_of_fuzzing_find_nothing(tmp_path: Path) -> None:
    fuzzer = Fuzzer(99, tmp_path)
    await fuzzer.run(4.0)
    assert fuzzer.counts["decoder: refused"] > 100
    assert fuzzer.counts["server: refused, frame"] > 0
    assert fuzzer.counts["client: connections"] > 0
