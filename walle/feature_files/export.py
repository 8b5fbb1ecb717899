"""Export of features to a file: collected in a spool beside it, written in its form at the end, and put in place whole.

The spool, `NAME.part`, has a line of JSON, which says what is exported, and then features: a line of JSON each, or for
a Parquet file blocks of columns. A cut export continues after the last whole line or block. Nothing but a whole
file ever has the name itself.
"""

import csv
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, Self

from walle.base.durable_file import sync_folder, write_all
from walle.base.extras import install_hint
from walle.base.plain_json import dumps
from walle.errors import ConfigError
from walle.feature_files.block_spool import blocks, encoded
from walle.feature_files.blocks import BlockColumns
from walle.feature_files.columns import DISTINCT, FIXED, Columns
from walle.feature_files.csv_cells import cell_of_json, cell_of_text

type FileForm = Literal["jsonl", "csv", "parquet"]

_SUFFIXES: Mapping[str, FileForm] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_ROWS = 50_000  # rows of a group of a Parquet file
_VALUES = 2_000_000  # values in all of its columns, which are in memory at once
_VERSIONS: Mapping[FileForm, int] = {"jsonl": 1, "csv": 1, "parquet": 2}  # versions of the spool's format


class ExportError(ConfigError):
    """A file that cannot be exported to. `path` names it."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


def form_of(path: Path) -> FileForm:
    """Return the form that a file's name asks for.

    Raises:
        ExportError: its ending is unknown, or it is Parquet and pyarrow is not installed.
    """
    form = _SUFFIXES.get(path.suffix.lower())
    if form is None:
        raise ExportError(path, f"the name must end in {', '.join(_SUFFIXES)}, which says the format of the file")
    if form == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ModuleNotFoundError as error:
            what = f"a Parquet file needs pyarrow; export to .csv, or install it with: {install_hint('parquet')}"
            raise ExportError(path, what) from error
    return form


class Export:
    """An export of the features that `what` describes (plain data that is equal for the same export) to `path`.

    Within `with Export(...) as export`: `add` features after `position`, then `finish`. Leaving without `finish` keeps
    the spool, and the next export of the same continues there.

    Raises, from entering:
        ExportError: `path` exists, or its spool is in use, damaged, or of another export.
    """

    def __init__(self, path: Path, what: Mapping[str, Any]) -> None:
        self.path = path
        self.form = form_of(path)
        self.position = 0  # position of the last feature that is in the spool, or that was passed
        self.features = 0
        self._what = {"walle_export": _VERSIONS[self.form], **what}
        self._blocks = BlockColumns()  # columns of a Parquet file
        self._spool = path.with_name(f"{path.name}.part")
        self._handle = -1  # handle of the spool

    def __enter__(self) -> Self:
        if self.path.exists():
            raise ExportError(self.path, "exists already; remove it, or name another file")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Features are what users did: readable by their owner only, as the cloud's own file is.
        self._handle = os.open(self._spool, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._lock()
            self._resume()
        except BaseException:
            os.close(self._handle)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def add(self, features: Sequence[Mapping[str, Any]], after: int) -> None:
        """Append features, which come up to position `after`.

        Raises:
            ExportError: they cannot be written; the next export continues after the last one that was.
        """
        if self.form == "parquet":
            fields = {name: [one.get(name) for one in features] for name in FIXED}
            self.add_columns(fields, [one["payload"] for one in features], after)
        else:
            self._append(b"".join(dumps(one).encode() + b"\n" for one in features), len(features), after)

    def add_columns(self, fields: Mapping[str, Sequence[Any]], payloads: Sequence[Any], after: int) -> None:
        """Append features to a Parquet file's spool, in columns: those of FIXED, and the payloads; raises as `add`."""
        if payloads:
            data = encoded(self._blocks.batch(fields, payloads))
            self._append(data, len(payloads), after)
        else:
            self.position = after

    def _append(self, data: bytes, features: int, after: int) -> None:
        try:
            write_all(self._handle, data)
        except OSError as error:
            raise ExportError(
                self._spool, f"cannot be written ({error.strerror}); give the same command again to continue"
            ) from error
        self.features += features
        self.position = after

    def finish(self) -> None:
        """Write the file in its form, put it in place, and remove the spool.

        Raises:
            ExportError: it cannot be written, or is there by now; the spool is kept.
        """
        try:
            self._finish()
        except FileExistsError as error:
            raise ExportError(self.path, f"exists by now; the export is kept in {self._spool.name}") from error
        except OSError as error:
            raise ExportError(
                self.path, f"cannot be written ({error.strerror}); give the same command again to continue"
            ) from error

    def _finish(self) -> None:
        whole = self.path.with_name(f"{self.path.name}.tmp")
        whole.unlink(missing_ok=True)
        number = os.open(whole, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(number, "w+b") as file:
                self._write(file)
                file.flush()
                os.fsync(file.fileno())
            self._place(whole)
        finally:
            whole.unlink(missing_ok=True)
        sync_folder(self.path.parent)
        self._spool.unlink()

    def _write(self, file: IO[bytes]) -> None:
        if self.form == "csv":
            _write_csv(file, self._read)
            return
        with self._spool.open("rb") as spool:
            spool.readline()
            if self.form == "parquet":
                _write_parquet(file, spool, self._blocks)
            else:
                shutil.copyfileobj(spool, file)

    def _place(self, whole: Path) -> None:
        """Give the file its name, which `rename` would take from a file that is there by now."""
        try:
            os.link(whole, self.path)
        except FileExistsError:
            raise
        except OSError:  # the file system has no links
            if self.path.exists():
                raise FileExistsError(self.path) from None
            whole.rename(self.path)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExportError(self._spool, "another export is writing to it") from None
        if not os.fstat(self._handle).st_nlink:
            raise ExportError(self.path, "another export has just finished it")

    def _resume(self) -> None:
        """Read the spool up to its last whole line or block, and cut off what follows."""
        with self._spool.open("rb") as file:
            first = file.readline()
            if not first.endswith(b"\n"):  # new, or cut before anything was in it
                os.ftruncate(self._handle, 0)
                write_all(self._handle, dumps(self._what).encode() + b"\n")
                return
            if _loaded(first) != self._what:
                raise ExportError(self._spool, f"is the rest of another export ({first[:300]!r}); finish or remove it")
            whole = len(first)
            if self.form == "parquet":
                for block, whole in blocks(file):  # noqa: B007 - the last one is used
                    self._blocks.see(block.schema)
                    self.position = block.column(0)[-1].as_py()
                    self.features += block.num_rows
                os.ftruncate(self._handle, whole)
                return
            for line in file:
                row = _loaded(line) if line.endswith(b"\n") else None
                if not isinstance(row, dict) or not isinstance(row.get("position"), int):
                    break
                self.position = row["position"]
                self.features += 1
                whole += len(line)
        os.ftruncate(self._handle, whole)

    def _read(self) -> Iterator[dict[str, Any]]:
        """Yield the spool's features."""
        with self._spool.open("rb") as file:
            file.readline()
            for line in file:
                yield json.loads(line)


def _loaded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


type _Read = Callable[[], Iterator[dict[str, Any]]]


def _columns_of(read: _Read) -> Columns:
    columns = Columns()
    for feature in read():
        columns.see(feature)
    return columns


def _write_csv(file: IO[bytes], read: _Read) -> None:
    columns = _columns_of(read)
    text = _Utf8(file)
    names = list(columns.kinds)
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writerow({name: cell_of_text(name) for name in names})
    for feature in read():
        row = columns.row(feature, cell_of_text, cell_of_json)
        writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> Any:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else value


class _Utf8:
    """A text file on a binary one, which stays open."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(text.encode())


def _write_parquet(file: IO[bytes], spool: IO[bytes], columns: BlockColumns) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    schema = columns.schema
    most_rows = min(_ROWS, max(1, _VALUES // len(schema)))
    repeating = [name for name in schema.names if name not in DISTINCT]
    with parquet.ParquetWriter(file, schema, use_dictionary=repeating) as writer:
        group: list[pa.RecordBatch] = []
        for block, _ in blocks(spool):
            group.append(pa.RecordBatch.from_arrays(columns.converted(block), schema=schema))
            if sum(one.num_rows for one in group) >= most_rows:
                writer.write_table(pa.Table.from_batches(group))
                group = []
        if group:
            writer.write_table(pa.Table.from_batches(group))
