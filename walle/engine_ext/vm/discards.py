"""Record of discarded interpreters: which task's version changed what no reset could undo, and how often."""

import collections
import dataclasses
import logging

from walle.protocol import printable

_LOG = logging.getLogger(__name__)

MAX_VERSIONS = 200  # versions recorded by name
_MAX_CHARS = 300  # limit of a reason
OTHERS = "*"  # the name of those that were recorded longest ago


@dataclasses.dataclass(frozen=True)
class Discarded:
    """Discarded interpreters of one version: how many, the bytes that they leaked, and why the last one was."""

    count: int
    leaked_bytes: int
    reason: str


class Discards:
    """Discarded interpreters by the version of the task that ran in them; of MAX_VERSIONS, and all others together."""

    def __init__(self) -> None:
        self._by_version: collections.OrderedDict[str, Discarded] = collections.OrderedDict()

    def add(self, version: str, reason: str, leaked_bytes: int) -> None:
        """Count an interpreter, and log it where the version's count is a power of two.

        The reason may have names that the task chose: it is shortened and made printable.
        """
        reason = printable(reason)[:_MAX_CHARS]
        self._merge(version, Discarded(1, leaked_bytes, reason))
        count = self._by_version[version].count
        if count & (count - 1) == 0:
            _LOG.warning(
                "%s changed its interpreter, which was discarded (%d so far, %.1f MB leaked now): %s",
                version, count, leaked_bytes / 2**20, reason,
            )  # fmt: skip
        while len(self._by_version) > MAX_VERSIONS:
            oldest = next(name for name in self._by_version if name != OTHERS)
            self._merge(OTHERS, self._by_version.pop(oldest))

    def _merge(self, version: str, more: Discarded) -> None:
        before = self._by_version.pop(version, Discarded(0, 0, ""))
        self._by_version[version] = Discarded(
            before.count + more.count, before.leaked_bytes + more.leaked_bytes, more.reason
        )

    def by_version(self) -> dict[str, Discarded]:
        """Return what was counted, the version that was counted last at the end."""
        return dict(self._by_version)
