"""The how-to page of adaptation, followed word by word in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.docs.blocks import blocks
from walle import adapt, np
from walle.cli import app

ROOT = Path(__file__).parents[2]


def test_the_page_makes_models_that_meet_its_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = {block.language: block for block in blocks(ROOT / "docs/how-to/adapt.md", ROOT) if block.kind != "program"}
    (tmp_path / "net.py").write_text(page["python"].text)
    (tmp_path / "goals.toml").write_text(page["toml"].text)
    monkeypatch.chdir(tmp_path)
    for line in page["sh"].text.splitlines():
        shown = CliRunner().invoke(app, line.removeprefix("walle ").split(), catch_exceptions=False)
        assert shown.exit_code == 0
    rows = [line.split() for line in shown.output.splitlines() if line.strip().startswith(("watch", "phone"))]
    assert [row[0] for row in rows] == ["watch", "phone-1", "phone-2", "phone-3"]
    assert all(row[-1] not in ("budgets", "accuracy") for row in rows)
    assert (tmp_path / "models" / "watch.walle").exists()
    shown = CliRunner().invoke(app, ["adapt", "show", "models"])
    assert "watch" in shown.output


def test_the_pages_model_of_branches_runs_within_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = {block.language: block for block in blocks(ROOT / "docs/how-to/adapt.md", ROOT)}
    (tmp_path / "net.py").write_text(page["python"].text)
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/how-to/adapt.md").read_text()
    command = next(line for line in text.split("`") if line.startswith("walle adapt branches"))
    shown = CliRunner().invoke(app, [*command.removeprefix("walle ").split(), "--steps", "40"], catch_exceptions=False)
    assert shown.exit_code == 0
    image = {"input": np.zeros((1, 1, 8, 8), "float32")}
    session = adapt.BranchSession("net.walle", image, adapt.Budget(latency_s=10.0))
    assert len(session.branches) == 3
    assert session.branches[0].operations < 0.5 * session.branches[1].operations
    assert all(one.accuracy > 0.8 for one in session.branches)
    assert session.run(image)["output"].shape == (1, 4)
