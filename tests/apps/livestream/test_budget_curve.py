"""The table, plot and options of the budget curve; the playing is the player's, with tests of its own."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import av
import cv2
import numpy as np
import pytest

from apps.livestream import budget_curve
from apps.livestream.budget_curve import Point, main, parse_budgets, table, write
from apps.livestream.quality.clip_files import ClipFiles
from apps.livestream.quality.labels import Clip
from walle.errors import ConfigError
from walle.model_files import ModelFolder


def point(budget: float | None, cpu_share: float, recall: float) -> Point:
    scores = {"value": recall, "low": recall - 0.1, "high": recall + 0.1}
    frames = {"analysed": 5, "unchanged": 3, "budget": 2}
    return Point(budget=budget, cpu_share=cpu_share, frames=frames, recall=scores, precision=scores, f1=scores)


def test_the_points_are_a_table_a_plot_and_a_page(tmp_path: Path) -> None:
    points = [point(None, 0.04, 0.5), point(0.0075, 0.013, 0.25)]
    assert table(points).splitlines()[2:] == [
        "| none | 4.00 % | 5, 3, 2 | 0.50 | 0.50 | 0.50 |",
        "| 0.75 % | 1.30 % | 5, 3, 2 | 0.25 | 0.25 | 0.25 |",
    ]
    write(points, tmp_path / "out")
    assert [each["budget"] for each in json.loads((tmp_path / "out/budget_curve.json").read_text())] == [None, 0.0075]
    assert (tmp_path / "out/budget_curve.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out/budget_curve.html").read_text()
    assert "budget_curve.png" in page
    assert "| 0.75 % |" in page


def test_budgets_are_shares_or_none() -> None:
    assert parse_budgets("none, 0.04,1") == [None, 0.04, 1.0]


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "much", "0.1,,0.2", "65"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="give shares of a core"):
        parse_budgets(text)


def test_a_folder_without_clips_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none of the \d+ clips"):
        main(["--clips", str(tmp_path)])


class NoStudio:
    """In place of a cloud and devices: nothing is played."""

    def __init__(self, *_: object) -> None:
        self.devices = [None]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


@pytest.mark.asyncio
async def test_a_crop_is_played_as_the_part_that_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    cv2.imwrite(str(path), np.zeros((36, 64, 3), np.uint8))
    none = {"highlight": frozenset[int](), "face": frozenset[int]()}
    part = Clip(
        name="a_face", file="a.png", seconds=1, set="tuning", sha256="", source="", crop=(4, 2, 20, 10), passes=(none,)
    )
    sizes = []

    async def play_all(_: object, clips: Sequence[tuple[Clip, Path]], budget: float | None) -> Point:
        for _, played in clips:
            with av.open(played) as container:
                sizes.append((container.streams.video[0].width, container.streams.video[0].height))
        return point(budget, 0.01, 0.5)

    monkeypatch.setattr(budget_curve, "Studio", NoStudio)
    monkeypatch.setattr(budget_curve, "_play_all", play_all)
    await budget_curve.measure([part], ClipFiles({"a_face": path}, ()), ModelFolder(tmp_path), [0.01])
    assert sizes == [(20, 10)] * 2  # the first is not counted
