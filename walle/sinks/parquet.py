"""Sink to Parquet files in a folder or bucket, exactly once.

A file has rows of one partition of the devices, and is named by the position of its first row:
`GROUP/part=07/00000000000000000110.parquet`. It is made only where that name is free. The first row that the target
lacks is the same for every member of the group, so of two that write the same rows, a replay after a kill among them,
one makes the file; the other reads how far it goes, and continues behind it. For that, no position within a file is
committed.

The columns are the same in each file; the payload is JSON.
"""

import asyncio
import io
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from walle.base.extras import install_hint
from walle.base.plain_json import dumps
from walle.errors import ConfigError
from walle.sinks.object_folder import ObjectFolder
from walle.sinks.sink import Sink, SinkError, SinkRow

_AT_ONCE = 8  # files that are sent
_TEXTS = ("key", "time", "device", "epoch", "task", "version", "topic", "page", "payload", "error")
_INTS = ("position", "seq", "sent_ms", "received_ms")
_COLUMNS = ("key", "position", "time", "device", "epoch", "seq", "task", "version", "topic", "page", "sent_ms",
            "received_ms", "payload", "error")  # fmt: skip
_META = b"walle_sink"


class _End(NamedTuple):
    """The last row of a partition that the target has.

    `is_passed`: rows after it may be the next ones, since this process has read it from the store, or another member
    may have committed it. Else it must come first.
    """

    position: int
    key: str
    is_passed: bool


class ParquetSink(Sink):
    """Files below `folder`, in `GROUP/part=NN/`; `choice` names the uploads that the group sends.

    Raises:
        ConfigError: pyarrow is not installed.
    """

    def __init__(self, folder: ObjectFolder, group: str, choice: Mapping[str, Any]) -> None:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise ConfigError(f"{folder.name}: Parquet files need pyarrow: {install_hint('parquet')}") from None
        self.target = folder.name
        self._folder = folder
        self._group = group
        self._choice = dict(choice)
        self._ends: dict[int, _End] = {}

    async def start(self) -> None:
        self._ends.clear()
        await self._folder.start()

    async def write(self, rows: Sequence[SinkRow]) -> None:
        by_part: dict[int, list[SinkRow]] = {}
        for row in rows:
            by_part.setdefault(row.part, []).append(row)
        limit = asyncio.Semaphore(_AT_ONCE)

        async def write_part(part: int, of_part: list[SinkRow]) -> None:
            async with limit:
                await self._write_part(part, of_part)

        works = [asyncio.ensure_future(write_part(part, found)) for part, found in by_part.items()]
        try:
            for work in works:
                await work
        finally:  # a retry or another member sees by the files' names which were done
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    def note_moved(self, parts: Collection[int]) -> None:
        for part in parts:  # rows up to the end are compared if they come: then the store went back, or none committed
            if (end := self._ends.get(part)) is not None:
                self._ends[part] = end._replace(is_passed=True)

    def written_up_to(self, part: int) -> int:
        end = self._ends.get(part)
        return end.position if end is not None else 0

    async def _write_part(self, part: int, rows: Sequence[SinkRow]) -> None:
        while rows := list(self._missing(part, rows)):
            path = f"{self._group}/part={part:02}/{rows[0].position:020}.parquet"
            data = await asyncio.to_thread(_encoded, rows, self._choice)
            if await self._folder.create(path, data):
                self._ends[part] = _End(rows[-1].position, rows[-1].key, is_passed=True)
            else:
                self._ends[part] = await self._end_of(path, rows[0])

    def _missing(self, part: int, rows: Sequence[SinkRow]) -> Sequence[SinkRow]:
        """Return the rows that the target lacks, and compare its last row with that in the store."""
        end = self._ends.get(part)
        if end is None:
            return rows
        covered = [row for row in rows if row.position <= end.position]
        missing = rows[len(covered) :]
        if covered and covered[-1].position == end.position:
            if covered[-1].key != end.key:
                raise self._went_back(end.position)
            self._ends[part] = end._replace(is_passed=True)
        elif missing and (covered or not end.is_passed):
            raise self._went_back(end.position)
        return missing

    async def _end_of(self, path: str, first: SinkRow) -> _End:
        """Return the last row of a file that is there, which must begin with the row `first`."""
        import pyarrow as pa
        from pyarrow import parquet

        data = await self._folder.read(path)
        try:
            meta = json.loads(parquet.read_metadata(io.BytesIO(data)).metadata[_META])
            end = _End(meta["position"], meta["last"], is_passed=False)
            choice, first_key = meta["choice"], meta["first"]
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            what = f"{path} is not a file of this sink; name another folder or prefix"
            raise SinkError(self.target, what, may_pass=False) from error
        if choice != self._choice:
            what = f"{path} was written with the choice {dumps(choice)}, not {dumps(self._choice)}; use another --group"
            raise SinkError(self.target, what, may_pass=False)
        if first_key != first.key:
            raise self._went_back(first.position)
        return end

    def _went_back(self, position: int) -> SinkError:
        what = (
            f"has another row at position {position} than the store of uploads, which went back to a backup or lost"
            " rows to forced retention; send to another folder or prefix with another --group"
        )
        return SinkError(self.target, what, may_pass=False)


def _encoded(rows: Sequence[SinkRow], choice: Mapping[str, Any]) -> bytes:
    """Return a Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for row in rows:
        fields = row.fields()
        fields["payload"] = None if "error" in fields else dumps(fields["payload"])
        for name, column in columns.items():
            column.append(fields.get(name))
    meta = {"choice": choice, "first": rows[0].key, "position": rows[-1].position, "last": rows[-1].key}
    schema = pa.schema(
        [(name, pa.int64() if name in _INTS else pa.string()) for name in _COLUMNS], metadata={_META: dumps(meta)}
    )
    file = io.BytesIO()
    parquet.write_table(pa.table(columns, schema=schema), file, compression="zstd")
    return file.getvalue()
