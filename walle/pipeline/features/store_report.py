"""Counts of a feature store, and the report of its losses."""

import dataclasses

from walle.pipeline.features.losses import Loss, open_by_cause, uploads_by_cause
from walle.pipeline.features.salvage import Salvage


@dataclasses.dataclass(slots=True)
class StoreCounts:
    """Counts since the start. Rows per transaction show the gain of collective storage; `waits` are blocked puts."""

    rows: int = 0
    transactions: int = 0
    failed_transactions: int = 0
    waits: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class StoreReport:
    """Losses since the opening: uploads, damaged files that were set aside, and features that failed their checksum.

    Features that cannot be decoded are removed as damaged ones are, when a query meets them. `lost_commits` counts
    transactions that the file lacked at the opening: features that were not to be uploaded are lost with them.
    """

    losses: tuple[Loss, ...]
    set_asides: tuple[Salvage, ...]
    damaged_features: int
    lost_commits: int = 0
    damaged_states: int = 0  # tasks whose state is lost, and begins empty
    undecodable_features: int = 0  # sound rows that are not plain data, as an older walle stored some
    last_undecodable: str = ""  # topic, position and reason of the last one

    @property
    def lost_uploads(self) -> dict[str, int]:
        """The number of lost uploads by cause, as the cloud counts them; at least these, where a loss is open."""
        return dict(uploads_by_cause(self.losses))

    @property
    def open_losses(self) -> dict[str, int]:
        """The number of losses by cause of which the end is unknown yet."""
        return dict(open_by_cause(self.losses))

    def lines(self) -> tuple[str, ...]:
        """Return one line of text for each."""
        lines = [f"{salvaged.set_aside.name} was damaged and set aside" for salvaged in self.set_asides]
        lines += [
            f"events from position {salvaged.runs_again_from} on run again, and their outputs may come twice"
            for salvaged in self.set_asides
            if salvaged.runs_again_from is not None
        ]
        lines += [f"the last {self.lost_commits} transactions are missing from the file"] * bool(self.lost_commits)
        lines += [f"{self.damaged_states} states of tasks failed their checksum or could not be decoded"] * bool(
            self.damaged_states
        )
        lines += [f"{self.damaged_features} features failed their checksum"] * bool(self.damaged_features)
        if self.undecodable_features:
            lines.append(
                f"{self.undecodable_features} features could not be decoded; the last: {self.last_undecodable}"
            )
        return (*lines, *map(str, self.losses))
