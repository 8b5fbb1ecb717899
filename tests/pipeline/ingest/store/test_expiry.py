"""Selection of the uploads that retention deletes."""

import random

from walle.pipeline.ingest.store.expiry import AgeSearch, StoredSize, split_expired

_NOW_MS, _BEFORE_MS, _AHEAD_MS = 1000, 500, 10**6


def search(rows: list[StoredSize], position: int) -> tuple[int | None, int]:
    """Return the time that a search finds, and the number of its looks."""
    found, looks = AgeSearch(position, _NOW_MS), 0
    while (place := found.next_position) is not None:
        found.take(next((row for row in rows if row.position >= place), None))
        looks += 1
    return found.received_ms, looks


def test_uploads_ahead_of_the_clock_are_as_old_as_a_later_one() -> None:
    times = [100, _AHEAD_MS, _AHEAD_MS, 200, _AHEAD_MS, 900, 300]
    rows = [StoredSize(position, 10, time_ms) for position, time_ms in enumerate(times, 1)]
    expired, ahead = split_expired(rows, before_ms=_BEFORE_MS, now_ms=_NOW_MS, over_bytes=0)
    assert ([row.position for row in expired], [row.position for row in ahead]) == ([1, 2, 3, 4], [5])
    expired, ahead = split_expired(rows, before_ms=None, now_ms=_NOW_MS, over_bytes=35)
    assert ([row.position for row in expired], ahead) == ([1, 2, 3, 4], [])


def test_a_search_finds_the_first_upload_after_a_run_in_few_looks() -> None:
    for run in (0, 1, 2, 3, 100, 5000):
        rows = [StoredSize(position, 0, _AHEAD_MS) for position in range(1, run + 1)]
        assert search(rows, 0)[0] is None
        rows += [StoredSize(run + 7, 0, 42), StoredSize(run + 8, 0, 999)]
        received_ms, looks = search(rows, 0)
        assert received_ms == 42
        assert looks <= 30


def test_no_young_upload_is_taken_for_an_old_one() -> None:
    rng = random.Random(1)
    for _ in range(300):
        rows = [
            StoredSize(position, 1, rng.choice([_AHEAD_MS, 100, 900]))
            for position in sorted(rng.sample(range(1, 200), 40))
        ]
        expired, ahead = split_expired(rows, before_ms=_BEFORE_MS, now_ms=_NOW_MS, over_bytes=0)
        if ahead and (search(rows, ahead[-1].position)[0] or _NOW_MS) < _BEFORE_MS:
            expired += ahead
        for row in expired:
            assert any(later.received_ms == 100 for later in rows if later.position >= row.position)
            assert row.received_ms != 900
