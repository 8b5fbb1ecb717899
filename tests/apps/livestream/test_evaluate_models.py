"""The evaluation of the models: its labels, counts and intervals, and a short run on real clips."""

import itertools
import json
import math
import sys
from pathlib import Path

import pytest

from apps.livestream import evaluate_models
from apps.livestream.evaluate_models import (
    LABELS_PATH,
    Counts,
    against_labels,
    evaluate,
    faces,
    labelled_windows,
    lines,
    nobody,
    precision_and_recall,
)
from apps.livestream.intervals import block_bootstrap, wilson
from tests.apps.livestream.conftest import DATA
from walle.model_files import ModelFolder


def test_wilsons_interval_has_its_published_values() -> None:
    published = {
        (0, 10): (0.0, 0.2775),
        (10, 10): (0.7225, 1.0),
        (81, 263): (0.2553, 0.3662),
    }  # the last: Newcombe 1998
    for (successes, trials), interval in published.items():
        assert list(wilson(successes, trials)) == pytest.approx(list(interval), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    for successes, trials in itertools.product(range(5), [4, 9, 100]):
        low, high = wilson(successes, trials)
        assert 0 <= low <= successes / trials <= high + 1e-12 <= 1 + 1e-12


def test_the_bootstrap_resamples_neighbours_together() -> None:
    independent = block_bootstrap([True, False] * 200)
    runs = block_bootstrap(([True] * 40 + [False] * 40) * 5)
    assert independent == pytest.approx((0.5, 0.5), abs=0.02)
    assert runs[1] - runs[0] > 0.3
    assert block_bootstrap([]) == (0.0, 1.0)
    assert block_bootstrap([True] * 5) == (1.0, 1.0)


def test_counts_are_matched_by_number() -> None:
    counts = Counts()
    for found, labelled in ((3, 2), (1, 3), (0, 0), (2, 2)):
        counts.add(found, labelled)
    row = counts.row()
    assert (row["precision"]["count"], row["precision"]["of"]) == (5, 6)
    assert (row["recall"]["count"], row["recall"]["of"]) == (5, 7)
    assert Counts().row() == {"precision": None, "recall": None}


def test_windows_with_both_labels_are_left_out(tmp_path: Path) -> None:
    entry = {"wav": {"start": 0, "stop": 16_000}, "speech": "0.25 0.5"}
    (tmp_path / "labels.json").write_text(json.dumps({"a": entry, "b": {**entry, "speech": ""}}))
    windows = labelled_windows(tmp_path / "labels.json")
    assert len(windows) == 62
    assert windows[6:9] == [False, None, True]  # 0.25 s is in window 7, which begins at 0.224 s
    assert windows[31:].count(False) == 31
    right = against_labels([0.1] * 62 + [0.9], windows)
    assert len(right) == 62 - windows.count(None)
    assert right.count(False) == windows.count(True)


def test_precision_and_recall_are_of_the_labelled_windows() -> None:
    found = precision_and_recall([0.9, 0.9, 0.1, 0.9, 0.2, 0.9], [True, False, True, None, False])
    assert [(found[key]["count"], found[key]["of"]) for key in ("precision", "recall")] == [(1, 2), (1, 2)]
    assert precision_and_recall([0.1], [False]) == {"precision": None, "recall": None}


@pytest.mark.asyncio
async def test_scenes_without_a_person_are_counted(models: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av", reason="PyAV, which reads the pictures, is not installed")
    monkeypatch.setattr(evaluate_models, "NOBODY", ("chelsea.png", "astronaut.png"))  # the second has a person
    rows = {(row["model"], row["files"]): row["false_frames"] for row in await nobody(DATA, models)}
    found = rows["nanodet", "photographs without a person"], rows["yunet", "photographs without a person"]
    assert [(one["count"], one["of"]) for one in found] == [(1, 2), (1, 2)]
    assert rows["yunet", "plain grey frames"]["count"] == 0


def test_labels_name_each_second_of_known_clips() -> None:
    labels = json.loads(LABELS_PATH.read_text())
    assert labels["rule"]
    assert {*labels["no_person"], *labels["bottles"]} <= labels["faces"].keys()
    for numbers in labels["faces"].values():
        assert all(one is None or one >= 0 for one in numbers)


@pytest.mark.asyncio
async def test_faces_of_real_clips_are_counted(models: ModelFolder) -> None:
    pytest.importorskip("av", reason="PyAV, which reads the clips, is not installed")
    labels = {"faces": {"asl_thanks.mkv": [1, 1], "asl_book.mkv": [1, None, 1, 2]}}
    rows = await faces(DATA, models, labels, "yunet")
    assert [row["files"] for row in rows] == ["asl_thanks.mkv", "asl_book.mkv", "all"]
    assert (rows[-1]["precision"]["share"], rows[-1]["recall"]["of"]) == (1.0, 6)
    assert math.isclose(rows[-1]["recall"]["share"], 5 / 6)
    assert "recall: 83.3 % (5 of 6; " in lines(rows)[-1]
    with pytest.raises(ValueError, match="zip"):  # labels for another number of seconds are noticed
        await faces(DATA, models, {"faces": {"asl_thanks.mkv": [1]}}, "yunet")


@pytest.mark.asyncio
async def test_without_pyav_the_error_says_how_to_install_it(
    models: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)  # makes its import fail
    with pytest.raises(evaluate_models.EvaluationError, match="pip install 'av"):
        await evaluate(DATA, models, models)
