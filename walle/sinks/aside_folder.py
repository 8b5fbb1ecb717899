"""Folder of rows that a target refuses, each a file that is on disk before the group's position moves past the row.

A file is `GROUP/00000000000000000110-9f86d081884c7d65.json`: the row's position, and a hash of its key. So a row that
is refused again, as after a kill, has the same file. It says which target refused the row and why, has the row as the
target gets it (`row`) and its payload in the store's bytes (`payload_base64`), and can be sent again (`resend`).
"""

import asyncio
import base64
import dataclasses
import errno
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from walle.base.durable_file import UNFINISHED, make_folders, write_file
from walle.base.plain_json import dumps
from walle.pipeline.ingest.store.feature_reader import iso_time
from walle.pipeline.tunnel.received import Received
from walle.sinks.sink import Refusal, Sink, SinkError, SinkRow


@dataclasses.dataclass(frozen=True)
class ResentRows:
    """Numbers of rows that were sent again, and of those that the target refused again."""

    sent: int
    refused: int


class AsideFolder:
    """The rows of a group that were set aside below `path`, `max_rows` at most, of all processes of the group."""

    def __init__(self, path: Path, group: str, *, max_rows: int = 1000) -> None:
        self.name = str(path / group)
        self._path = path / group
        self._group = group
        self._max_rows = max_rows

    async def start(self) -> None:
        """Make the folder, and check that it can be written.

        Raises:
            SinkError: it cannot.
        """
        try:
            await asyncio.to_thread(self._check_written)
        except OSError as error:
            raise SinkError(self.name, f"cannot be written ({error.strerror})", may_pass=False) from error

    def _check_written(self) -> None:
        make_folders(self._path, mode=0o700)  # features are what users did
        probe = self._path / f".probe{UNFINISHED}"
        try:
            write_file(probe, b"")
        finally:
            probe.unlink(missing_ok=True)

    async def put(self, refusal: Refusal, target: str) -> None:
        """Write a row's file, and return once it is on disk.

        Raises:
            SinkError: it cannot be written, or the folder has `max_rows` already.
        """
        try:
            await asyncio.to_thread(self._put, refusal, target)
        except OSError as error:
            what = f"{refusal.row.place} cannot be set aside ({error.strerror}); {target} refuses it: {refusal.why}"
            raise SinkError(self.name, what, may_pass=error.errno in (errno.ENOSPC, errno.EDQUOT)) from error

    def _put(self, refusal: Refusal, target: str) -> None:
        row = refusal.row
        path = self._file_of(row)
        if not path.exists() and (count := sum(1 for _ in self._path.glob("*.json"))) >= self._max_rows:
            what = (
                f"has {count:,} rows that were set aside, and no more are (--set-aside-rows); {target} also refuses"
                f" {row.place}: {refusal.why}. Correct the target, send the rows again (walle features resend), and"
                " start the sink again"
            )
            raise SinkError(self.name, what, may_pass=False)
        fields = {
            "group": self._group,
            "target": target,
            "why": refusal.why,
            "time": iso_time(int(time.time() * 1000)),
            "scenario": row.scenario,
            "partition": row.part,
            "row": row.fields(),
            "payload_base64": base64.b64encode(row.received.payload).decode(),
        }
        write_file(path, dumps(fields) + "\n")

    def rows(self) -> Iterator[SinkRow]:
        """Yield the rows in the order of their positions.

        Raises:
            SinkError: the folder does not exist, or a file cannot be read or is not a row that was set aside.
        """
        if not self._path.is_dir():
            what = "does not exist; give the folder of --set-aside, and the --group of the sink"
            raise SinkError(self.name, what, may_pass=False)
        for path in sorted(self._path.glob("*.json")):
            try:
                yield _row_of(json.loads(path.read_bytes()))
            except OSError as error:
                raise SinkError(self.name, f"{path.name} cannot be read ({error.strerror})", may_pass=False) from error
            except (ValueError, KeyError, TypeError) as error:
                what = f"{path.name} is not a row that a sink set aside; move it elsewhere"
                raise SinkError(self.name, what, may_pass=False) from error

    def remove(self, row: SinkRow) -> None:
        """Remove the file of a row, such as one that was sent again."""
        self._file_of(row).unlink(missing_ok=True)

    def _file_of(self, row: SinkRow) -> Path:
        digest = hashlib.sha256(row.key.encode("utf-8", "surrogatepass")).hexdigest()
        return self._path / f"{row.position:020}-{digest[:16]}.json"


async def resend(sink: Sink, folder: AsideFolder) -> ResentRows:
    """Send the rows in a folder to a started sink, one at a time, and remove the file of each that the target takes.

    A row that is refused again stays. A row may come to the target twice where the process is killed, with the same
    key.

    Raises:
        SinkError: the target does not answer, or refuses all; or a file cannot be read. Rows before it were sent.
    """
    sent = refused = 0
    for row in folder.rows():
        try:
            await sink.write([row])
        except SinkError as error:
            if not error.refused:
                raise
            refused += 1
        else:
            folder.remove(row)
            sent += 1
    return ResentRows(sent, refused)


def _row_of(fields: dict[str, Any]) -> SinkRow:
    row = fields["row"]
    received = Received(
        row["device"],
        row["epoch"],
        row["seq"],
        row["topic"],
        base64.b64decode(fields["payload_base64"], validate=True),
        row["sent_ms"],
        row["received_ms"],
        version=row["version"],
    )
    return SinkRow(row["position"], received)
