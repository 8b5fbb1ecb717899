"""The table, plot and options of the budget curve; the playing is the player's, with tests of its own."""

import json
from pathlib import Path

import pytest

from apps.livestream.budget_curve import Point, main, parse_budgets, table, write
from walle.errors import ConfigError


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


def test_a_folder_without_clips_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="none of the tuning clips"):
        main(["--clips", str(tmp_path)])
    assert "left out: " in capsys.readouterr().err
