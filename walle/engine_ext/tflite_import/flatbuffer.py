"""Tables of a FlatBuffer, read by the numbers of their fields; an offset outside the file is an error."""

import struct
from typing import Any

from walle.engine_ext.errors import ModelError

MAX_ITEMS = 20_000  # elements of one vector of tables or numbers


class Table:
    """A table of `data`. A field that is absent has its default. Numbers and texts are copied when read, bytes are not.

    Raises, from every method:
        ModelError: the file is damaged, or a vector has more than MAX_ITEMS elements.
    """

    def __init__(self, data: memoryview, offset: int) -> None:
        self._data = data
        self._offset = offset
        self._fields = offset - self._read("i", offset)
        self._end = self._read("H", self._fields)

    @classmethod
    def root(cls, data: memoryview) -> "Table":
        """Return the table that the file begins with."""
        return cls(data, _read(data, "I", 0))

    def number(self, field: int, code: str, default: float = 0) -> Any:
        """Return a number of the `struct` format `code`."""
        offset = self._at(field)
        return self._read(code, offset) if offset else default

    def table(self, field: int) -> "Table":
        """Return a table; its absence is an error."""
        offset = self._at(field)
        if not offset:
            raise ModelError(f"is damaged: field {field} is missing at byte {self._offset}")
        return Table(self._data, offset + self._read("I", offset))

    def tables(self, field: int) -> "list[Table]":
        start, count = self._vector(field, 4)
        offsets = range(start, start + 4 * count, 4)
        return [Table(self._data, offset + self._read("I", offset)) for offset in offsets]

    def numbers(self, field: int) -> tuple[int, ...]:
        """Return the elements of a vector of int32."""
        start, count = self._vector(field, 4)
        return struct.unpack_from(f"<{count}i", self._data, start)

    def text(self, field: int) -> str:
        start, count = self._vector(field, 1)
        try:
            return self._data[start : start + count].tobytes().decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"is damaged: a text at byte {start} is not UTF-8") from error

    def contents(self, field: int) -> memoryview:
        """Return a view of the bytes of a vector, which the file alone bounds."""
        start, count = self._vector(field, 1, is_bounded=False)
        return self._data[start : start + count]

    def _at(self, field: int) -> int:
        """Return the offset of a field, 0 where it is absent."""
        entry = 4 + 2 * field
        found = self._read("H", self._fields + entry) if entry < self._end else 0
        return self._offset + found if found else 0

    def _vector(self, field: int, size_bytes: int, *, is_bounded: bool = True) -> tuple[int, int]:
        """Return where a vector's elements begin, and their count."""
        offset = self._at(field)
        if not offset:
            return 0, 0
        offset += self._read("I", offset)
        count = self._read("I", offset)
        if offset + 4 + count * size_bytes > len(self._data):
            raise ModelError(f"is damaged: a vector at byte {offset} reaches beyond its end")
        if is_bounded and count > MAX_ITEMS:
            raise ModelError(f"has a vector of {count} elements at byte {offset}, more than {MAX_ITEMS}")
        return offset + 4, count

    def _read(self, code: str, offset: int) -> Any:
        return _read(self._data, code, offset)


def _read(data: memoryview, code: str, offset: int) -> Any:
    if not 0 <= offset <= len(data) - struct.calcsize(f"<{code}"):
        raise ModelError(f"is damaged: it points to byte {offset} of {len(data)}")
    return struct.unpack_from(f"<{code}", data, offset)[0]
