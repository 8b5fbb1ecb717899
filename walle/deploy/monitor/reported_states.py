"""Largest state of a task (`ctx.state`) that devices report of a release, within the bound of its version."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from walle.protocol import Outcome, StatePolicy


@dataclasses.dataclass(slots=True)
class ReportedStates:
    """Sizes that devices of a release report.

    A size beyond the bound is counted as refused and not kept: one device that lies would decide what is shown. A
    device that says the truth reports such a size where its state was written by a version with a larger bound.
    """

    limit_bytes: int | None = None  # `max_bytes` of the version's manifest, 0: it has no state; None: not known
    size_bytes: int = 0  # the largest one
    max_bytes: int = 0  # bound of the state; 0 until a state was reported
    refused: int = 0  # reports

    def limit(self, limit_bytes: int | None) -> None:
        """Set the bound of the version; a size beyond it, of reports before it was known, is forgotten."""
        if limit_bytes is None:
            return
        self.limit_bytes = limit_bytes
        if self.size_bytes > limit_bytes:
            self.size_bytes = self.max_bytes = 0
        elif self.max_bytes:
            self.max_bytes = limit_bytes

    def take(self, outcome: Outcome) -> None:
        """Take the size in a report, if it has one."""
        if not outcome.state_max_bytes and not outcome.state_bytes:
            return
        limit_bytes = self.limit_bytes
        if limit_bytes is None:
            limit_bytes = min(outcome.state_max_bytes, StatePolicy.MAX_BYTES)
        if outcome.state_bytes > limit_bytes:
            self.refused += 1
        elif limit_bytes and outcome.state_bytes >= self.size_bytes:
            self.size_bytes, self.max_bytes = outcome.state_bytes, limit_bytes

    def to_plain(self) -> dict[str, Any]:
        return {
            "state_bytes": self.size_bytes,
            "state_max_bytes": self.max_bytes,
            "state_limit_bytes": self.limit_bytes,
            "states_refused": self.refused,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "ReportedStates":
        """Return those of a release's evidence; evidence of before has none, or no bound."""
        return cls(
            plain.get("state_limit_bytes"),
            plain.get("state_bytes", 0),
            plain.get("state_max_bytes", 0),
            plain.get("states_refused", 0),
        )
