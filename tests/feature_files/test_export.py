"""Files of features: columns of nested payloads, each form, and exports that were cut."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from walle.feature_files import Export, ExportError, cell_of_text, export, form_of, text_of_cell
from walle.feature_files.columns import FIXED, MAX_COLUMNS, Columns
from walle.feature_files.csv_cells import cell_of_json

WHAT = {"source": "here", "task": "shop/visits"}


def feature(position: int, payload: Any, **more: Any) -> dict[str, Any]:
    return {
        "position": position,
        "time": "2023-11-14T22:13:20.123Z",
        "device": "phone",
        "task": "shop/visits",
        "topic": "shop/visits",
        "page": "item/7",
        "sent_ms": 5,
        "received_ms": 6,
        "payload": payload,
        **more,
    }


FEATURES = [
    feature(1, {"page": "item/7", "clicks": 2, "item": {"price": 1.5, "a.b": True}, "list": [1, {"x": 2}]}),
    feature(3, {"page": 'quoted "x",\n', "clicks": 2.5, "item": {"price": 2}, "raw": {"$bytes": "AP8="}}),
    feature(4, [1, 2]),
    feature(9, None, error="cannot be decoded"),
    feature(10, {"clicks": {"$float": "nan"}, "large": 2**62, "mixed": 1}),
    feature(11, {"large": 0.5, "mixed": "text", "nothing": None, "empty": {}}),
]


def write(path: Path, features: list[dict[str, Any]]) -> Path:
    with Export(path, WHAT) as exporting:
        exporting.add(features, 100)
        exporting.finish()
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600
    return path


def test_json_lines_are_the_features(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", FEATURES)
    assert [json.loads(line) for line in path.read_text().splitlines()] == FEATURES


def test_csv_has_a_column_for_each_field(tmp_path: Path) -> None:
    with write(tmp_path / "f.csv", FEATURES).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[: len(FIXED)] == list(FIXED)
    assert list(rows[0])[len(FIXED) :] == [
        "payload.page", "payload.clicks", "payload.item.price", r"payload.item.a\.b", "payload.list", "payload.raw",
        "payload", "payload.large", "payload.mixed", "payload.empty",
    ]  # fmt: skip
    assert rows[0]["payload.page"] == "item/7"
    assert rows[1]["payload.page"] == 'quoted "x",\n'
    assert [row["payload.clicks"] for row in rows] == ["2.0", "2.5", "", "", "nan", ""]
    assert [row["payload.item.price"] for row in rows[:3]] == ["1.5", "2.0", ""]
    assert rows[0][r"payload.item.a\.b"] == "true"
    assert rows[0]["payload.list"] == '[1,{"x":2}]'
    assert rows[1]["payload.raw"] == '{"$bytes":"AP8="}'
    assert rows[2]["payload"] == "[1,2]"
    assert (rows[3]["error"], rows[3]["position"]) == ("cannot be decoded", "9")
    assert [row["payload.large"] for row in rows[4:]] == [str(2**62), "0.5"]  # text: no float has both
    assert [row["payload.mixed"] for row in rows[4:]] == ["1", "text"]
    assert rows[5]["payload.empty"] == "{}"


HOSTILE = [
    "=cmd|'/C calc'!A0", "+1+cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!A0", "@SUM(1+1)*cmd|' /C calc'!A0",
    '=HYPERLINK("http://127.0.0.1/"&A1,"x")', "\t=1+1", "\r=1+1", "\n=1+1", "\ttext", "\rtext", "  =1+1", "\ufeff=1+1",
    "\x00=1+1", "\u200b=1+1", "\xa0=1+1", "＝1+1", "＋1+1", "－1+1", "＠SUM(1)", "'\t=1", "-1.5", "+49 30 1234",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("place", ["payload", "field", "device", "page", "error", "mixed"])
def test_no_text_begins_as_a_formula_in_csv(tmp_path: Path, text: str, place: str) -> None:
    found = feature(1, {"payload": text, "field": {"name": text}, "mixed": {"name": text}}.get(place, {"name": 1}))
    found |= {place: text} if place in ("device", "page", "error") else {}
    others = [feature(2, {"name": -1})] if place == "mixed" else []
    with write(tmp_path / "f.csv", [found, *others]).open(newline="") as file:
        head, row, *rest = csv.reader(file)
    column = {"payload": "payload", "field": "payload.name", "mixed": "payload.name"}.get(place, place)
    cell = row[head.index(column)]
    assert cell.startswith("'")
    assert text_of_cell(cell) == text
    if rest:
        assert rest[0][head.index(column)] == "-1"  # a number in a column of text


def test_the_case_of_a_formula_is_a_text(tmp_path: Path) -> None:
    case = Path(__file__).parents[3] / "shared" / "cases" / "security" / "csv_formula.json"
    if not case.exists():
        pytest.skip(f"{case} is not here: the folder of cases is beside the checkout")
    payload = json.loads(case.read_text())
    with write(tmp_path / "f.csv", [feature(1, payload)]).open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["payload.name"] == f"'{payload['name']}"


def test_names_of_columns_are_no_formulas_and_numbers_stay_numbers(tmp_path: Path) -> None:
    payload = {"=1+1": -1.5, "@x": -2, "\t=y": True, "plain": "a-b", "quoted": "'a"}
    with write(tmp_path / "f.csv", [feature(1, payload)]).open(newline="") as file:
        head, row = csv.reader(file)
    assert not [name for name in head if name[:1] in "=+-@\t\r\n'"]
    assert row[len(FIXED) - 1 :] == ["", "-1.5", "-2", "true", "a-b", "'a"]


@pytest.mark.parametrize(
    "text",
    [
        "a;=1+1;b",
        ";=1+1",
        'a;"=1+1;b',
        "a; '=1+1;b",
        "a\n=1+1\nb",
        "\n=1+1\n",
        "a\r\n@SUM(1);",
        "a;\u200b＝1;",
        "a\t-1",
    ],
)
def test_no_cell_begins_as_a_formula_where_the_reader_splits_at_semicolons(tmp_path: Path, text: str) -> None:
    payload = {"name": text, text: 1, "list": [text], "mixed": [text], "number": -1.5}
    path = write(tmp_path / "f.csv", [feature(1, payload, page=text), feature(2, {"mixed": "x"})])
    for delimiter in (";", "\t"):
        with path.open(newline="") as file:
            cells = [cell for line in file.read().splitlines() for cell in line.split(delimiter)]
        shown = [cell.lstrip('"\u200b ') for cell in cells]
        assert [cell for cell in shown if cell.startswith(tuple("=+-@＝＋－＠"))] == []
    with path.open(newline="") as file:
        row = next(csv.DictReader(file))
    assert text_of_cell(row["payload.name"]) == text_of_cell(row["page"]) == text
    assert row[cell_of_text(rf"payload.{text}")] == "1"
    assert json.loads(row["payload.list"]) == json.loads(row["payload.mixed"]) == [text]
    assert row["payload.number"] == "-1.5"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("part", ["\n", ";", "; ", "'", '"\t', "a;"])
def test_a_cell_takes_time_in_proportion_to_its_text(part: str) -> None:
    text = part * (1_000_000 // len(part)) + "x"
    assert text_of_cell(cell_of_text(text)) == text
    cell_of_json(json.dumps(text, ensure_ascii=False))


@given(st.text(alphabet=st.one_of(st.sampled_from("'=+-@\t\r\n ＝;\""), st.characters(codec="utf-8"))))
def test_each_text_is_read_back_from_its_cell(text: str) -> None:
    cell = cell_of_text(text)
    assert text_of_cell(cell) == text
    assert not cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r"))


def test_parquet_has_typed_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_ROWS", 2)
    table = parquet.read_table(write(tmp_path / "f.parquet", FEATURES))
    types = {field.name: str(field.type) for field in table.schema}
    assert (types["position"], types["received_ms"], types["device"]) == ("int64", "int64", "string")
    assert types["payload.clicks"] == types["payload.item.price"] == "double"
    assert types[r"payload.item.a\.b"] == "bool"
    assert types["payload.large"] == types["payload.mixed"] == types["payload"] == "string"
    rows = table.to_pylist()
    assert [row["position"] for row in rows] == [1, 3, 4, 9, 10, 11]
    assert [row["payload.item.price"] for row in rows] == [1.5, 2.0, None, None, None, None]
    assert rows[0][r"payload.item.a\.b"] is True
    assert rows[1]["payload.page"] == 'quoted "x",\n'


@pytest.mark.parametrize("name", ["f.jsonl", "f.csv", "f.parquet"])
def test_an_export_of_nothing_is_a_file(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, [])
    if name.endswith(".csv"):
        assert path.read_text() == ",".join(FIXED) + "\n"
    elif name.endswith(".parquet"):
        assert parquet.read_table(path).num_rows == 0
    else:
        assert path.read_bytes() == b""


def test_columns_are_bounded_and_names_do_not_collide() -> None:
    columns = Columns()
    wide = feature(1, {f"f{number}": number for number in range(MAX_COLUMNS + 5)})
    odd = feature(2, {"*": 1, "a": {"b": 1}, "a.b": 2, "a\\": {"b": 3}})
    columns.see(odd)
    columns.see(wide)
    assert len(columns.kinds) == len(FIXED) + MAX_COLUMNS + 1
    row = columns.row(wide)
    others = json.loads(row["more"])
    assert len(others) == 5 + 4
    assert others["payload.f1000"] == 1000
    assert [name for name in columns.row(odd) if name.startswith("payload")] == [
        "payload.*", "payload.a.b", r"payload.a\.b", r"payload.a\\.b"
    ]  # fmt: skip


def test_an_export_that_was_cut_continues_after_its_last_whole_line(tmp_path: Path) -> None:
    path, spool = tmp_path / "f.jsonl", tmp_path / "f.jsonl.part"
    with Export(path, WHAT) as exporting:
        exporting.add(FEATURES[:3], 4)
    assert not path.exists()
    whole = spool.read_bytes()
    spool.write_bytes(whole + b'{"position": 9, "pay')
    with Export(path, WHAT) as exporting:
        assert (exporting.position, exporting.features) == (4, 3)
        assert spool.read_bytes() == whole
        exporting.add(FEATURES[3:], 11)
        exporting.finish()
    assert [json.loads(line) for line in path.read_text().splitlines()] == FEATURES
    assert not spool.exists()


@pytest.mark.parametrize("cut", [0, 1, 20])
def test_a_spool_that_was_cut_in_its_first_line_begins_again(tmp_path: Path, cut: int) -> None:
    with Export(tmp_path / "f.csv", WHAT):
        pass
    spool = tmp_path / "f.csv.part"
    spool.write_bytes(spool.read_bytes()[:cut])
    with Export(tmp_path / "f.csv", WHAT) as exporting:
        assert exporting.position == 0


def test_an_export_that_is_killed_while_it_writes_leaves_no_half_file(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from walle.feature_files import Export, export
from tests.feature_files.test_export import FEATURES, WHAT

def die(*_): os._exit(9)

export.os.link = die  # the file is written, and does not have its name yet
with Export(Path(sys.argv[1]), WHAT) as exporting:
    exporting.add(FEATURES, 100)
    exporting.finish()
"""
    path = tmp_path / "f.csv"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=root, check=False)
    assert done.returncode == 9
    assert not path.exists()
    with Export(path, WHAT) as exporting:
        assert exporting.features == len(FEATURES)
        exporting.finish()
    assert len(path.read_text().splitlines()) == len(FEATURES) + 2  # the head, and a line break within a text


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there.csv").write_text("mine")
    with pytest.raises(ExportError, match="exists already"), Export(tmp_path / "there.csv", WHAT):
        pass
    with (
        Export(tmp_path / "f.csv", WHAT),
        pytest.raises(ExportError, match="another export is writing"),
        Export(tmp_path / "f.csv", WHAT),
    ):
        pass
    with pytest.raises(ExportError, match="rest of another export"), Export(tmp_path / "f.csv", {"source": "there"}):
        pass
    with pytest.raises(ExportError, match=r"must end in \.jsonl"):
        form_of(tmp_path / "f.xlsx")
    with Export(tmp_path / "g.csv", WHAT) as exporting:
        (tmp_path / "g.csv").write_text("of another program")
        with pytest.raises(ExportError, match=r"kept in g\.csv\.part"):
            exporting.finish()
    assert (tmp_path / "g.csv").read_text() == "of another program"
    assert not (tmp_path / "g.csv.tmp").exists()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet")
    with pytest.raises(ExportError, match=r"pip install '.+\[parquet\]'"):
        form_of(tmp_path / "f.parquet")


def test_a_full_disk_is_an_error_that_says_how_to_continue(tmp_path: Path) -> None:
    with Export(tmp_path / "f.csv", WHAT) as exporting:
        exporting.add(FEATURES[:1], 1)
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, exporting._handle)
        os.close(full)
        with pytest.raises(ExportError, match=r"No space left on device.*give the same command again"):
            exporting.add(FEATURES[1:], 2)
    with Export(tmp_path / "f.csv", WHAT) as exporting:
        assert exporting.position == 1
