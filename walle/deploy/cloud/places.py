"""Places for costly requests: a number in all, and a number for each caller."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from walle.errors import DeployError


class PlacesTakenError(DeployError):
    """All places are taken. `own`: by the caller itself."""

    def __init__(self, caller: str, count: int, *, own: bool) -> None:
        super().__init__(caller, count, own)
        self.caller = caller
        self.count = count
        self.own = own

    def __str__(self) -> str:
        if self.own:
            return f"{self.caller} has {self.count} requests of this kind under way; try again when one has ended"
        return f"{self.count} requests of this kind are under way; try again in a few seconds"


class Places:
    """The places, of one event loop."""

    def __init__(self, count: int, count_each: int) -> None:
        self._count = count
        self._count_each = count_each
        self._taken = Counter[str]()

    @contextlib.contextmanager
    def taken(self, caller: str) -> Iterator[None]:
        """Take a place within `with`. Raises PlacesTakenError at once where there is none."""
        own = self._taken[caller] >= self._count_each
        if own or self._taken.total() >= self._count:
            raise PlacesTakenError(caller, self._count_each if own else self._count, own=own)
        self._taken[caller] += 1
        try:
            yield
        finally:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]
