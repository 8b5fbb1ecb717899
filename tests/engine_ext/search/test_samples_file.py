"""Files of profiled layers: what is written is read again, cut lines are dropped, other files are refused."""

import math
from pathlib import Path
from typing import Any

import pytest

from walle.engine_ext.search.layers import Layer
from walle.engine_ext.search.samples_file import Sample, SampleSet, SamplesFile, SamplesFileError, SamplesHead

HEAD = SamplesHead("a CPU", "avx2", "0.1.0", 3)
FIRST = Sample(Layer(64, 3, 224, 2, 7), {"direct(0)": 812.5, "pack": 3.0}, {"direct(0)": "plain>packed"})
SECOND = Sample(Layer(8, 8, 28, 1, 3), {"direct(0)": 20.25, "winograd(4)": 9.5}, {"winograd(4)": "packed>packed"})


def written(path: Path, *samples: Sample) -> Path:
    with SamplesFile.open(path, HEAD) as file:
        for sample in samples:
            file.append(sample)
    return path


def test_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = SampleSet.read(written(tmp_path / "new" / "s.jsonl", FIRST, SECOND))
    assert (found.head, found.samples) == (HEAD, [FIRST, SECOND])
    assert found.layers == [FIRST.layer, SECOND.layer]
    assert found.primitives == ["direct(0)", "pack", "winograd(4)"]
    assert found.times[0][:2] == [812.5, 3.0]
    assert math.isnan(found.times[0][2])
    assert math.isnan(found.times[1][1])


def test_a_primitive_of_earlier_layers_that_a_layer_lacks_is_null(tmp_path: Path) -> None:
    lines = written(tmp_path / "s.jsonl", FIRST, SECOND).read_text().splitlines()
    assert '"us": {"direct(0)": 20.25, "pack": null, "winograd(4)": 9.5}' in lines[2]


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_cut_last_line_is_dropped_and_the_file_continued(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "s.jsonl", FIRST, SECOND)
    path.write_bytes(path.read_bytes()[:-cut])
    assert SampleSet.read(path).samples == [FIRST]
    with SamplesFile.open(path, HEAD) as file:
        assert file.samples == [FIRST]
        file.append(SECOND)
    assert SampleSet.read(path).samples == [FIRST, SECOND]


def test_a_cut_head_begins_again(tmp_path: Path) -> None:
    path = written(tmp_path / "s.jsonl")
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(SamplesFileError, match="not a file of samples"):
        SampleSet.read(path)
    assert SampleSet.read(written(path, SECOND)).samples == [SECOND]


@pytest.mark.parametrize("field", SamplesHead._fields)
def test_a_file_of_another_head_is_refused_and_kept(tmp_path: Path, field: str) -> None:
    path = written(tmp_path / "s.jsonl", FIRST)
    before = path.read_bytes()
    changed: dict[str, Any] = {field: 4 if field == "seed" else "other"}
    other = HEAD._replace(**changed)
    with pytest.raises(SamplesFileError, match=rf"s\.jsonl: was measured with {field} .*--output"):
        SamplesFile.open(path, other)
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["notes", "notes\n", '{"format": 2}\n', '{"format": 1, "cpu": "a"}\n', "[1]\n"])
def test_a_file_of_something_else_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(SamplesFileError, match="not a file of samples"):
        SamplesFile.open(path, HEAD)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "line",
    [
        "{}", "x", "[]",
        '{"layer": [1, 2, 3, 4], "us": {}, "layouts": {}}',
        '{"layer": [1, 2, 3, 4, 0], "us": {}, "layouts": {}}',
        '{"layer": [1, 2, 3, 4, 5], "us": {"a": -1}, "layouts": {}}',
        '{"layer": [1, 2, 3, 4, 5], "us": {"a": NaN}, "layouts": {}}',
        '{"layer": [1, 2, 3, 4, 5], "us": {}, "layouts": {"a": 1}}',
    ],
)  # fmt: skip
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "s.jsonl", FIRST)
    path.write_text(path.read_text() + line + "\n")
    for read in (SampleSet.read, lambda one: SamplesFile.open(one, HEAD)):
        with pytest.raises(SamplesFileError, match=r"s\.jsonl: line 3 is not a sample"):
            read(path)


def test_one_process_appends_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with SamplesFile.open(path, HEAD), pytest.raises(SamplesFileError, match="another process"):
        SamplesFile.open(path, HEAD)
    SamplesFile.open(path, HEAD).__exit__()
