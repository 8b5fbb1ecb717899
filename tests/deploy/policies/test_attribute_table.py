"""Tables of uploaded attributes: what is put is found, and what cannot be taken or is damaged is refused."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walle.deploy.policies import attribute_table
from walle.deploy.policies.attribute_schema import ColumnType
from walle.deploy.policies.attribute_table import AttributeTable, AttributeTableError, TableFacts, write_table

COLUMNS = {
    "group": ColumnType.STRING,
    "age": ColumnType.INT,
    "score": ColumnType.DOUBLE,
    "is_member": ColumnType.BOOL,
}
KEY = "device_id"


def lines_of(rows: dict[str, dict[str, Any]], key: str = KEY) -> bytes:
    return b"".join(json.dumps({key: one, **row}).encode() + b"\n" for one, row in rows.items())


def write(path: Path, lines: bytes, key: str = KEY) -> TableFacts:
    with path.open("wb") as out:
        return write_table(io.BytesIO(lines), out, key=key, columns=COLUMNS, put_s=1.5, put_by="anna")


_rows = st.dictionaries(
    st.text(st.characters(exclude_categories=()), min_size=1, max_size=20),  # lone surrogates, too
    st.fixed_dictionaries(
        {},
        optional={
            "group": st.one_of(st.none(), st.sampled_from(["a", "ö𝄞", ""])),
            "age": st.integers(-(1 << 63), (1 << 63) - 1),
            "score": st.floats(allow_nan=False, allow_infinity=False),
            "is_member": st.booleans(),
        },
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(_rows)
def test_each_id_has_its_row_and_others_have_none(tmp_path_factory: pytest.TempPathFactory, rows: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "table"
    facts = write(path, lines_of(rows))
    table = AttributeTable(path)
    assert table.facts == facts
    assert facts.rows == len(rows)
    assert set(facts.columns) == {name for row in rows.values() for name, value in row.items() if value is not None}
    for one, row in rows.items():
        assert table.find(one) == {f"uploaded.{name}": value for name, value in row.items() if value is not None}
        assert not table.find(one + "x") or one + "x" in rows


def test_rows_that_are_equal_are_stored_once(tmp_path: Path) -> None:
    many = {f"d{number}": {"group": f"g{number % 3}", "is_member": True} for number in range(5000)}
    write(tmp_path / "t", lines_of(many))
    table = AttributeTable(tmp_path / "t")
    assert table.size_bytes < 15 * len(many)
    assert all(table.find(one)["uploaded.group"] == row["group"] for one, row in many.items())
    assert not any(one.encode() in (tmp_path / "t").read_bytes() for one in ("d4711", "d1234"))  # no ids in it


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (b"", "there are no rows"),
        (b"\n[1]\n", "line 2: must be an object"),
        (b"{", "line 1: is not JSON"),
        (b"[" * 4000, "line 1: is not JSON"),
        (b'{"age": 3}', "line 1: device_id must be a text"),
        (b'{"device_id": 3}', "line 1: device_id must be a text"),
        (b'{"device_id": ""}', "line 1: device_id must be a text"),
        (b'{"device_id": "a", "os": "x"}', "line 1: 'os' is not declared in the section [uploaded]"),
        (b'{"device_id": "a"}\n{"device_id": "b", "age": "3"}', 'line 2: age is "3", which is not of type int'),
        (b'{"device_id": "a", "score": NaN}', "line 1: score is NaN, which is not of type double"),
        (b'{"device_id": "a", "group": "\\ud800"}', "line 1: group is"),
        (b'{"device_id": "a"}\n\n{"device_id": "b"}\n{"device_id": "a"}', "lines 1 and 4 have the same device_id"),
        (b'{"device_id": "%s"}' % (b"a" * 5000), "line 1: is longer than 4096 bytes"),
    ],
)
def test_rows_that_cannot_be_taken_are_refused_with_the_line(tmp_path: Path, lines: bytes, what: str) -> None:
    with pytest.raises(AttributeTableError) as refused:
        write(tmp_path / "t", lines)
    assert what in str(refused.value)


def test_a_table_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {f"d{number}": {"age": number} for number in range(20)}
    monkeypatch.setattr(attribute_table, "MAX_ROWS", 10)
    with pytest.raises(AttributeTableError, match="line 11: more than 10 rows"):
        write(tmp_path / "t", lines_of(rows))
    monkeypatch.setattr(attribute_table, "MAX_ROWS", 20)
    monkeypatch.setattr(attribute_table, "MAX_VALUES_BYTES", 100)
    with pytest.raises(AttributeTableError, match="more than 100 bytes of distinct rows"):
        write(tmp_path / "t", lines_of(rows))
    monkeypatch.setattr(attribute_table, "MAX_VALUES_BYTES", 1000)
    monkeypatch.setattr(attribute_table, "_SHARED_ROWS", 2)  # later ones are stored each
    write(tmp_path / "t", lines_of(rows))
    assert [AttributeTable(tmp_path / "t").find(one)["uploaded.age"] for one in rows] == list(range(20))


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "t", lines_of({f"d{number}": {"age": number} for number in range(20)}))
    whole = (tmp_path / "t").read_bytes()
    for at in range(0, len(whole), 7):
        (tmp_path / "t").write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(AttributeTableError):
            AttributeTable(tmp_path / "t")
    for length in (0, 10, len(whole) - 1):
        (tmp_path / "t").write_bytes(whole[:length])
        with pytest.raises(AttributeTableError):
            AttributeTable(tmp_path / "t")
