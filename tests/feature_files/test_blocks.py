"""Columns of features a page at a time, against the same features one after the other."""

import array
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.feature_files.test_export import FEATURES, WHAT, feature
from walle.base import plain
from walle.base.plain_json import to_json
from walle.feature_files import Export, ExportError
from walle.feature_files.columns import FIXED, MAX_COLUMNS, OTHERS, Columns
from walle.pipeline.ingest.store.feature_columns import feature_columns
from walle.pipeline.ingest.store.feature_reader import feature_row
from walle.pipeline.ingest.store.upload_columns import upload_columns
from walle.pipeline.tunnel.received import Received

_LEAVES = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 7, -3, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**64 - 1])
    | st.sampled_from([0.5, -1.0, 1e300, math.nan, math.inf])
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.lists(st.integers(0, 3) | st.just(math.nan) | st.binary(max_size=1), max_size=2)
)
_KEYS = st.sampled_from(["a", "b", "c", "a.b", "\\", "$float", "$bytes"])
_PAYLOADS = st.recursive(_LEAVES, lambda inner: st.dictionaries(_KEYS, inner, max_size=4), max_leaves=6)


def one_by_one(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the values of each row by the columns that have one, by the rules of `Columns`."""
    columns = Columns()
    for row in rows:
        columns.see(row)
    return [columns.row(row) for row in rows]


def read(path: Path) -> list[dict[str, Any]]:
    rows = parquet.read_table(path).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def assert_equal(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for rows in (found, expected):
        for row in rows:
            if OTHERS in row:  # an object, whose fields may be in another order
                row[OTHERS] = json.loads(row[OTHERS])
    assert repr([dict(sorted(row.items())) for row in found]) == repr([dict(sorted(row.items())) for row in expected])


def uploads_of(payloads: Sequence[Any]) -> list[tuple[int, Received]]:
    return [
        (
            at,
            Received(
                "phone", "e", at, "shop/visits", plain.encode(payload), at, 1000 * at + at, version="v1" * (at % 2)
            ),
        )
        for at, payload in enumerate(payloads, 1)
    ]


@settings(deadline=None)
@given(st.lists(st.lists(_PAYLOADS, max_size=4), max_size=4))
def test_pages_of_columns_make_the_table_that_single_features_make(
    tmp_path_factory: pytest.TempPathFactory, pages: list[list[Any]]
) -> None:
    folder = tmp_path_factory.mktemp("export")
    uploads = uploads_of([payload for page in pages for payload in page])
    rows = [feature_row(*one) for one in uploads]
    with Export(folder / "raw.parquet", WHAT) as raw, Export(folder / "json.parquet", WHAT) as as_json:
        for page in pages:
            part = uploads[raw.features : raw.features + len(page)]
            after = part[-1][0] if part else raw.position
            as_json.add([feature_row(*one) for one in part], after)
            raw.add_columns(*feature_columns(upload_columns(part)), after)
        raw.finish()
        as_json.finish()
    expected = one_by_one(rows)
    for name in ("raw", "json"):
        found = read(folder / f"{name}.parquet")
        assert_equal(found, [{**row} for row in expected])
    kinds = Columns()
    for row in rows:
        kinds.see(row)
    names = parquet.read_schema(folder / "raw.parquet").names
    assert sorted(names) == sorted(kinds.kinds)
    assert names[: len(FIXED)] == list(FIXED)


def test_columns_of_uploads_are_the_fields_of_their_rows() -> None:
    payloads = [{"page": "p"}, {"page": 5, "page_id": "q"}, [1], {"x": array.array("b", bytes(1 << 20))}, {"x": b"y"}]
    uploads = uploads_of(payloads)
    times = [0, 999, 1_700_000_000_123, -5, 1 << 62]
    uploads = [(at, one._replace(received_ms=ms)) for (at, one), ms in zip(uploads, times, strict=True)]
    uploads.append((9, Received("d", "e", 9, "t", b"\xc1", 1, 1)))
    fields, decoded = feature_columns(upload_columns(uploads))
    for number, one in enumerate(uploads):
        row = feature_row(*one)
        assert {name: fields[name][number] for name in FIXED} == {"error": None} | {
            name: row.get(name) for name in FIXED
        }
        assert row["payload"] == (None if row.get("error") else to_json(decoded[number]))
    assert [error is None for error in fields["error"]] == [True, True, True, False, True, False]
    assert feature_columns(upload_columns([])) == ({}, [])


def test_a_block_that_was_cut_is_exported_again(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    with Export(path, WHAT) as first:
        first.add(FEATURES[:2], 3)
        first.add(FEATURES[2:4], 9)
    spool = tmp_path / "f.parquet.part"
    whole = spool.read_bytes()
    for cut in (1, 9, 200):
        spool.write_bytes(whole[:-cut])
        with Export(path, WHAT) as second:
            assert (second.position, second.features) == (3, 2)
            second.add(FEATURES[2:4], 9)
            assert spool.read_bytes() == whole
    with Export(path, WHAT) as last:
        assert (last.position, last.features) == (9, 4)
        last.add(FEATURES[4:], 11)
        last.finish()
    assert_equal(read(path), one_by_one(FEATURES))
    assert list(tmp_path.iterdir()) == [path]


def test_a_spool_of_lines_of_an_older_walle_is_not_read_as_blocks(tmp_path: Path) -> None:
    lines = [{"walle_export": 1, **WHAT}, *FEATURES]
    (tmp_path / "f.parquet.part").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ExportError, match="is the rest of another export"), Export(tmp_path / "f.parquet", WHAT):
        pass


def test_fields_beyond_the_bound_are_together_in_one_column_in_all_pages(tmp_path: Path) -> None:
    rows = [
        feature(1, {f"c{number}": number for number in range(MAX_COLUMNS - 1)}),
        feature(2, {"late": None, "later": 1, "last": 2, "c3": 7}),
        feature(3, {"late": "x", "later": 2, "last": None}),
    ]
    with Export(tmp_path / "f.parquet", WHAT) as exporting:
        for row in rows:
            exporting.add([row], row["position"])
        exporting.finish()
    found = read(tmp_path / "f.parquet")
    assert_equal(found, one_by_one(rows))
    assert [row.get(OTHERS) for row in found] == [None, {"payload.last": 2}, {"payload.late": "x"}]


@pytest.mark.parametrize("payload", [{"$float": None}, {"$float": "x"}, {"$float": {"a": 1}}, {"$bytes": 5}])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_with_a_reserved_key_is_exported(tmp_path: Path, form: str, payload: Any) -> None:
    with Export(tmp_path / f"f.{form}", WHAT) as exporting:
        exporting.add([feature(1, payload), feature(2, {"$float": "nan"})], 2)
        exporting.finish()
    assert (tmp_path / f"f.{form}").stat().st_size


def test_a_version_is_a_column(tmp_path: Path) -> None:
    with Export(tmp_path / "f.parquet", WHAT) as exporting:
        exporting.add_columns(*feature_columns(upload_columns(uploads_of([1, 2]))), 2)
        exporting.finish()
    table = parquet.read_table(tmp_path / "f.parquet")
    assert table.column("version").to_pylist() == ["v1", ""]
    assert table.column("task").to_pylist() == ["shop/visits"] * 2


def test_columns_whose_values_seldom_repeat_have_no_dictionary(tmp_path: Path) -> None:
    with Export(tmp_path / "f.parquet", WHAT) as exporting:
        exporting.add_columns(*feature_columns(upload_columns(uploads_of([{"a": "x"}, {"a": "x"}]))), 2)
        exporting.finish()
    group = parquet.read_metadata(tmp_path / "f.parquet").row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    plain_names = {one.path_in_schema for one in columns if not one.has_dictionary_page}
    assert plain_names == {"position", "time", "sent_ms", "received_ms"}
