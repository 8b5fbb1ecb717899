"""Memory over a stream: `benchmarks/livestream_decoding.py --memory` reads hours, this test some minutes."""

import pytest

from benchmarks import livestream_decoding


@pytest.mark.night
def test_memory_is_flat_over_a_stream() -> None:
    result = livestream_decoding.memory(0.1)
    assert result["frames decoded"] == 3600
    assert result["MiB at most"] - result["MiB after a tenth"] < 8, result
