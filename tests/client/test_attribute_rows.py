"""Files of attributes as JSON lines: CSV by the declared types, Parquet, and lines that cannot be read."""

import datetime
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from walle.client.attribute_rows import AttributeRowsError, read_rows

COLUMNS = {"group": "string", "age": "int", "score": "double", "is_member": "bool"}
ROWS = [
    {"user": "anna", "group": 'a, "b"', "age": 30, "score": 0.5, "is_member": True},
    {"user": "bert", "is_member": False},
]
CSV = '\ufeffuser,group,age,score,is_member\nanna,"a, ""b""",30,0.5,yes\n\nbert,,,,FALSE\n'


def rows_of(path: Path, key: str = "user") -> list[object]:
    return [json.loads(line) for line in b"".join(read_rows(path, key, COLUMNS)).splitlines()]


def test_each_kind_of_file_gives_the_same_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\r\n" for row in ROWS))
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        assert rows_of(tmp_path / name) == ROWS


def test_a_large_file_comes_in_pieces_of_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,age\n" + "".join(f"user-{number},{number}\n" for number in range(40_000)))
    pieces = list(read_rows(tmp_path / "a.csv", "user", COLUMNS))
    assert len(pieces) > 3
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert b"".join(pieces).count(b"\n") == 40_000


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("id,age\na,1\n", "has no column 'user'"),
        ("", "has no column 'user'"),
        ("user,color\na,red\n", "column 'color' is not declared in [uploaded]"),
        ("user,age,age\na,1,1\n", "two columns have the same name"),
        ("user,age\na,1\nb,x\n", "line 3: age is 'x', which is not of type int"),
        ("user,is_member\na,maybe\n", "line 2: is_member is 'maybe', which is not of type bool"),
        ("user,age\na\n", "line 2: has 1 cells, and the first line 2"),
        ('user,age\n"a"b,1\n', "line 2: "),
    ],
)
def test_a_row_that_cannot_be_read_is_refused_with_its_line(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(AttributeRowsError, match=re.escape(what)):
        rows_of(path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    for name, data, what in [
        ("a.xlsx", b"", "its ending is unknown; a table is .csv, .parquet or .jsonl"),
        ("a.csv", b"user\n\xff\n", "is not UTF-8"),
        ("a.parquet", b"not parquet", "a.parquet: "),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(AttributeRowsError, match=re.escape(what)):
            rows_of(tmp_path / name)


def test_a_value_of_a_foreign_type_goes_as_text_which_the_cloud_refuses(tmp_path: Path) -> None:
    day = datetime.date(2026, 11, 23)
    parquet.write_table(pa.Table.from_pylist([{"user": "a", "age": day}]), tmp_path / "a.parquet")
    assert rows_of(tmp_path / "a.parquet") == [{"user": "a", "age": "2026-11-23"}]
