"""Table of uploaded attributes: one immutable file, mapped into every gateway, from an id to a row of values.

    "WALLEAT1", length of the header (8 bytes), the header (JSON), then, each part from a multiple of 8 bytes on:
    directory   uint32 × (2**bits + 1)   of the hashes that begin with these bits, the number of the first one
    hashes      uint64 × rows            keyed hashes of the ids, in order
    places      uint32 × rows            where in `values` the row of each is
    values      uint16 length and JSON   distinct rows, each once
    sha256      of everything before

Numbers are of the machine's byte order, which the header names. A look-up hashes the id and bisects some 8 hashes: its
time does not grow with the table. A table of a million ids is 12.5 MB and its distinct rows, in pages that all
processes of a machine share. Ids are not in the file, only hashes of them under the key that is beside them.
"""

import array
import bisect
import dataclasses
import hashlib
import itertools
import json
import mmap
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

from walle.deploy.policies.attribute_schema import UPLOADED, ColumnType
from walle.errors import DeployError
from walle.protocol import MAX_ID_CHARS, Attribute

DEVICE_ID = "device_id"  # the key of a table of devices; another key is an attribute of profiles, the id of a user
MAX_ROWS = 4_000_000
MAX_TABLE_BYTES = 512 << 20  # size of all rows as JSON
MAX_LINE_BYTES = 4096  # size of one row as JSON
MAX_VALUES_BYTES = 1 << 30  # size of the distinct rows
_SHARED_ROWS = 1_000_000  # distinct rows that are compared with later ones while a table is made
_MAGIC = b"WALLEAT1"
_SHA_BYTES = 32
_CHUNK_BYTES = 4 << 20
_CACHED_ROWS = 4096
_PER_BUCKET = 8  # hashes that begin with the same bits


class AttributeTableError(DeployError):
    """Rows that cannot be taken, or a file that is not a table. Over HTTP: 422."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableFacts:
    """Description of a table. `key` is `DEVICE_ID`, or the attribute of profiles that has the id of the user."""

    key: str
    columns: Mapping[str, ColumnType]
    rows: int
    put_s: float
    put_by: str

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        columns = {name: ColumnType(kind) for name, kind in plain["columns"].items()}
        return cls(**{**{field.name: plain[field.name] for field in dataclasses.fields(cls)}, "columns": columns})


class AttributeTable:
    """A mapped table. It stays readable after its file was replaced or removed.

    Raises:
        AttributeTableError: the file is not a whole table.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.size_bytes = os.fstat(file.fileno()).st_size
            if self.size_bytes < len(_MAGIC) + 8 + _SHA_BYTES:
                raise AttributeTableError(f"{path}: is not a table of attributes")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        digest = hashlib.sha256()
        for at in range(0, self.size_bytes - _SHA_BYTES, _CHUNK_BYTES):
            digest.update(data[at : min(at + _CHUNK_BYTES, self.size_bytes - _SHA_BYTES)])
        if data[-_SHA_BYTES:] != digest.digest() or data[: len(_MAGIC)] != _MAGIC:
            raise AttributeTableError(f"{path}: is damaged, or not a table of attributes; upload it again")
        length = int.from_bytes(data[8:16], sys.byteorder)
        header = json.loads(bytes(data[16 : 16 + length]))
        if header["order"] != sys.byteorder:
            raise AttributeTableError(f"{path}: was made on another kind of machine; upload it again")
        self.facts = TableFacts.from_plain(header["facts"])
        self.version = digest.hexdigest()
        self._salt = bytes.fromhex(header["salt"])
        self._shift = 64 - header["bits"]
        rows, at = self.facts.rows, _aligned(16 + length)
        parts = []
        for count in (4 * ((1 << header["bits"]) + 1), 8 * rows, 4 * rows):
            parts.append(data[at : at + count])
            at = _aligned(at + count)
        self._directory, self._hashes, self._places = parts[0].cast("I"), parts[1].cast("Q"), parts[2].cast("I")
        self._values = data[at:-_SHA_BYTES]
        self._cached: dict[int, Mapping[str, Attribute]] = {}

    def find(self, one: str) -> Mapping[str, Attribute]:
        """Return the values of an id by the names of columns of rules; empty where the table has no such id."""
        number = _hash(one, self._salt)
        bucket = number >> self._shift
        end = self._directory[bucket + 1]
        at = bisect.bisect_left(self._hashes, number, self._directory[bucket], end)
        if at == end or self._hashes[at] != number:
            return {}
        place = self._places[at]
        found = self._cached.get(place)
        if found is None:
            begin = place + 2
            length = int.from_bytes(self._values[place:begin], sys.byteorder)
            row = json.loads(bytes(self._values[begin : begin + length]))
            found = {f"{UPLOADED}{name}": value for name, value in row.items()}
            if len(self._cached) >= _CACHED_ROWS:
                self._cached.clear()
            self._cached[place] = found
        return found


def write_table(
    lines: BinaryIO, out: BinaryIO, *, key: str, columns: Mapping[str, ColumnType], put_s: float, put_by: str
) -> TableFacts:
    """Write the table of rows that come as JSON, an object a line, and return its description.

    Each row has its id under `key`, and values of declared `columns`, of which some may be missing or null. It takes
    about 80 bytes of memory for each row and 250 for each distinct one.

    Raises:
        AttributeTableError: a row is wrong, an id comes twice, or there are no rows or too many; it names the line.
    """
    salt = os.urandom(16)
    rows: list[int] = []  # hash << 32 | place: one number each, for memory
    values = bytearray()
    known: dict[bytes, int] = {}
    found: set[str] = set()
    for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES + 1), b""), 1):
        if not line.strip():
            continue
        one, row = _row(number, line, key, columns)
        found.update(row)
        data = json.dumps(row, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
        place = known.get(data, -1)
        if place < 0:
            place = len(values)
            values += len(data).to_bytes(2, sys.byteorder) + data
            if len(values) > MAX_VALUES_BYTES:
                raise AttributeTableError(f"line {number}: more than {MAX_VALUES_BYTES} bytes of distinct rows")
            if len(known) < _SHARED_ROWS:
                known[data] = place
        rows.append(_hash(one, salt) << 32 | place)
        if len(rows) > MAX_ROWS:
            raise AttributeTableError(f"line {number}: more than {MAX_ROWS} rows")
    if not rows:
        raise AttributeTableError("there are no rows; remove the table instead: walle attributes remove")
    known.clear()
    rows.sort()
    hashes = array.array("Q", (one >> 32 for one in rows))
    places = array.array("I", (one & 0xFFFFFFFF for one in rows))
    rows.clear()
    same = next((one for one, two in itertools.pairwise(hashes) if one == two), None)
    if same is not None:
        raise AttributeTableError(_twice(lines, key, same, salt))
    bits = max(1, (len(hashes) // _PER_BUCKET).bit_length())
    directory = array.array("I", (bisect.bisect_left(hashes, n << (64 - bits)) for n in range(1 << bits)))
    directory.append(len(hashes))
    facts = TableFacts(
        key=key,
        columns={name: kind for name, kind in columns.items() if name in found},
        rows=len(hashes),
        put_s=put_s,
        put_by=put_by,
    )
    header = json.dumps({"facts": facts.to_plain(), "salt": salt.hex(), "bits": bits, "order": sys.byteorder}).encode()
    _write_parts(out, [_MAGIC + len(header).to_bytes(8, sys.byteorder) + header, directory, hashes, places, values])
    return facts


def _row(number: int, line: bytes, key: str, columns: Mapping[str, ColumnType]) -> tuple[str, dict[str, Attribute]]:
    """Return id and values of a line."""
    if len(line) > MAX_LINE_BYTES:
        raise AttributeTableError(f"line {number}: is longer than {MAX_LINE_BYTES} bytes")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AttributeTableError(f"line {number}: is not JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise AttributeTableError(f'line {number}: must be an object, such as {{"{key}": "a", "age_group": "18-24"}}')
    one = value.pop(key, None)
    if not isinstance(one, str) or not 0 < len(one) <= MAX_ID_CHARS:
        raise AttributeTableError(f"line {number}: {key} must be a text of 1 to {MAX_ID_CHARS} characters")
    row: dict[str, Attribute] = {}
    for name, said in value.items():
        kind = columns.get(name)
        if kind is None:
            declared = ", ".join(columns)[:500] or "none"
            what = f"{name[:100]!r} is not declared in the section [uploaded] of attributes.toml; declared are"
            raise AttributeTableError(f"line {number}: {what}: {declared}")
        if said is None:
            continue
        taken = kind.take(said)
        if taken is None:
            raise AttributeTableError(
                f"line {number}: {name} is {json.dumps(said)[:80]}, which is not of type {kind.words}"
            )
        row[name] = taken
    return one, row


def _twice(lines: BinaryIO, key: str, same: int, salt: bytes) -> str:
    """Return which lines have one id."""
    lines.seek(0)
    numbers = [
        str(number)
        for number, line in enumerate(lines, 1)
        if line.strip() and _hash(json.loads(line)[key], salt) == same
    ]
    return f"lines {' and '.join(numbers[:5])} have the same {key}; a device or user has one row"


def _write_parts(out: BinaryIO, parts: Iterable[bytes | bytearray | array.array[int]]) -> None:
    digest, at = hashlib.sha256(), 0
    for part in parts:
        view = memoryview(part).cast("B")
        padding = bytes(_aligned(at) - at)
        out.write(padding)
        digest.update(padding)
        for begin in range(0, len(view), _CHUNK_BYTES):
            out.write(view[begin : begin + _CHUNK_BYTES])
            digest.update(view[begin : begin + _CHUNK_BYTES])
        at += len(padding) + len(view)
    out.write(digest.digest())


def _hash(one: str, salt: bytes) -> int:
    digest = hashlib.blake2b(one.encode(errors="surrogatepass"), digest_size=8, key=salt).digest()
    return int.from_bytes(digest, sys.byteorder)


def _aligned(at: int) -> int:
    return -at % 8 + at
