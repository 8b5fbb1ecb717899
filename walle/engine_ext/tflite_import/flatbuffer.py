"""Tables of a FlatBuffer, read by the numbers of their fields; a place outside the file is an error."""

import struct
from typing import Any

from walle.engine_ext.errors import ModelError

MAX_ITEMS = 20_000  # elements of one vector of tables or numbers


class Table:
    """A table of `data`. A field that is absent has its default. Texts, numbers and bytes are copied when read.

    Raises, from every method:
        ModelError: the file is damaged, or a vector has more than MAX_ITEMS elements.
    """

    def __init__(self, data: memoryview, place: int) -> None:
        self._data = data
        self._place = place
        self._fields = place - self._read("i", place)
        self._end = self._read("H", self._fields)

    @classmethod
    def root(cls, data: memoryview) -> "Table":
        """Return the table that the file begins with."""
        return cls(data, _read(data, "I", 0))

    def number(self, field: int, code: str, default: float = 0) -> Any:
        """Return a number of the `struct` format `code`."""
        place = self._at(field)
        return self._read(code, place) if place else default

    def table(self, field: int) -> "Table":
        """Return a table; its absence is an error."""
        place = self._at(field)
        if not place:
            raise ModelError(f"is damaged: field {field} is missing at byte {self._place}")
        return Table(self._data, place + self._read("I", place))

    def tables(self, field: int) -> "list[Table]":
        start, count = self._vector(field, 4)
        places = range(start, start + 4 * count, 4)
        return [Table(self._data, place + self._read("I", place)) for place in places]

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
        """Return the bytes of a vector, which is bounded by the file alone and not copied."""
        start, count = self._vector(field, 1, is_bounded=False)
        return self._data[start : start + count]

    def _at(self, field: int) -> int:
        """Return the place of a field, 0 where it is absent."""
        offset = 4 + 2 * field
        found = self._read("H", self._fields + offset) if offset < self._end else 0
        return self._place + found if found else 0

    def _vector(self, field: int, size_bytes: int, *, is_bounded: bool = True) -> tuple[int, int]:
        """Return where a vector's elements begin, and their count."""
        place = self._at(field)
        if not place:
            return 0, 0
        place += self._read("I", place)
        count = self._read("I", place)
        if place + 4 + count * size_bytes > len(self._data):
            raise ModelError(f"is damaged: a vector at byte {place} reaches beyond its end")
        if is_bounded and count > MAX_ITEMS:
            raise ModelError(f"has a vector of {count} elements at byte {place}, more than {MAX_ITEMS}")
        return place + 4, count

    def _read(self, code: str, place: int) -> Any:
        return _read(self._data, code, place)


def _read(data: memoryview, code: str, place: int) -> Any:
    if not 0 <= place <= len(data) - struct.calcsize(f"<{code}"):
        raise ModelError(f"is damaged: it points to byte {place} of {len(data)}")
    return struct.unpack_from(f"<{code}", data, place)[0]
