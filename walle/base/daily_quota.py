"""Quota of audit records that each token may cause in a day, since the audit log's size is bounded."""

import collections
import math
import threading

from walle.base.clock import Clock

_DAY_S = 86_400.0
_MAX_TOKENS = 10_000  # tokens whose records are counted


class DailyQuota:
    """Records that each token has left: `most` at first, and as many more in each day. For any thread."""

    def __init__(self, clock: Clock, most: int) -> None:
        self.most = most
        self._clock = clock
        self._lock = threading.Lock()
        # By token: what was left, and when.
        self._left: collections.OrderedDict[str, tuple[float, float]] = collections.OrderedDict()

    def take(self, token: str) -> int:
        """Count a record and return 0; where none is left, return the seconds until there is one, and count nothing."""
        with self._lock:
            now_s = self._clock.monotonic()
            left, at_s = self._left.pop(token, (float(self.most), now_s))
            left = min(self.most, left + (now_s - at_s) * self.most / _DAY_S)
            is_allowed = left >= 1
            self._left[token] = (left - 1 if is_allowed else left, now_s)
            if len(self._left) > _MAX_TOKENS:
                self._left.popitem(last=False)
        return 0 if is_allowed else math.ceil((1 - left) * _DAY_S / self.most)
