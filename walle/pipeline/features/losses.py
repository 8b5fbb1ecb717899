"""Reports of uploads that are lost or may arrive twice, after a file of either side went back in time or was damaged.

A device's reports travel through its outbox under the topic `LOSS_TOPIC`, so that they arrive once, in order, and
survive a crash. The cloud records them in a table instead of passing them to consumers.
"""

import dataclasses
import enum
from collections import Counter
from collections.abc import Iterable
from typing import Self

from walle.base import plain
from walle.errors import PipelineError
from walle.protocol import MAX_ID_CHARS, MAX_SEQ, printable

LOSS_TOPIC = "walle.losses"


class LossCause(enum.StrEnum):
    """The causes of a loss, and what became of the uploads."""

    CLOUD_RESTORED = "cloud-restored"  # acknowledged uploads that the cloud's restored file does not have any more
    DEVICE_RESTORED = "device-restored"  # the device's file does not have them any more: lost, or they come twice
    DAMAGED = "damaged"  # the device could not read them any more: lost, unless the cloud has them already
    # The cloud's database refuses their contents, or has damaged them: they are set aside there. Or no release gave the
    # device their task: they are not kept.
    REFUSED = "refused"


def uploads_by_cause(losses: Iterable["Loss"]) -> Counter[str]:
    """Return the number of uploads of each cause; every cause has one."""
    counts = Counter({cause.value: 0 for cause in LossCause})
    for loss in losses:
        counts[loss.cause.value] += loss.count
    return counts


def open_by_cause(losses: Iterable["Loss"]) -> Counter[str]:
    """Return, of each cause, the number of losses whose end is unknown: each has one upload at least."""
    counts = Counter({cause.value: 0 for cause in LossCause})
    for loss in losses:
        counts[loss.cause.value] += loss.is_open
    return counts


class LossError(PipelineError):
    """A report of a device that is not a loss."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """The uploads `first_seq` to `last_seq` of an epoch; `last_seq` is None where the highest number is unknown."""

    epoch: str
    first_seq: int
    last_seq: int | None
    cause: LossCause

    @property
    def is_open(self) -> bool:
        """True where the highest number is unknown, so that `count` is the least there can be."""
        return self.last_seq is None

    @property
    def count(self) -> int:
        """The number of these uploads; 1 where the highest number is unknown, the least there can be."""
        return 1 if self.last_seq is None else self.last_seq - self.first_seq + 1

    def __str__(self) -> str:
        what = f"of epoch {printable(self.epoch)} ({self.cause})"
        if self.last_seq is None:
            return f"uploads from {self.first_seq} on {what}: at least {self.count}, the end is unknown yet"
        return f"uploads {self.first_seq} to {self.last_seq} {what}"

    def encode(self) -> bytes:
        return plain.encode([self.epoch, self.first_seq, self.last_seq, self.cause.value])

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Parse a device's report. Raises LossError if it is not one."""
        try:
            epoch, first_seq, last_seq, cause = plain.decode(payload)
            loss = cls(epoch, first_seq, last_seq, LossCause(cause))
        except (ValueError, TypeError) as error:
            raise LossError(f"a report of lost uploads cannot be read: {error}") from error
        numbers = (first_seq,) if last_seq is None else (first_seq, last_seq)
        if not isinstance(epoch, str) or len(epoch) > MAX_ID_CHARS:
            raise LossError("a report of lost uploads names no epoch")
        if any(type(number) is not int or not 0 <= number <= MAX_SEQ for number in numbers):
            raise LossError(f"a report of lost uploads of epoch {epoch!r} has a number that no upload has")
        if last_seq is not None and last_seq < first_seq - 1:  # none is a report that chain values differ
            raise LossError(f"a report of lost uploads of epoch {epoch!r} ends before it begins")
        return loss
