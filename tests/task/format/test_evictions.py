"""Bounded maps forget their oldest entry in constant time: `OrderedDict.popitem(last=False)`.

In a `dict`, `next(iter(d))` passes over all entries that were deleted before the first, which in a full map are as many
as it has: a million evictions of 10,000 entries then take a minute.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from walle.base import daily_quota
from walle.base.clock import ManualClock
from walle.base.daily_quota import DailyQuota
from walle.engine_ext.vm import pool

WALLE = Path(__file__).parents[3] / "walle"
SMALL = {WALLE / "pipeline/stream/run_log.py"}  # a thousand entries at most, and a VM starts without `collections`


def slow_evictions(text: str) -> Iterator[int]:
    """Return the lines of `del d[next(iter(d))]` and `d.pop(next(iter(d)))`."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Delete(targets=[ast.Subscript(value=place, slice=key)]):
                pass
            case ast.Call(func=ast.Attribute(value=place, attr="pop"), args=[key, *_]):
                pass
            case _:
                continue
        match key:
            case ast.Call(func=ast.Name(id="next"), args=[ast.Call(func=ast.Name(id="iter"), args=[of]), *_]):
                if ast.unparse(of) == ast.unparse(place):
                    yield node.lineno


def test_no_module_searches_for_the_entry_to_evict() -> None:
    assert list(slow_evictions("del self.a[next(iter(self.a))]")) == [1]
    assert list(slow_evictions("x = 1\nself.a.pop(next(iter(self.a)), None)")) == [2]
    assert list(slow_evictions("del self.a[next(iter(self.b))]; a.pop(0); next(iter(a))")) == []
    paths = sorted(set(WALLE.rglob("*.py")) - SMALL)
    found = [f"{path}:{line}" for path in paths for line in slow_evictions(path.read_text())]
    assert not found, f"use an OrderedDict and popitem(last=False): {found}"


def test_the_least_recent_of_too_many_tokens_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daily_quota, "_MAX_TOKENS", 3)
    quota = DailyQuota(ManualClock(), most=1)
    for token in "abc":
        assert quota.take(token) == 0
    assert quota.take("a")  # spent; and the latest now
    assert quota.take("d") == 0
    assert quota.take("a")
    assert quota.take("b") == 0  # forgotten, so it is new
    assert len(quota._left) == 3


def test_the_first_of_too_many_quarantined_versions_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_MAX_VERSIONS", 2)
    record = pool._Record()
    record.strikes = pool.MAX_STRIKES
    for version in ("v1", "v2", "v3"):
        record.note_cost(version)
    assert list(record.quarantined) == ["v2", "v3"]
