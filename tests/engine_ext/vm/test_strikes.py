"""A task's record of strikes and leaks, over its versions."""

import pytest

from walle.engine_ext.vm.pool import MAX_LEAKED_MB, MAX_STRIKES, RUNS_FOR_A_STRIKE, TaskQuarantined, _Record


def strike(record: _Record, version: str) -> None:
    record.strikes += 1
    record.note_cost(version)


def leak(record: _Record, version: str, leaked_bytes: int, reset_failure: str) -> None:
    record.leaked_bytes += leaked_bytes
    record.reset_failure = reset_failure
    record.note_cost(version)


def struck(count: int, version: str = "v1") -> _Record:
    record = _Record()
    for _ in range(count):
        record.check("t", version)
        strike(record, version)
    return record


def test_the_version_with_the_last_strike_stays_out_and_another_has_one_left() -> None:
    record = struck(MAX_STRIKES - 1)
    record.check("t", "v1")
    strike(record, "v1")
    for _ in range(2):
        with pytest.raises(TaskQuarantined, match=f"{MAX_STRIKES} of its calls"):
            record.check("t v1", "v1")
    for number in range(2, 200):  # many versions do not get more
        record.check("t", f"v{number}")
        record.check("t", f"v{number}")
        strike(record, f"v{number}")
        with pytest.raises(TaskQuarantined):
            record.check("t", f"v{number}")
    assert len(record.quarantined) == 100


def test_strikes_of_a_version_count_for_the_next_one() -> None:
    record = struck(MAX_STRIKES - 1)
    record.check("t", "v2")
    strike(record, "v2")
    with pytest.raises(TaskQuarantined):
        record.check("t", "v2")
    record.check("t", "v1")  # a rollback comes back to it
    strike(record, "v1")
    with pytest.raises(TaskQuarantined):
        record.check("t", "v1")


def test_a_strike_is_forgotten_after_many_successful_runs() -> None:
    record = struck(MAX_STRIKES - 1)
    record.add_runs(RUNS_FOR_A_STRIKE - 1)
    assert record.strikes == MAX_STRIKES - 1
    strike(record, "v1")  # those before it no longer count
    record.check("t", "v2")
    record.add_runs(RUNS_FOR_A_STRIKE - 1)
    assert record.strikes == MAX_STRIKES - 1
    record.add_runs(1)
    assert record.strikes == MAX_STRIKES - 2
    for _ in range(MAX_STRIKES):
        record.add_runs(RUNS_FOR_A_STRIKE)
    assert record.strikes == 0
    with pytest.raises(TaskQuarantined):  # the version itself stays out
        record.check("t", "v1")


def test_leaks_count_over_versions_and_are_not_forgotten() -> None:
    record = _Record()
    leak(record, "v1", MAX_LEAKED_MB << 20, "an audit hook")
    record.add_runs(RUNS_FOR_A_STRIKE)
    with pytest.raises(TaskQuarantined, match=rf"\(an audit hook\), which leaked {MAX_LEAKED_MB} MB"):
        record.check("t", "v1")
    record.check("t", "v2")
    leak(record, "v2", (MAX_LEAKED_MB << 20) // MAX_STRIKES + 1, "again")
    with pytest.raises(TaskQuarantined):
        record.check("t", "v2")
