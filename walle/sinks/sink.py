"""Interface of the sinks: rows in, errors that say whether a retry may succeed, and how far the target is."""

import abc
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from walle.base.plain_json import dumps
from walle.errors import PipelineError
from walle.pipeline.ingest.store.feature_reader import feature_row, task_of
from walle.pipeline.ingest.store.partitions import partition
from walle.pipeline.tunnel.received import Received

_SHOWN_CHARS = 200  # characters of each text of a device in an error


class SinkError(PipelineError):
    """A target that did not take rows.

    `may_pass`: a retry of the same rows may succeed, after `wait_s` seconds at least if the target stated them.
    `written`: rows from the first one on that it has taken nevertheless, or refuses.
    `refused`: those of them that it refuses, however often and with whatever rows they are sent.
    """

    def __init__(
        self,
        target: str,
        what: str,
        *,
        may_pass: bool,
        wait_s: float = 0.0,
        written: int = 0,
        refused: Sequence["Refusal"] = (),
    ) -> None:
        super().__init__(f"{target}: {what}")
        self.target = target
        self.what = what
        self.may_pass = may_pass
        self.wait_s = wait_s
        self.written = written
        self.refused = tuple(refused)


class SinkRow(NamedTuple):
    """A stored upload on its way to a target."""

    position: int
    received: Received

    @property
    def part(self) -> int:
        """The partition of its device in a consumer group."""
        return partition(self.received.device_id)

    @property
    def key(self) -> str:
        """The upload's name, which no other upload has: the same at each repetition."""
        return f"{self.received.device_id}/{self.received.epoch}/{self.received.seq}"

    @property
    def scenario(self) -> str:
        """The scenario of its task, "" of a topic outside of tasks."""
        return task_of(self.received.topic).partition("/")[0]

    @property
    def place(self) -> str:
        """Its key, scenario, topic, partition and position, as an error names a row."""
        topic = self.received.topic[:_SHOWN_CHARS]
        return (
            f"the row {self.key[:_SHOWN_CHARS]!r} (scenario {self.scenario[:_SHOWN_CHARS]!r}, topic {topic!r},"
            f" partition {self.part}, position {self.position}, payload of {len(self.received.payload):,} bytes)"
        )

    def fields(self) -> dict[str, Any]:
        """Return the row as JSON: `key`, then what `walle features tail --json` shows, `epoch` and `seq`."""
        row = feature_row(self.position, self.received)
        return {"key": self.key, **row, "epoch": self.received.epoch, "seq": self.received.seq}

    def encode(self) -> bytes:
        """Return the row as a line of JSON in UTF-8, without its end."""
        return dumps(self.fields()).encode()


class Refusal(NamedTuple):
    """A row that a target refuses alone, and what it answered."""

    row: SinkRow
    why: str


def rows_refused(target: str, refused: Sequence[Refusal], *, written: int) -> SinkError:
    """Return the error of a target that refuses rows alone; `written` counts them, and those before them."""
    row, why = refused[0]
    what = (
        f"refuses {row.place}: {why}; the sink stops, and nothing is skipped. Correct the target, or start the sink"
        " with --set-aside FOLDER: such rows are then kept in files, and the others are sent"
    )
    return SinkError(target, what, may_pass=False, written=written, refused=refused)


class Sink(abc.ABC):
    """A target of rows. Used by one task, between `start` and `close`."""

    target: str
    """Its name for people, without a password."""

    async def start(self) -> None:  # noqa: B027 - most have nothing to open
        """Connect. Raises SinkError; a call after one that `may_pass` tries again."""

    async def close(self) -> None:  # noqa: B027
        """Release what `start` opened; may be called twice, and without `start`."""

    @abc.abstractmethod
    async def write(self, rows: Sequence[SinkRow]) -> None:
        """Return once the target has all rows, which are in the order of their positions.

        Raises:
            SinkError: it has `written` of them, without those that it refuses alone (`refused`). Rows that are written
                again are either not repeated in the target, or have the same `key` there.
        """

    def note_moved(self, parts: Collection[int]) -> None:  # noqa: B027 - of targets that compare rows
        """Note partitions that another member may have had meanwhile.

        Their next rows follow the position that the group has committed, which may be after `written_up_to`.
        """

    def written_up_to(self, part: int) -> int:  # noqa: ARG002 - of targets that know
        """Return the position up to which the target has a partition's rows, where it knows that it has more than
        were written by this process; else 0. No position of the partition below it is committed.
        """
        return 0
