"""Options of tables: what is made from a field's declaration."""

import dataclasses
import re
from typing import ClassVar

import pytest

from walle.protocol import ProtocolError, options_of
from walle.protocol.options import OptionTable, flag, number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Shelf(OptionTable):
    SECTION: ClassVar = "shelf"
    OTHERS: ClassVar = ("name",)

    size_kb: int = number(3, 1, 9, "size of the shelf", key="size", always_written=True)
    is_open: bool = flag(False, "whether it is open")


def test_a_field_is_all_that_an_option_needs() -> None:
    assert _Shelf.KEYS == ("name", "size", "is_open")
    assert (_Shelf().to_json(), _Shelf(size_kb=4, is_open=True).to_json()) == (
        {"size": 3},
        {"size": 4, "is_open": True},
    )
    assert _Shelf.parse({"name": "a", "is_open": True}) == _Shelf(is_open=True)
    size = options_of(_Shelf)["size"]
    assert (size.shown_default, size.values, size.meaning) == ("3", "1, 9", "size of the shelf")
    for table, error in (
        ({"size": 10}, "shelf.size: must be a whole number from 1 to 9, is 10"),
        ({"size": True}, "shelf.size: must be a whole number from 1 to 9, is True"),
        ({"is_open": 1}, "shelf.is_open: must be true or false, is 1"),
        ({"size_kb": 1}, "shelf: has an unknown key 'size_kb'; known are name, size, is_open"),
    ):
        with pytest.raises(ProtocolError, match=re.escape(error)):
            _Shelf.parse(table)
