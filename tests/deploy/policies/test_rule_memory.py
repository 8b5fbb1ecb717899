"""Memory of a gateway that evaluates rules for days."""

import gc
from pathlib import Path

import pytest

from walle.deploy.policies.attribute_schema import ColumnType
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule_index import PolicyIndex
from walle.protocol import Profile

SCHEMA = {"os_version": ColumnType.STRING, "memory_mb": ColumnType.INT}
RULES = [
    "version_in(os_version, '>=17') || memory_mb / 1024 > 7",
    "memory_mb + 1 > 4 && os_version.matches('^1') && version_in(app_version, '>=1')",
]


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.night
def test_evaluations_keep_no_memory() -> None:
    """A function of ours in a rule would leak some 110 bytes in the library at each call."""
    index = PolicyIndex([Policy(rule=rule).typed(SCHEMA) for rule in RULES])
    for number in range(1, 2_000):  # fills what is remembered
        index.matching(Profile("d", "2", {"os_version": f"1{number % 10}", "memory_mb": -number}))
    gc.collect()
    before = _resident_bytes()
    for turn in range(5_000):
        for number in range(10):  # values that were not evaluated before
            index.matching(Profile("d", "2", {"os_version": f"1{number}", "memory_mb": turn}))
    gc.collect()
    assert _resident_bytes() - before < 2 << 20
