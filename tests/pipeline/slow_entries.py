"""The meaning of a state's options: every entry looked at, and everything encoded again, at each step."""

import copy
from collections.abc import Callable
from typing import Any

from walle.base import plain
from walle.protocol import StatePolicy

HOUR_MS = 3_600_000

type Change = Callable[[dict[str, Any]], None]


class RefusedError(Exception):
    """A run fails, because the state that it left cannot be kept."""


class SlowState:
    """A task's state: `value` and, in the order of their last writes, the entries with the times of these."""

    def __init__(self, policy: StatePolicy) -> None:
        self.policy = policy
        self.value: dict[str, Any] = {}
        self.written: list[tuple[str, int]] = []
        self.latest_ms: int | None = None
        self.evicted: list[str] = []

    def run(self, ts_ms: int, change: Change) -> dict[str, Any]:
        """Run a task that changes the state; return the state that it found. Raises RefusedError."""
        latest_ms = self.latest_ms
        now_ms = ts_ms if latest_ms is None or not latest_ms - HOUR_MS <= ts_ms < latest_ms else latest_ms
        live = {key: value for key, value in self.value.items() if not self._is_over(key, now_ms)}
        found = copy.deepcopy(live)
        after = copy.deepcopy(live)
        change(after)
        unwritten = [key for key in live if key in after and plain.encode(after[key]) == plain.encode(live[key])]
        written = [(key, min(ms, now_ms)) for key, ms in self.written if key in unwritten]
        written += [(key, now_ms) for key in after if key not in unwritten]
        evicted = self._evict(after, written)
        is_back = latest_ms is not None and now_ms < latest_ms
        if latest_ms is None or is_back or written != self.written or list(after) != list(self.value):
            self.latest_ms = now_ms
        self.value, self.written = after, written
        self.evicted += evicted
        return found

    def _evict(self, value: dict[str, Any], written: list[tuple[str, int]]) -> list[str]:
        too_large = len(plain.encode(value)) > self.policy.max_bytes
        if too_large and not self.policy.evicts:
            raise RefusedError
        if too_large and any(len(plain.encode({key: one})) > self.policy.max_bytes for key, one in value.items()):
            raise RefusedError
        evicted = []
        while len(plain.encode(value)) > self.policy.max_bytes:
            key, _ = written.pop(0)
            del value[key]
            evicted.append(key)
        return evicted

    def _is_over(self, key: str, now_ms: int) -> bool:
        prefixes = [prefix for prefix in self.policy.prefix_ttl_s if key.startswith(prefix)]
        ttl_s = self.policy.prefix_ttl_s[max(prefixes, key=len)] if prefixes else self.policy.ttl_s
        times = [ms for one, ms in self.written if one == key]
        return bool(ttl_s and times and now_ms - times[0] >= 1000 * ttl_s)
